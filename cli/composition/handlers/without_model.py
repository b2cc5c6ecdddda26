"""Handlers of the kinds of jobs that need no model. Their results are stored, so they are short and hold no text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from colmlm.kb.backup.write import backup_folder, verify_backup, write_backup
from colmlm.kb.corpus.format import Refusal
from colmlm.kb.corpus.raw.reading import read_corpus
from colmlm.kb.errors import InvalidWork
from colmlm.kb.facts.records import IngestReport
from colmlm.kb.jobs.kinds import Check, Compare, Ingest, MakeBackup, VerifyBackup, WriteSnapshot
from colmlm.kb.jobs.records import JobRecord
from colmlm.kb.jobs.worker import Handler, JobRun
from colmlm.kb.log.signing import signing_key
from colmlm.kb.upkeep.comparing import compare_index

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
    """Give the report with at most `MOST_NAMED` refusals, and the number of all."""
    brief = asdict(report)
    del brief["suppressed_at"]
    return brief | {"refused": len(report.refusals), "refusals": named(report.refusals)}


def named(refusals: Sequence[Refusal]) -> list[dict[str, Any]]:
    """List what was refused and why, without the texts that reasons quote, so that no result of a job holds them."""
    return [
        {
            "document": _stored(one.document),
            "offset": one.offset,
            "reason": _stored(_QUOTED.sub("(...)", one.reason)),
            "code": one.code,
        }
        for one in refusals[:MOST_NAMED]
    ]


def _stored(words: str) -> str:
    """Replace NUL characters, which PostgreSQL cannot store in JSON."""
    return words.replace("\x00", "\ufffd")


def backup(run: JobRun, work: MakeBackup) -> dict[str, Any]:
    """Write the backup completely or not at all. A second attempt starts over, and removes what a dead worker left."""
    directory = backup_folder(run.kb.settings)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = directory / work.name
    if file.exists() and not (work.replace or _is_of(run.job, file)):
        raise InvalidWork(work.kind, f"there is a backup {work.name!r}; choose another name, or replace it")
    made = write_backup(
        run.kb,
        file,
        signing_key(run.kb.settings.home),
        replace=True,
        on_bytes=lambda done: run.progress(done // MEGA, None, "MB written"),
    )
    return {"name": work.name, **asdict(made)}


def verify(run: JobRun, work: VerifyBackup) -> dict[str, Any]:
    """Read the backup and give its contents. Raises `BackupRefused` where a bit is not as it was written."""
    file = backup_folder(run.kb.settings) / work.name
    if not file.is_file():
        raise InvalidWork(work.kind, f"there is no backup {work.name!r}")
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
    """Run `fsck`; the result is `ok` where nothing is missing, left over or broken."""
    found = asdict(run.kb.upkeep.fsck())
    return {name: value[:MOST_NAMED] if isinstance(value, tuple) else value for name, value in found.items()}


def compare_all(run: JobRun, work: Compare) -> dict[str, Any]:
    """Compare every fact with all others. A second attempt starts over."""

    def heard(done: int, total: int, of: str) -> None:
        run.progress(done, total, of)
        run.check()

    return asdict(compare_index(run.kb, work.radius, heard))


HANDLERS: dict[str, Handler] = {
    Ingest.kind: ingest,
    MakeBackup.kind: backup,
    VerifyBackup.kind: verify,
    WriteSnapshot.kind: snapshot,
    Check.kind: check,
    Compare.kind: compare_all,
}
