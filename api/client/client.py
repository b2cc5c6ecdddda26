"""`Client`, a remote knowledge base with the resources and verbs of a local one."""

from __future__ import annotations

from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Self

from colmlm.api.client.api import Api
from colmlm.api.client.connection import Connection, Patience
from colmlm.kb.progress import Telling

if TYPE_CHECKING:
    from colmlm.api.client.facts import (
        RemoteComparisons,
        RemoteCorpora,
        RemoteDocuments,
        RemoteErasures,
        RemoteFacts,
        RemoteForgetting,
        RemoteHolds,
        RemoteRetention,
        RemoteReview,
    )
    from colmlm.api.client.lookups import (
        RemoteGenerator,
        RemoteLookups,
        RemoteMisses,
        RemoteOutputs,
        RemoteQuestions,
    )
    from colmlm.api.client.operating import (
        RemoteJobs,
        RemoteKeysets,
        RemoteLog,
        RemoteTokens,
        RemoteUpkeep,
        RemoteWebhooks,
    )


class Client:
    """A knowledge base behind an API. Threads may share it.

    It sends no request before a verb is called, and imports no resource before it is used.
    """

    def __init__(self, connection: Connection, telling: Telling | None = None) -> None:
        self._api = Api(connection, telling or Telling())
        self.connection = connection

    @cached_property
    def facts(self) -> RemoteFacts:
        from colmlm.api.client.facts import RemoteFacts

        return RemoteFacts(self._api)

    @cached_property
    def comparisons(self) -> RemoteComparisons:
        from colmlm.api.client.facts import RemoteComparisons

        return RemoteComparisons(self._api)

    @cached_property
    def documents(self) -> RemoteDocuments:
        from colmlm.api.client.facts import RemoteDocuments

        return RemoteDocuments(self._api)

    @cached_property
    def review(self) -> RemoteReview:
        from colmlm.api.client.facts import RemoteReview

        return RemoteReview(self._api)

    @cached_property
    def holds(self) -> RemoteHolds:
        from colmlm.api.client.facts import RemoteHolds

        return RemoteHolds(self._api)

    @cached_property
    def retention(self) -> RemoteRetention:
        from colmlm.api.client.facts import RemoteRetention

        return RemoteRetention(self._api)

    @cached_property
    def corpora(self) -> RemoteCorpora:
        from colmlm.api.client.facts import RemoteCorpora

        return RemoteCorpora(self._api)

    @cached_property
    def lookups(self) -> RemoteLookups:
        from colmlm.api.client.lookups import RemoteLookups

        return RemoteLookups(self._api)

    @cached_property
    def decoder(self) -> RemoteGenerator:
        from colmlm.api.client.lookups import RemoteGenerator

        return RemoteGenerator(self._api)

    @cached_property
    def outputs(self) -> RemoteOutputs:
        from colmlm.api.client.lookups import RemoteOutputs

        return RemoteOutputs(self._api)

    @cached_property
    def misses(self) -> RemoteMisses:
        from colmlm.api.client.lookups import RemoteMisses

        return RemoteMisses(self._api)

    @cached_property
    def questions(self) -> RemoteQuestions:
        from colmlm.api.client.lookups import RemoteQuestions

        return RemoteQuestions(self._api)

    @cached_property
    def log(self) -> RemoteLog:
        from colmlm.api.client.operating import RemoteLog

        return RemoteLog(self._api)

    @cached_property
    def keysets(self) -> RemoteKeysets:
        from colmlm.api.client.operating import RemoteKeysets

        return RemoteKeysets(self._api)

    @cached_property
    def forgetting(self) -> RemoteForgetting:
        from colmlm.api.client.facts import RemoteForgetting

        return RemoteForgetting(self._api)

    @cached_property
    def erasures(self) -> RemoteErasures:
        from colmlm.api.client.facts import RemoteErasures

        return RemoteErasures(self._api)

    @cached_property
    def jobs(self) -> RemoteJobs:
        from colmlm.api.client.operating import RemoteJobs

        return RemoteJobs(self._api)

    @cached_property
    def tokens(self) -> RemoteTokens:
        from colmlm.api.client.operating import RemoteTokens

        return RemoteTokens(self._api)

    @cached_property
    def webhooks(self) -> RemoteWebhooks:
        from colmlm.api.client.operating import RemoteWebhooks

        return RemoteWebhooks(self._api)

    @cached_property
    def upkeep(self) -> RemoteUpkeep:
        from colmlm.api.client.operating import RemoteUpkeep

        return RemoteUpkeep(self._api)

    @classmethod
    def open(
        cls, url: str, token: str, *, checkpoint_id: str | None = None, patience: Patience | None = None
    ) -> Self:
        """Give a client after checking that the server answers and, if it is given, that its keys are of
        `checkpoint_id`.

        Raises `KeysetMismatch`, `ServerUnreachable`, `TokenRefused` or the error of any other refusal.
        """
        client = cls(Connection(url, token, patience))
        try:
            client.lookups.require(checkpoint_id)
        except BaseException:  # also where it is interrupted: nobody else would close the connections
            client.close()
            raise
        return client

    def close(self) -> None:
        self.connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
