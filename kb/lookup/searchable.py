"""SearchableStore: a Store with lookups in it, on the index of this process.

Reading and editing facts needs neither, so Faiss and NumPy are imported with the first lookup.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from sqlalchemy import Engine

from colmlm.kb.lookup.words import WordSearch
from colmlm.kb.store import database
from colmlm.kb.store.settings import Settings
from colmlm.kb.store.store import Store
from colmlm.kb.store.waits import Waits

if TYPE_CHECKING:
    from colmlm.kb.lookup.lookups import Lookups
    from colmlm.kb.lookup.searcher import Searcher


class SearchableStore(Store):
    """A store that answers lookups, with one index for each process."""

    def __init__(self, settings: Settings, engine: Engine) -> None:
        super().__init__(settings, engine)
        self.reader = database.reader(engine, Waits.of(settings))
        self.words = WordSearch()
        self._searcher: Searcher | None = None
        self._making = threading.Lock()

    @property
    def searcher(self) -> Searcher:
        """Search the index of this process, which it opens with the first search."""
        with self._making:
            if self._searcher is None:
                from colmlm.kb.lookup.searcher import Searcher

                self._searcher = Searcher(
                    reader=self.reader,
                    sessions=self.sessions,
                    settings=self.settings,
                )
            return self._searcher

    @property
    def lookups(self) -> Lookups:
        from colmlm.kb.lookup.lookups import Lookups

        return Lookups(self, self.searcher)
