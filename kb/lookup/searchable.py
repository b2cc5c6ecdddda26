"""SearchableStore: a Store with the index of this process over it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from sqlalchemy import Engine

from colmlm.kb.lookup.searcher import Searcher
from colmlm.kb.records import Lookup
from colmlm.kb.store import database
from colmlm.kb.store.settings import Settings
from colmlm.kb.store.store import Store
from colmlm.kb.store.waits import Waits


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

    def lookup(
        self,
        queries_BD: npt.NDArray[Any],
        *,
        checkpoint_id: str,
        k: int = 1,
        threshold: float | None = None,
        min_seq: int | None = None,
    ) -> list[Lookup]:
        """The k best live facts of each query [B, d], at or above the threshold (None: the keyset's own).

        `min_seq` is the seq of an edit to read back: `IndexBehind` where it does not arrive in time, `NoSuchChange` at
        once where nobody made it. Raises `KeysetMismatch` where the queries are not of the active keyset's checkpoint.
        """
        return self.searcher.lookup(np.asarray(queries_BD), checkpoint_id, k, threshold, min_seq)

    def catch_up(self) -> int:
        """Apply every committed change to this process's index and give the seq reached."""
        return self.searcher.catch_up()

    def rebuild_index(self) -> None:
        """Make the active keyset's index and snapshot anew from the database alone."""
        self.searcher.rebuild()

    def snapshot(self) -> None:
        """Write the active keyset's index to disk, so that the next process starts from it."""
        self.searcher.snapshot()
