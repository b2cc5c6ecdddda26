"""Growing: puts another kind of index in the place of an exact one that its keyset has outgrown."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import text
from sqlalchemy.orm import Session

from colmlm.kb.errors import SnapshotRefused
from colmlm.kb.keys.records import KeysetHead
from colmlm.kb.lookup.in_process import OnKeys
from colmlm.kb.lookup.replica import Replica, load_replica, rebuild, save
from colmlm.kb.store.database import connection_of

_WITHOUT_TIMEOUT = text("SET LOCAL idle_in_transaction_session_timeout = 0")  # training may take longer
_MINE = text("SELECT pg_try_advisory_xact_lock(hashtextextended('index of keyset ' || :keyset_id, 0))")


def grown(
    session: Session, keyset: KeysetHead, directory: Path, on_keys: OnKeys | None = None
) -> Replica | None:
    """Gives the replica from the snapshot of a process that built it before, or builds it and writes a snapshot.

    None while another process builds it, whose snapshot is found later.
    """
    session.execute(_WITHOUT_TIMEOUT)
    if not session.scalar(_MINE, {"keyset_id": keyset.keyset_id}):
        return None
    return _from_snapshot(session, keyset, directory) or _built(session, keyset, directory, on_keys)


def _from_snapshot(session: Session, keyset: KeysetHead, directory: Path) -> Replica | None:
    try:
        found = load_replica(session, keyset, directory)
    except SnapshotRefused:
        return None
    found.catch_up(connection_of(session))
    return None if found.candidates.has_outgrown(keyset.index_spec) else found


def _built(session: Session, keyset: KeysetHead, directory: Path, on_keys: OnKeys | None) -> Replica:
    built = rebuild(session, keyset, on_keys)
    built.catch_up(connection_of(session))
    save(session, built, directory)
    return built
