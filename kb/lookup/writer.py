"""The writer of a collection elsewhere: writes while it is this process's turn, and asks before each call if it is.

The turn is a lock of the database, which ends with the connection to it, and no process is told of that. What it read
before may be wrong by then: another one has the turn, and facts were deleted, restored or erased.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from colmlm.kb.keys.keysets import Ids, Vectors
from colmlm.kb.lookup.collection import AT_ONCE, Collection, CollectionMark


@dataclass(frozen=True, slots=True)
class CollectionWriter:
    """Writes to the collection. The session's transaction has the turn; without its connection each verb raises."""

    session: Session
    there: Collection

    def insert(self, ids: Ids, keys: Vectors) -> None:
        """Adds keys [n, d] under ids [n] that are not there."""
        for start in range(0, len(ids), AT_ONCE):
            self._require_turn()
            self.there.insert(ids[start : start + AT_ONCE], keys[start : start + AT_ONCE])

    def delete(self, ids: Sequence[int]) -> None:
        """Deletes the keys of these ids; those that are not there are ignored."""
        for start in range(0, len(ids), AT_ONCE):
            self._require_turn()
            self.there.delete(ids[start : start + AT_ONCE])

    def set_mark(self, mark: CollectionMark) -> None:
        self._require_turn()
        self.there.set_mark(mark)

    def create(self) -> None:
        """Makes the collection anew and empty."""
        self._require_turn()
        self.there.create()

    def drop(self) -> None:
        self._require_turn()
        self.there.drop()

    def _require_turn(self) -> None:
        self.session.execute(select(1))
