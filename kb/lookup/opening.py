"""Opening: gives a process its replica from a snapshot, its own or a shared one. Of many processes one builds it."""

from __future__ import annotations

import logging
import time
from contextlib import suppress

from sqlalchemy.orm import Session

from colmlm.kb.errors import CandidatesUnavailable, SharedSnapshotsUnavailable, SnapshotRefused
from colmlm.kb.keys.records import KeysetHead
from colmlm.kb.lookup import shared, writing
from colmlm.kb.lookup.fetching import fetch
from colmlm.kb.lookup.in_process import OnKeys
from colmlm.kb.lookup.remote import Remote
from colmlm.kb.lookup.replica import Replica, load_replica, rebuild
from colmlm.kb.lookup.shared_files import SharedFolder
from colmlm.kb.lookup.specs import collection_of
from colmlm.kb.lookup.turns import is_mine
from colmlm.kb.store.database import connection_of
from colmlm.kb.store.outages import TOLD_SECONDS
from colmlm.kb.store.settings import Settings

POLL_SECONDS = 0.5

_log = logging.getLogger(__name__)


def open_replica(
    session: Session,
    keyset: KeysetHead,
    settings: Settings,
    on_keys: OnKeys | None = None,
    *,
    once: bool = False,
) -> Replica:
    """Opens the replica from the keyset's snapshot, or rebuilds it where that is refused, and catches up.

    With `once`, and where snapshots are shared, it waits for another process that builds it, and has the turn to the
    end of the transaction where it builds it itself. What is kept elsewhere is only rebuilt by `rebuild`: it may be far
    too much to do for a lookup. What it lacks is handed on first where that is more than a process may hold.
    """
    try:
        replica = from_snapshot(session, keyset, settings)
    except SnapshotRefused:
        found = _of_another(session, keyset, settings) if once else None
        replica = found or rebuild(session, keyset, settings, on_keys)
    try:
        replica.catch_up(connection_of(session))
    except CandidatesUnavailable:
        if not isinstance(replica.candidates, Remote) or not replica.candidates.is_lost:
            raise
        writing.hand_on(session, keyset.keyset_id, replica.candidates.collection)
        replica = load_replica(session, keyset, settings)
        replica.catch_up(connection_of(session))
    return replica


def from_snapshot(session: Session, keyset: KeysetHead, settings: Settings) -> Replica:
    """Loads the replica from the keyset's snapshot, or from the shared one where that is far ahead or the only one.

    It does not catch up. Raises `SnapshotRefused` or `CandidatesRefused` on any doubt.
    """
    if collection_of(keyset.index_spec) is None:
        fetch(session, keyset.keyset_id, keyset.dim, settings)
    try:
        return load_replica(session, keyset, settings)
    except SnapshotRefused:
        if not fetch(session, keyset.keyset_id, keyset.dim, settings, anyway=True):
            raise
        return load_replica(session, keyset, settings)


def _of_another(session: Session, keyset: KeysetHead, settings: Settings) -> Replica | None:
    """Waits for the turn to build, and gives the replica that another process shares meanwhile."""
    folder = shared.folder_of(session, settings)
    if folder is None or not _answers(folder):
        return None
    known = shared.noted(session).get(keyset.keyset_id)
    tell_at = began = time.monotonic()
    while True:
        is_turn = is_mine(session, keyset.keyset_id)
        if (newer := shared.noted(session).get(keyset.keyset_id)) != known:
            known = newer
            with suppress(SnapshotRefused):
                return from_snapshot(session, keyset, settings)
        if is_turn:
            return None
        if (now := time.monotonic()) >= tell_at:
            tell_at = now + TOLD_SECONDS
            _log.warning(
                "another process builds the index of keyset %d; waited for it for %.0f s",
                keyset.keyset_id,
                now - began,
            )
        time.sleep(POLL_SECONDS)


def _answers(folder: SharedFolder) -> bool:
    """Says whether the shared place is in reach. Where it is not, nobody could fetch what another builds."""
    try:
        folder.names()
    except SharedSnapshotsUnavailable:
        return False
    return True
