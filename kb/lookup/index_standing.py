"""Reports how far the index of a process has followed the database."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy.orm import Session

from colmlm.kb.log import audit
from colmlm.kb.lookup.replica import snapshots_of
from colmlm.kb.lookup.searcher import Searcher
from colmlm.kb.store.store import Store


@dataclass(frozen=True, slots=True)
class IndexStanding:
    """The state of a process's index.

    `applied_seq` is None where no index is open; `snapshot_at` where it has no snapshot.
    """

    head_seq: int
    applied_seq: int | None
    snapshot_at: datetime | None

    @property
    def lag(self) -> int | None:
        """The number of changes that the next lookup would have to apply first."""
        return None if self.applied_seq is None else max(0, self.head_seq - self.applied_seq)


def index_standing(store: Store, searcher: Searcher) -> IndexStanding:
    """Gives the state of this process's index without catching up. It takes two small statements."""
    applied_seq, keyset_id = searcher.applied_seq, searcher.keyset_in_use
    with store.sessions() as session:
        head = audit.head_seq(session)
        snapshot_at = _snapshot_at(session, store, keyset_id) if keyset_id is not None else None
    return IndexStanding(head, applied_seq, snapshot_at)


def _snapshot_at(session: Session, store: Store, keyset_id: int) -> datetime | None:
    """Gives the time at which the snapshot on disk was written, perhaps by another process of this home."""
    manifest = snapshots_of(session, store.settings.index_directory) / f"keyset-{keyset_id}.json"
    try:
        return datetime.fromtimestamp(manifest.stat().st_mtime, UTC)
    except FileNotFoundError:
        return None
