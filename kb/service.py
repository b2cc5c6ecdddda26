"""KnowledgeBase: a Store with the resources of the packages below. One verb is one transaction.

The class of a resource is imported when the resource is used, since some import NumPy, Faiss or cryptography.
"""

from __future__ import annotations

from copy import copy
from types import TracebackType
from typing import TYPE_CHECKING, Self

from sqlalchemy import Engine

from colmlm.kb.lookup.searchable import SearchableStore
from colmlm.kb.store import database
from colmlm.kb.store.settings import Settings
from colmlm.kb.store.waits import Waits

if TYPE_CHECKING:
    from colmlm.kb.access.access import Access
    from colmlm.kb.evidence.log import Log
    from colmlm.kb.evidence.outputs import Outputs
    from colmlm.kb.evidence.shown import CallerView
    from colmlm.kb.facts.comparisons import Comparisons
    from colmlm.kb.facts.corpora import Corpora, StoredDocuments
    from colmlm.kb.facts.facts import Facts
    from colmlm.kb.misses.misses import Misses
    from colmlm.kb.questions.sets import QuestionSets
    from colmlm.kb.releases.releases import Releases
    from colmlm.kb.review.review import FactReview
    from colmlm.kb.switching.keysets import Keysets
    from colmlm.kb.upkeep.upkeep import Upkeep
    from colmlm.kb.webhooks.webhooks import Webhooks


class KnowledgeBase(SearchableStore):
    """Facts, their keys, their history. Safe to share between threads; several processes may open one base."""

    def __init__(self, settings: Settings, engine: Engine) -> None:
        super().__init__(settings, engine)
        self.pools = {"upkeep": engine, "lookups": self.reader}
        self._opened = [engine, self.reader]

    @classmethod
    def open(cls, settings: Settings, application: str = "colmlm") -> KnowledgeBase:
        """Open the database of `settings`, starting it where it does not run. `application` names the connections.

        A new embedded database gets its tables. An empty database of a server does not, since it may be somebody
        else's. Raises `DatabaseUnavailable` or `MigrationNeeded`.
        """
        engine = database.connect_database(settings, application)
        try:
            if settings.database_url is None and database.is_empty(engine):
                database.migrate_database(engine)
            database.require_head(engine)
        except BaseException:  # also where it is interrupted: nobody else would close the connections
            engine.dispose()
            raise
        return cls(settings, engine)

    def beside(self, pool: str, waits: Waits, connections: int) -> KnowledgeBase:
        """Give this knowledge base on a second pool of connections, whose statements are limited by `waits`.

        Both share one searcher, since a process has one index. `close` of this one closes the connections of both.
        """
        self.searcher  # noqa: B018  # made before the copy, which shares it
        other = copy(self)
        other._use(database.second_engine(self.engine, f"colmlm {pool}", waits, connections))
        self.pools[pool] = other.engine
        self._opened.append(other.engine)
        return other

    def close(self) -> None:
        for engine in self._opened:
            engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def facts(self) -> Facts:
        from colmlm.kb.facts.facts import Facts

        return Facts(self)

    @property
    def comparisons(self) -> Comparisons:
        from colmlm.kb.facts.comparisons import Comparisons

        return Comparisons(self)

    @property
    def documents(self) -> StoredDocuments:
        from colmlm.kb.facts.corpora import StoredDocuments

        return StoredDocuments(self)

    @property
    def corpora(self) -> Corpora:
        from colmlm.kb.facts.corpora import Corpora

        return Corpora(self)

    @property
    def outputs(self) -> Outputs:
        from colmlm.kb.evidence.outputs import Outputs

        return Outputs(self)

    @property
    def misses(self) -> Misses:
        from colmlm.kb.misses.misses import Misses

        return Misses(self)

    @property
    def log(self) -> Log:
        from colmlm.kb.evidence.log import Log

        return Log(self)

    @property
    def questions(self) -> QuestionSets:
        from colmlm.kb.questions.sets import QuestionSets

        return QuestionSets(self)

    @property
    def keysets(self) -> Keysets:
        from colmlm.kb.switching.keysets import Keysets

        return Keysets(self)

    @property
    def review(self) -> FactReview:
        from colmlm.kb.review.review import FactReview

        return FactReview(self)

    @property
    def releases(self) -> Releases:
        from colmlm.kb.releases.releases import Releases

        return Releases(self)

    @property
    def access(self) -> Access:
        from colmlm.kb.access.access import Access

        return Access(self)

    @property
    def webhooks(self) -> Webhooks:
        from colmlm.kb.webhooks.webhooks import Webhooks

        return Webhooks(self)

    @property
    def upkeep(self) -> Upkeep:
        from colmlm.kb.upkeep.upkeep import Upkeep

        return Upkeep(self)

    def caller_view(self, *, past: bool) -> CallerView:
        """Give a view of this base for a caller. Without `past`, deleted and corrected texts are withheld."""
        from colmlm.kb.evidence.shown import CallerView

        return CallerView(self, past)
