"""The handlers of all kinds of jobs: those that need no model, and here those that do."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from colmlm.cli.composition import annotators
from colmlm.cli.composition.adapting import adapt
from colmlm.cli.composition.adding import Adding
from colmlm.cli.composition.asking_sets import SetAsking
from colmlm.cli.composition.calibrating import AnswerCalibrating
from colmlm.cli.composition.handlers.without_model import HANDLERS, in_brief, ingest, named
from colmlm.cli.composition.keying import active_encoder_of, encoder_of, key_everything
from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.composition.syncing import Syncing, places_of
from colmlm.cli.errors import FAULT, explain
from colmlm.kb.answers.records import Calibrating
from colmlm.kb.corpus.raw.blocks import RawAddition
from colmlm.kb.corpus.raw.files import FoundFiles, find_files
from colmlm.kb.errors import InvalidWork, KBError
from colmlm.kb.jobs.kinds import (
    AskQuestions,
    CalibrateAnswers,
    Documents,
    Gate,
    Ingest,
    Rekey,
    Sync,
    VerifyForgetting,
)
from colmlm.kb.jobs.tickets import Problem, problem_of
from colmlm.kb.keys.records import GateLimits
from colmlm.kb.lookup.options import filter_of
from colmlm.kb.progress import Advance, Telling
from colmlm.kb.questions.records import AskingSet
from colmlm.kb.removal.forget import Forgetting
from colmlm.kb.removal.records import SAMPLE
from colmlm.kb.store.waits import refusal_of

if TYPE_CHECKING:
    from colmlm.kb.jobs.kinds import RawWork
    from colmlm.kb.jobs.worker import Handler, JobRun
    from colmlm.kb.keys.rekey import Encoder


def handlers(runtime: Runtime) -> dict[str, Handler]:
    """Give the handler of every kind. A model of this runtime is loaded when a job first needs it."""
    models = _Models(runtime)
    need_one: dict[str, Handler] = {
        Rekey.kind: models.rekey,
        Gate.kind: models.gate,
        Ingest.kind: models.ingest,
        Documents.kind: models.documents,
        Sync.kind: models.sync,
        CalibrateAnswers.kind: models.calibrate_answers,
        AskQuestions.kind: models.ask_questions,
        VerifyForgetting.kind: models.verify,
    }
    return {**HANDLERS, **{kind: _refreshed(runtime, handler) for kind, handler in need_one.items()}}


def _refreshed(runtime: Runtime, handler: Handler) -> Handler:
    """Let a job begin with the model of the keyset that is active then."""

    def handle(run: JobRun, work: Any) -> object:
        runtime.refresh()
        return handler(run, work)

    return handle


def problem(error: Exception) -> Problem:
    """Give the problem document of an error, also of one that a model raised."""
    error = refusal_of(error) or error
    if isinstance(error, KBError) or (failure := explain(error)).exit_code == FAULT:
        return problem_of(error)
    kind = f"urn:colmlm:{type(error).__name__}"
    return {"type": kind, "title": "The work failed", "detail": failure.line}


class _Models:
    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime

    def rekey(self, run: JobRun, work: Rekey) -> object:
        encoder, telling = self._encoder(work), self._telling(run)
        if work.adapt:
            return adapt(run.kb, encoder, telling, work.corpus, work.adapting)
        return key_everything(
            self.runtime,
            corpus=work.corpus,
            encoder=encoder,
            kinds=work.kinds,
            kb=run.kb,
            telling=telling,
            replace=True,
            named=_checkpoint(self.runtime, work.checkpoint),
        )

    def _telling(self, run: JobRun) -> Telling:
        """Report the progress of the work as that of the job."""
        return Telling(self.runtime.telling.note, lambda description: nullcontext(_advance(run, description)))

    def _encoder(self, work: Rekey) -> Encoder:
        if work.keyset_id is not None:
            return encoder_of(self.runtime, work.keyset_id)
        return self.runtime.encoder_at(_checkpoint(self.runtime, work.checkpoint))

    def gate(self, run: JobRun, work: Gate) -> object:
        report = run.kb.keysets.check(
            work.keyset_id,
            encoder_of(self.runtime, work.keyset_id),
            GateLimits(**work.limits),
            active_encoder=active_encoder_of(self.runtime, work.keyset_id),
            on_texts=_advance(run, "texts asked"),
            reader=lambda: self.runtime.reader,
        )
        run.check()
        activated = work.activate and report.passed
        if activated:
            run.kb.keysets.activate(work.keyset_id, actor=run.job.actor, reason=work.reason)
        return report.stored() | {"activated": activated}

    def ingest(self, run: JobRun, work: Ingest) -> object:
        taken = ingest(run, work)
        if work.key:
            keyset = key_everything(self.runtime, corpus=work.corpus, kb=run.kb, telling=self._telling(run))
            taken["keyset"] = asdict(keyset)
        return taken

    def documents(self, run: JobRun, work: Documents) -> object:
        return documents(self.runtime, self._telling(run), run, work)

    def sync(self, run: JobRun, work: Sync) -> object:
        return sync(self.runtime, self._telling(run), run, work)

    def calibrate_answers(self, run: JobRun, work: CalibrateAnswers) -> object:
        file = run.uploads.file(work.upload_id) if work.upload_id else None
        corpora = tuple(work.corpora)
        how = Calibrating(work.wrong, work.sample, work.seed, corpora, work.dry_run, work.question_set)
        calibrating = AnswerCalibrating(self.runtime, run.kb, self._telling(run))
        return calibrating.run(file, how, actor=run.job.actor, reason=work.reason)

    def ask_questions(self, run: JobRun, work: AskQuestions) -> object:
        how = AskingSet(work.mode, work.ranking, work.threshold, **filter_of(work))
        asking = SetAsking(self.runtime, run.kb, self._telling(run))
        return asdict(asking.run(work.question_set, how, actor=run.job.actor))

    def verify(self, run: JobRun, work: VerifyForgetting) -> object:
        encoder, reader = (self.runtime.encoder, self.runtime.reader) if work.model else (None, None)
        forgetting = Forgetting(
            run.kb,
            encoder,
            reader,
            sample=work.sample or SAMPLE,
            on_questions=_advance(run, "questions asked"),
            on_read=_advance(run, "questions read"),
        )
        found = forgetting.verify(work.run_id)
        return {**asdict(found), "holds": found.holds}


def _checkpoint(runtime: Runtime, name: str | None) -> Path | None:
    """Give the directory of this name among the home's checkpoints; None stands for the settings' checkpoint."""
    if name is None:
        return None
    path = runtime.settings.home / "checkpoints" / name
    if not path.is_dir():
        raise InvalidWork(Rekey.kind, f"there is no directory {name!r} in {path.parent}")
    return path


def _advance(run: JobRun, what: str) -> Advance:
    return lambda done, total: run.progress(done, total, what)


# The handlers of jobs that read raw documents. A second attempt passes over what is ingested already.

FOLDERS = "folders"  # in the home: what jobs may read is what its owner put or linked there


def documents(runtime: Runtime, telling: Telling, run: JobRun, work: Documents) -> dict[str, Any]:
    """Annotate, ingest and key uploaded documents."""
    files = [run.uploads.file(upload_id) for upload_id in work.upload_ids]
    kept_in = run.uploads.directory.absolute()
    adding = _adding(runtime, telling, work, find_files(files), kept_in)
    # Not the names of the files, which may say a fact: the log would keep it.
    who = {"actor": run.job.actor, "reason": work.reason or f"{len(files)} uploaded files"}
    report = adding.ingest(annotators.ready(runtime, _how(work)), **who)
    run.check()
    keyset = adding.key(changed=report is not None, kb=run.kb)
    calibrated = adding.recalibrated(run.kb, changed=report is not None, **who)
    tally = adding.tally
    return {
        **(in_brief(report) if report else {"corpus": work.corpus, "documents": 0, "facts": 0}),
        **{standing.value: count for standing, count in tally.standings.items()},
        "rejected": dict(tally.rejected),
        "refused": len(tally.refusals),
        "refusals": named(tally.refusals),
        "keyset": None if keyset is None else asdict(keyset),
        "citable": keyset is not None and keyset.state == "active",
        "suggested": adding.to_suggest(keyset),
        "threshold": calibrated,
    }


def sync(runtime: Runtime, telling: Telling, run: JobRun, work: Sync) -> dict[str, Any]:
    """Sync a corpus with a folder of the home."""
    folder = runtime.settings.home / FOLDERS / work.folder
    if not folder.is_dir():
        raise InvalidWork(work.kind, f"there is no directory {work.folder!r} in {folder.parent}")
    found = find_files([folder.resolve()])
    adding = _adding(runtime, telling, work, found)
    syncing = Syncing(
        run.kb, work.corpus, places_of(folder), found, adding, telling, work.allow_empty, work.move
    )
    plan = syncing.plan()
    run.check()
    who = {"actor": run.job.actor, "reason": work.reason or f"sync with the folder {work.folder}"}
    done = syncing.run(plan, annotators.ready(runtime, _how(work)), **who)
    return done.summary() | {"refusals": named(done.refusals)}


def _adding(
    runtime: Runtime, telling: Telling, work: RawWork, found: FoundFiles, kept_in: Path | None = None
) -> Adding:
    return Adding(
        runtime,
        work.corpus,
        found,
        work.encoding,
        work.fields,
        asks=work.questions,
        verifies=work.verify,
        telling=telling,
        kept_in=kept_in,
    )


def _how(work: RawWork) -> RawAddition:
    return RawAddition(questions=work.questions, verify=work.verify, span_threshold=work.span_threshold)
