"""What a knowledge base tells whoever watches it: how long the parts of a lookup take, and how lookups end.

Nobody watches by default. Then it costs the call of a method that does nothing, and this package stays free of the
libraries that count and trace.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol

from colmlm.kb.log import audit
from colmlm.kb.lookup.replica import snapshots_of

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from colmlm.kb.lookup.searchable import SearchableStore
    from colmlm.kb.records import Lookup


class Observer(Protocol):
    """Who watches. Called from every thread that looks something up; what it raises fails the lookup."""

    def timed(self, part: str) -> AbstractContextManager[object]:
        """Around a part of the work: "lookup", and within it each "search" of the index and "select" that decides."""
        ...

    def looked_up(self, lookups: Sequence[Lookup]) -> None:
        """The answers to the queries of one lookup."""
        ...


class Nobody:
    """The observer where there is none."""

    _nothing = nullcontext()  # has no state, so every thread may enter it at once

    def timed(self, part: str) -> AbstractContextManager[object]:
        return self._nothing

    def looked_up(self, lookups: Sequence[Lookup]) -> None:
        pass


NOBODY = Nobody()


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a process's index stands. `applied_seq` None: none is open yet; `snapshot_at` None: it has no snapshot."""

    head_seq: int
    applied_seq: int | None
    snapshot_at: datetime | None

    @property
    def lag(self) -> int | None:
        """Changes that the next lookup would have to apply first."""
        return None if self.applied_seq is None else max(0, self.head_seq - self.applied_seq)


def standing(kb: SearchableStore) -> Standing:
    """Where the index of this process stands, without moving it. Two small statements."""
    applied_seq, keyset_id = kb.searcher.applied_seq, kb.searcher.keyset_in_use
    with kb.sessions() as session:
        head = audit.head_seq(session)
        snapshot_at = _snapshot_at(session, kb, keyset_id) if keyset_id is not None else None
    return Standing(head, applied_seq, snapshot_at)


def _snapshot_at(session: Session, kb: SearchableStore, keyset_id: int) -> datetime | None:
    """When the snapshot on disk was written. Another process of this home may have written it."""
    manifest = snapshots_of(session, kb.settings.index_directory) / f"keyset-{keyset_id}.json"
    try:
        return datetime.fromtimestamp(manifest.stat().st_mtime, UTC)
    except FileNotFoundError:
        return None
