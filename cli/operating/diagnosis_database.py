"""The checks of `colmlm doctor` on the database."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from sqlalchemy import Engine, text

from colmlm.cli.contents.calibration import described
from colmlm.cli.errors import one_line
from colmlm.cli.operating.findings import CheckResult
from colmlm.kb.errors import (
    CandidatesRefused,
    CandidatesUnavailable,
    DatabaseUnavailable,
    NoActiveKeyset,
    SharedSnapshotsUnavailable,
)
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store import database

if TYPE_CHECKING:
    from colmlm.cli.settings import UserSettings
    from colmlm.kb.store.settings import Settings

OLDEST, NEWEST_TRIED = 15, 18  # releases of PostgreSQL
CLOCK_SECONDS = 5.0

# The settings of PostgreSQL that must hold, and the harm where one does not.
_SETTINGS = (
    ("fsync", "on", "failed", "a crash of the machine can lose acknowledged edits"),
    ("full_page_writes", "on", "failed", "a crash of the machine can damage the database"),
    ("synchronous_commit", "on", "warning", "a crash can lose the last acknowledged edits"),
    ("transaction_read_only", "off", "failed", "nothing can be edited: a standby, or a role that only reads"),
    ("server_encoding", "UTF8", "failed", "texts could not be stored as they are"),
)


def examine_database(given: tuple[Settings, UserSettings]) -> Iterator[CheckResult]:
    """Checks everything from the server up to the index, and stops where something is missing on the way."""
    settings, user = given
    try:
        engine = database.connect(settings)
    except DatabaseUnavailable as error:
        remedy = "Start it, or set COLMLM_DATABASE_URL right; colmlm db status says more."
        yield CheckResult("database", "failed", one_line(str(error)), remedy)
        return
    try:
        yield from _server(engine)
        if database.is_at_head(engine):
            yield CheckResult("migrations", "ok", f"at {database.head_revision()}")
            yield from _contents(settings, user, engine)
        else:
            yield CheckResult(
                "migrations", "failed", "the schema is not this program's", "Run: colmlm db migrate"
            )
    finally:
        engine.dispose()


def _server(engine: Engine) -> Iterator[CheckResult]:
    with engine.connect() as connection:
        number = int(connection.scalar(text("SHOW server_version_num")) or 0) // 10_000
        version = str(connection.scalar(text("SHOW server_version")))
        held = {
            name: str(connection.scalar(text("SELECT current_setting(:name)"), {"name": name}))
            for name, *_ in _SETTINGS
        }
        theirs: datetime = connection.scalar(text("SELECT clock_timestamp()")) or datetime.now(UTC)
        apart = abs((datetime.now(UTC) - theirs).total_seconds())
    if number < OLDEST:
        yield CheckResult(
            "database", "failed", f"PostgreSQL {version}", f"Move to PostgreSQL {OLDEST} or newer."
        )
    elif number > NEWEST_TRIED:
        remedy = f"It was tried with {OLDEST} to {NEWEST_TRIED}."
        yield CheckResult("database", "warning", f"PostgreSQL {version}", remedy)
    else:
        yield CheckResult("database", "ok", f"PostgreSQL {version}")
    for name, wanted, state, cost in _SETTINGS:
        if held[name] != wanted and (name, held[name]) != ("synchronous_commit", "remote_apply"):
            yield CheckResult(name, state, f"{held[name]}: {cost}", f"Set {name} = {wanted} in the server.")
    if apart > CLOCK_SECONDS:
        yield CheckResult(
            "clock", "warning", f"{apart:.0f} s from the database's", "Run NTP on both machines."
        )
    else:
        yield CheckResult("clock", "ok", "agrees with the database's")


def _contents(settings: Settings, user: UserSettings, engine: Engine) -> Iterator[CheckResult]:
    kb = KnowledgeBase(settings, engine)
    try:
        try:
            keyset = kb.keysets.show(kb.keysets.active().keyset_id)
        except NoActiveKeyset:
            remedy = "Ingest a corpus, then: colmlm rekey"
            yield CheckResult("keyset", "warning", "none is active: nothing can be looked up", remedy)
            return
        found = f"{keyset.keyset_id} of {keyset.checkpoint_name}, {keyset.num_keys:,} keys"
        if keyset.num_unkeyed:
            remedy = "Run: colmlm rekey"
            yield CheckResult("keyset", "warning", f"{found}; {keyset.num_unkeyed:,} facts have none", remedy)
        elif keyset.num_predicted:
            remedy = f"Run: colmlm keysets rekey {keyset.keyset_id}"
            yield CheckResult("keyset", "warning", f"{found}; {keyset.num_predicted:,} are predicted", remedy)
        elif not keyset.calibrated:
            remedy = "Run: colmlm keysets calibrate"
            yield CheckResult("keyset", "warning", f"{found}; its threshold is not calibrated", remedy)
        else:
            yield CheckResult("keyset", "ok", found)
        yield _index(kb)
        yield from _shared_snapshots(kb)
        yield _answers(kb, user)
    finally:
        kb.searcher.reader.dispose()


def _answers(kb: KnowledgeBase, user: UserSettings) -> CheckResult:
    from colmlm.cli.composition.calibrating import calibrations

    standing = calibrations(user, kb).standing()
    found = " ".join((described(standing), *standing.doubts))
    if standing.doubts:
        return CheckResult("answers", "warning", found, "Run: colmlm answers calibrate")
    return CheckResult("answers", "ok", found)


def _index(kb: KnowledgeBase) -> CheckResult:
    again = "The next process builds it anew; colmlm fsck --repair does so now."
    try:
        snapshot = kb.upkeep.snapshot()
    except (CandidatesRefused, CandidatesUnavailable) as error:
        return CheckResult("index", "failed", str(error), "Bring Milvus back, or run: colmlm fsck --repair")
    if snapshot is None:
        return CheckResult("index", "warning", "no usable snapshot", again)
    behind = snapshot.head_seq - snapshot.applied_seq
    found = f"snapshot of {snapshot.num_keys:,} keys, {snapshot.num_bytes / 1e6:,.0f} MB, {behind:,} changes behind"
    if behind < 0:
        return CheckResult("index", "warning", f"{found}: of another history", again)
    if snapshot.num_wanted not in (None, snapshot.num_keys):
        told = f"{found}; the database has {snapshot.num_wanted:,}"
        return CheckResult("index", "failed", told, "Run: colmlm fsck --repair")
    return CheckResult("index", "ok", found)


def _shared_snapshots(kb: KnowledgeBase) -> Iterator[CheckResult]:
    name, remedy = "shared snapshots", "Run: colmlm jobs start snapshot"
    try:
        there = kb.upkeep.shared_snapshot()
    except SharedSnapshotsUnavailable as error:
        yield CheckResult(
            name, "failed", str(error), "A server that starts without a snapshot builds its index."
        )
        return
    if there is None:
        return
    if there.doubts:
        again = "Set COLMLM_SHARED_SNAPSHOTS as other servers have it, mount it, or run: colmlm fsck --repair"
        yield CheckResult(name, "failed", "; ".join(there.doubts), again)
    elif there.behind is None:
        yield CheckResult(name, "warning", f"none of the active keyset at {there.where}", remedy)
    else:
        yield CheckResult(name, "ok", f"{there.where}, {there.behind:,} changes behind")
