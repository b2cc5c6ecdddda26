"""Growing: puts another kind of index in the place of an exact one that its keyset has outgrown."""

from __future__ import annotations

from sqlalchemy.orm import Session

from colmlm.kb.errors import SnapshotRefused
from colmlm.kb.keys.records import KeysetHead
from colmlm.kb.lookup.in_process import OnKeys
from colmlm.kb.lookup.opening import from_snapshot
from colmlm.kb.lookup.replica import Replica, rebuild, save
from colmlm.kb.lookup.turns import is_mine
from colmlm.kb.store.database import connection_of
from colmlm.kb.store.settings import Settings


def grown(
    session: Session, keyset: KeysetHead, settings: Settings, on_keys: OnKeys | None = None
) -> Replica | None:
    """Gives the replica from the snapshot of a process that built it before, or builds it and writes a snapshot.

    None while another process builds it, whose snapshot is found later.
    """
    if not is_mine(session, keyset.keyset_id):
        return None
    return _built_before(session, keyset, settings) or _built(session, keyset, settings, on_keys)


def _built_before(session: Session, keyset: KeysetHead, settings: Settings) -> Replica | None:
    try:
        found = from_snapshot(session, keyset, settings)
    except SnapshotRefused:
        return None
    found.catch_up(connection_of(session))
    return None if found.candidates.has_outgrown(keyset.index_spec) else found


def _built(session: Session, keyset: KeysetHead, settings: Settings, on_keys: OnKeys | None) -> Replica:
    built = rebuild(session, keyset, settings, on_keys)
    built.catch_up(connection_of(session))
    save(session, built, settings)
    return built
