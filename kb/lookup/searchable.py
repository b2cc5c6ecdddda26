"""SearchableStore: a Store with the index of this process over it, and the lookups in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from sqlalchemy import Engine

from colmlm.kb.log import audit
from colmlm.kb.lookup.history import AsOf, History
from colmlm.kb.lookup.index_standing import IndexStanding, index_standing
from colmlm.kb.lookup.one_keyset import KeysetLookup
from colmlm.kb.lookup.records import Lookup
from colmlm.kb.lookup.searcher import Searcher
from colmlm.kb.lookup.space import LookupSpace, lookup_space
from colmlm.kb.store import database
from colmlm.kb.store.settings import Settings
from colmlm.kb.store.store import Store
from colmlm.kb.store.waits import Waits


@dataclass(frozen=True, slots=True)
class Lookups:
    """Lookups in a store, with one index a process."""

    store: Store
    searcher: Searcher

    def find(
        self,
        queries_BD: npt.NDArray[Any],
        *,
        checkpoint_id: str,
        k: int = 1,
        threshold: float | None = None,
        min_seq: int | None = None,
    ) -> list[Lookup]:
        """Finds the k best live facts of each query [B, d], at or above the threshold (None: the keyset's own).

        `min_seq` is the seq of an edit to read back: `IndexBehind` where it does not arrive in time, `NoSuchChange` at
        once where nobody made it. Raises `KeysetMismatch` where the queries are not of the active keyset's checkpoint.
        """
        return self.searcher.lookup(np.asarray(queries_BD), checkpoint_id, k, threshold, min_seq)

    def catch_up(self) -> int:
        """Applies every committed change to this process's index and give the seq reached."""
        return self.searcher.catch_up()

    def rebuild(self) -> None:
        """Makes the active keyset's index and snapshot anew from the database alone."""
        self.searcher.rebuild()

    def snapshot(self) -> None:
        """Writes the active keyset's index to disk, so that the next process starts from it."""
        self.searcher.snapshot()

    def as_of(self, seq: int) -> AsOf:
        """Gives lookups as the base stood at change `seq`. Raises `NoSuchChange`."""
        with self.store.sessions() as session:
            audit.require_change(session, seq)
        return AsOf(History(self.store), seq)

    def in_keyset(self, keyset_id: int) -> KeysetLookup:
        """Gives lookups in one keyset, whichever is active. Opens nothing yet."""
        return KeysetLookup.of(self.searcher, keyset_id)

    def standing(self) -> IndexStanding:
        """Tells where the index of this process stands, without moving it. Two small statements."""
        return index_standing(self.store, self.searcher)

    def space(self) -> LookupSpace:
        """Tells what lookups are answered from now: whose queries, how wide, at which threshold, as of which change."""
        with self.store.sessions() as session:
            return lookup_space(session)


class SearchableStore(Store):
    """Answers lookups, with one index a process."""

    def __init__(self, settings: Settings, engine: Engine) -> None:
        super().__init__(settings, engine)
        self.searcher = Searcher(
            reader=database.reader(engine, Waits.of(settings)),
            sessions=self.sessions,
            directory=settings.index_directory,
            wait_seconds=settings.index_wait_seconds,
        )

    @property
    def lookups(self) -> Lookups:
        return Lookups(self, self.searcher)
