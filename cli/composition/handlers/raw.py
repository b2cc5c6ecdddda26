"""The handlers of jobs that read raw documents. A second attempt passes over what is ingested already."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from colmlm.api.nouns.contents import RawAddition
from colmlm.cli.composition import annotators
from colmlm.cli.composition.adding import Adding
from colmlm.cli.composition.handlers.without_model import in_brief, named
from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.composition.syncing import Syncing, places_of
from colmlm.kb.corpus.raw.files import FoundFiles, find_files
from colmlm.kb.errors import InvalidWork

if TYPE_CHECKING:
    from pathlib import Path

    from colmlm.api.nouns.telling import Telling
    from colmlm.kb.jobs.raw_kinds import Documents, RawWork, Sync
    from colmlm.kb.jobs.runner import JobRun

FOLDERS = "folders"  # in the home: what jobs may read is what its owner put or linked there


def documents(runtime: Runtime, telling: Telling, run: JobRun, work: Documents) -> dict[str, Any]:
    """Annotates, ingests and keys uploaded documents."""
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
    """Syncs a corpus with a folder of the home."""
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
    return done.told() | {"refusals": named(done.refusals)}


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
