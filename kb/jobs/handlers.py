"""Handlers of the kinds that need no model. What they give is kept with the job, so it is bounded and holds no text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from colmlm.kb.backup.kept import backup_folder
from colmlm.kb.backup.write import verify_backup, write_backup
from colmlm.kb.corpus.format import Refusal
from colmlm.kb.corpus.raw.reading import read_corpus
from colmlm.kb.errors import InvalidWork
from colmlm.kb.facts.records import IngestReport
from colmlm.kb.jobs.kinds import Check, Ingest, MakeBackup, VerifyBackup, WriteSnapshot
from colmlm.kb.jobs.records import JobRecord
from colmlm.kb.jobs.runner import Handler, Run
from colmlm.kb.log.signing import signing_key

MOST_NAMED = 100  # refusals and ids that a result lists; it counts them all
COMMIT_EVERY = 500  # documents: small pieces lose little to a kill, and end soon where the job is cancelled

KILO, MEGA = 1000, 1_000_000

_QUOTED = re.compile(r"(['\"]).*\1", re.DOTALL)


def ingest(run: Run, work: Ingest) -> dict[str, Any]:
    """Take the file in, piece by piece. Again, it passes over what is there."""
    file = run.uploads.file(work.upload_id)
    total = file.stat().st_size // KILO
    parsed = read_corpus(
        file,
        work.format,
        limits=run.kb.settings.document_limits,
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
    """The report with as many refusals as a result lists, and their number."""
    brief = asdict(report)
    del brief["suppressed_at"]
    return brief | {"refused": len(report.refusals), "refusals": named(report.refusals)}


def named(refusals: Sequence[Refusal]) -> list[dict[str, Any]]:
    """What was refused and why, without what the reasons quote: an erasure does not look for texts among jobs."""
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
    """Without what PostgreSQL stores in no JSON."""
    return words.replace("\x00", "\ufffd")


def backup(run: Run, work: MakeBackup) -> dict[str, Any]:
    """Write the backup whole or not at all. Again, it starts anew: what a dead worker left is removed."""
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


def verify(run: Run, work: VerifyBackup) -> dict[str, Any]:
    """Read the backup and say what it holds. Raises `BackupRefused` where a bit is not what was written."""
    file = backup_folder(run.kb.settings) / work.name
    if not file.is_file():
        raise InvalidWork(work.kind, f"there is no backup {work.name!r}")
    found = verify_backup(file, lambda done: run.progress(done // MEGA, None, "MB read"))
    return {"name": work.name, **asdict(found)}


def _is_of(job: JobRecord, file: Path) -> bool:
    """Whether this very job wrote the file, in an attempt that its worker did not live to report."""
    return job.started_at is not None and file.stat().st_mtime >= job.started_at.timestamp()


def snapshot(run: Run, _: WriteSnapshot) -> dict[str, Any]:
    """Write the active keyset's index to disk."""
    keyset = run.kb.keysets.active()
    run.kb.lookups.snapshot()
    return {"keyset_id": keyset.keyset_id, "seq": run.kb.lookups.catch_up()}


def check(run: Run, _: Check) -> dict[str, Any]:
    """Compare everything with everything; `ok` where nothing is missing, left over or broken."""
    found = asdict(run.kb.upkeep.fsck())
    return {name: value[:MOST_NAMED] if isinstance(value, tuple) else value for name, value in found.items()}


HANDLERS: dict[str, Handler] = {
    Ingest.kind: ingest,
    MakeBackup.kind: backup,
    VerifyBackup.kind: verify,
    WriteSnapshot.kind: snapshot,
    Check.kind: check,
}
