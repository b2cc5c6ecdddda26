"""The handlers of the kinds of jobs: those that need no model, and those that do.

Their results are stored, so they are short and hold no text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from colmlm.cli.composition import annotators
from colmlm.cli.composition.adding import Adding
from colmlm.cli.composition.calibrating import AnswerCalibrating, SetAsking
from colmlm.cli.composition.keying import active_encoder_of, adapt, encoder_of, key_everything
from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.composition.syncing import Syncing, places_of
from colmlm.cli.errors import FAULT, explain
from colmlm.cli.output import count_of
from colmlm.kb.answers.records import Calibrating
from colmlm.kb.backup.write import backup_folder, verify_backup, write_backup
from colmlm.kb.corpus.format import Refusal
from colmlm.kb.corpus.raw.blocks import RawAddition
from colmlm.kb.corpus.raw.files import FoundFiles, find_files
from colmlm.kb.corpus.raw.reading import read_corpus
from colmlm.kb.errors import InvalidWork, KBError
from colmlm.kb.facts.records import IngestReport
from colmlm.kb.jobs.kinds import (
    AskQuestions,
    CalibrateAnswers,
    Check,
    Compare,
    Documents,
    Gate,
    Ingest,
    MakeBackup,
    Rekey,
    Sync,
    VerifyBackup,
    VerifyForgetting,
    WriteSnapshot,
)
from colmlm.kb.jobs.records import JobRecord
from colmlm.kb.jobs.tickets import Problem, problem_of
from colmlm.kb.jobs.worker import Handler, JobRun
from colmlm.kb.keys.records import GateLimits
from colmlm.kb.log.signing import signing_key
from colmlm.kb.lookup.options import filter_of
from colmlm.kb.progress import Advance, Telling
from colmlm.kb.questions.records import AskingSet
from colmlm.kb.removal.forget import Forgetting
from colmlm.kb.removal.records import SAMPLE
from colmlm.kb.store.waits import refusal_of
from colmlm.kb.upkeep.comparing import compare_all_facts

if TYPE_CHECKING:
    from colmlm.kb.jobs.kinds import RawWork
    from colmlm.kb.keys.rekey import Encoder

FOLDERS = "folders"  # in the home: what jobs may read is what its owner put or linked there
MOST_NAMED = 100  # refusals and ids that a result lists at most; it counts all of them
COMMIT_EVERY = (
    500  # documents of a transaction: few, so that a kill loses little and a cancellation is soon noticed
)

KILO, MEGA = 1000, 1_000_000

_QUOTED = re.compile(r"(['\"]).*\1", re.DOTALL)


def ingest(run: JobRun, work: Ingest) -> dict[str, Any]:
    """Ingest the file in several transactions. A second attempt skips the documents that are already there."""
    file = run.uploads.file(work.upload_id)
    total = file.stat().st_size // KILO
    parsed = read_corpus(
        file,
        work.format,
        limits=run.kb.settings.document,
        on_bytes=lambda reached: run.progress(reached // KILO, total, "KB read"),
    )
    report = run.kb.corpora.ingest(
        parsed,
        work.corpus,
        actor=run.job.actor,
        reason=work.reason or "ingest of an uploaded file",
        commit_every=work.commit_every or COMMIT_EVERY,
    )
    run.progress(total, total, "KB read")
    return in_brief(report)


def in_brief(report: IngestReport) -> dict[str, Any]:
    """Convert an ingest report for a job's result, with at most `MOST_NAMED` refusals and the number of all."""
    brief = asdict(report)
    del brief["suppressed_at"]
    return brief | {"refused": len(report.refusals), "refusals": list_refusals(report.refusals)}


def list_refusals(refusals: Sequence[Refusal]) -> list[dict[str, Any]]:
    """List refusals with their reasons, without the texts that reasons quote: a job's result must not hold them."""
    return [
        {
            "document": _replace_nul(one.document),
            "offset": one.offset,
            "reason": _replace_nul(_QUOTED.sub("(...)", one.reason)),
            "code": one.code,
        }
        for one in refusals[:MOST_NAMED]
    ]


def _replace_nul(words: str) -> str:
    """Replace NUL characters, which PostgreSQL cannot store in JSON."""
    return words.replace("\x00", "\ufffd")


def backup(run: JobRun, work: MakeBackup) -> dict[str, Any]:
    """Write the backup completely or not at all. A second attempt starts over, and removes what a dead worker left."""
    directory = backup_folder(run.kb.settings)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = directory / work.name
    if file.exists() and not (work.replace or _is_of(run.job, file)):
        raise InvalidWork(work.kind, f"a backup {work.name!r} exists. Choose another name, or replace it")
    made = write_backup(
        run.kb,
        file,
        signing_key(run.kb.settings.home),
        replace=True,
        on_bytes=lambda done: run.progress(done // MEGA, None, "MB written"),
    )
    return {"name": work.name, **asdict(made)}


def verify(run: JobRun, work: VerifyBackup) -> dict[str, Any]:
    """Read the backup and give its contents. Raises `BackupRefused` if a bit is not as it was written."""
    file = backup_folder(run.kb.settings) / work.name
    if not file.is_file():
        raise InvalidWork(work.kind, f"no {work.name!r} is in {file.parent}. Name another")
    found = verify_backup(file, lambda done: run.progress(done // MEGA, None, "MB read"))
    return {"name": work.name, **asdict(found)}


def _is_of(job: JobRecord, file: Path) -> bool:
    """Tell whether this job wrote the file in an earlier attempt, whose worker died before it reported that."""
    return job.started_at is not None and file.stat().st_mtime >= job.started_at.timestamp()


def snapshot(run: JobRun, _: WriteSnapshot) -> dict[str, Any]:
    """Write the active keyset's index to disk, and to where servers share snapshots."""
    keyset = run.kb.keysets.active()
    run.kb.lookups.snapshot(share=True)
    return {"keyset_id": keyset.keyset_id, "seq": run.kb.lookups.catch_up()}


def check(run: JobRun, _: Check) -> dict[str, Any]:
    """Run `fsck`; the result is `ok` if nothing is missing, left over or broken."""
    found = asdict(run.kb.upkeep.fsck())
    return {name: value[:MOST_NAMED] if isinstance(value, tuple) else value for name, value in found.items()}


def compare_all(run: JobRun, work: Compare) -> dict[str, Any]:
    """Compare every fact with all others. A second attempt starts over."""

    def report_progress(done: int, total: int, of: str) -> None:
        run.progress(done, total, of)
        run.check()

    return asdict(compare_all_facts(run.kb, work.radius, report_progress))


HANDLERS: dict[str, Handler] = {
    Ingest.kind: ingest,
    MakeBackup.kind: backup,
    VerifyBackup.kind: verify,
    WriteSnapshot.kind: snapshot,
    Check.kind: check,
    Compare.kind: compare_all,
}


def handlers(runtime: Runtime) -> dict[str, Handler]:
    """Give the handler of every kind of job. A model of this runtime is loaded when a job first needs it."""
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
    return {**HANDLERS, **{kind: _refreshing_handler(runtime, handler) for kind, handler in need_one.items()}}


def _refreshing_handler(runtime: Runtime, handler: Handler) -> Handler:
    """Wrap a handler so that a job first drops a loaded model whose keyset is no longer active."""

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
        """Make a `Telling` that reports progress as the job's, and notes as the runtime does."""
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
        return report.to_json() | {"activated": activated}

    def ingest(self, run: JobRun, work: Ingest) -> object:
        taken = ingest(run, work)
        if work.key:
            keyset = key_everything(self.runtime, corpus=work.corpus, kb=run.kb, telling=self._telling(run))
            taken["keyset"] = asdict(keyset)
        return taken

    def documents(self, run: JobRun, work: Documents) -> object:
        """Annotate, ingest and key uploaded documents. A second attempt passes over what is ingested already."""
        files = [run.uploads.file(upload_id) for upload_id in work.upload_ids]
        kept_in = run.uploads.directory.absolute()
        adding = self._adding(run, work, find_files(files), kept_in)
        # Not the names of the files, which may say a fact: the log would keep it.
        who = {"actor": run.job.actor, "reason": work.reason or f"{count_of(len(files), 'uploaded file')}"}
        report = adding.ingest(annotators.annotator_loader(self.runtime, _raw_addition(work)), **who)
        run.check()
        keyset = adding.key(changed=report is not None, kb=run.kb)
        calibrated = adding.recalibrate_answers(run.kb, changed=report is not None, **who)
        tally = adding.tally
        return {
            **(in_brief(report) if report else {"corpus": work.corpus, "documents": 0, "facts": 0}),
            **{standing.value: count for standing, count in tally.standings.items()},
            "rejected": dict(tally.rejected),
            "refused": len(tally.refusals),
            "refusals": list_refusals(tally.refusals),
            "keyset": None if keyset is None else asdict(keyset),
            "citable": keyset is not None and keyset.state == "active",
            "suggested": adding.suggested_fact(keyset),
            "threshold": calibrated,
        }

    def sync(self, run: JobRun, work: Sync) -> object:
        """Sync a corpus with a folder of the home."""
        folder = self.runtime.settings.home / FOLDERS / work.folder
        if not folder.is_dir():
            raise InvalidWork(work.kind, f"no directory {work.folder!r} is in {folder.parent}. Make it there")
        found = find_files([folder.resolve()])
        adding = self._adding(run, work, found)
        syncing = Syncing(
            run.kb,
            work.corpus,
            places_of(folder),
            found,
            adding,
            self._telling(run),
            work.allow_empty,
            work.move,
        )
        plan = syncing.plan()
        run.check()
        who = {"actor": run.job.actor, "reason": work.reason or f"sync with the folder {work.folder}"}
        done = syncing.run(plan, annotators.annotator_loader(self.runtime, _raw_addition(work)), **who)
        return done.summary() | {"refusals": list_refusals(done.refusals)}

    def _adding(self, run: JobRun, work: RawWork, found: FoundFiles, kept_in: Path | None = None) -> Adding:
        return Adding(
            self.runtime,
            work.corpus,
            found,
            work.encoding,
            work.fields,
            asks=work.questions,
            verifies=work.verify,
            telling=self._telling(run),
            kept_in=kept_in,
        )

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
        runtime = self.runtime
        models = (runtime.encoder, runtime.reader, runtime.sentence_encoder) if work.model else ()
        forgetting = Forgetting(
            run.kb,
            *models,
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
        raise InvalidWork(Rekey.kind, f"no directory {name!r} is in {path.parent}. Make it there")
    return path


def _advance(run: JobRun, what: str) -> Advance:
    return lambda done, total: run.progress(done, total, what)


def _raw_addition(work: RawWork) -> RawAddition:
    return RawAddition(questions=work.questions, verify=work.verify, span_threshold=work.span_threshold)
