"""`Client`, a remote knowledge base with the same nouns as a local one."""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import Self

from colmlm.api.client.api import Api
from colmlm.api.client.connection import Connection, Patience
from colmlm.api.client.corpora import RemoteCorpora
from colmlm.api.client.documents import RemoteDocuments
from colmlm.api.client.erasures import RemoteErasures
from colmlm.api.client.facts import RemoteFacts
from colmlm.api.client.forgetting import RemoteForgetting
from colmlm.api.client.generator import RemoteGenerator
from colmlm.api.client.jobs import RemoteJobs
from colmlm.api.client.keys import RemoteKeys
from colmlm.api.client.keysets import RemoteKeysets
from colmlm.api.client.log import RemoteLog
from colmlm.api.client.lookups import RemoteLookups
from colmlm.api.client.outputs import RemoteOutputs
from colmlm.kb.nouns.telling import Telling
from colmlm.kb.upkeep.statistics import Statistics


@dataclass(frozen=True, slots=True)
class RemoteUpkeep:
    """The verbs of `kb.nouns.upkeep.UpkeepVerbs` over the API."""

    api: Api

    def statistics(self) -> Statistics:
        return self.api.get("/stats", Statistics)


class Client:
    """A remote knowledge base: `kb.nouns.nouns.Nouns` over the API. Threads may share it.

    It sends no request before a verb is called.
    """

    def __init__(self, connection: Connection, telling: Telling | None = None) -> None:
        api = Api(connection, telling or Telling())
        self.connection = connection
        self.facts = RemoteFacts(api)
        self.documents = RemoteDocuments(api)
        self.corpora = RemoteCorpora(api)
        self.lookups = RemoteLookups(api)
        self.decoder = RemoteGenerator(api)
        self.outputs = RemoteOutputs(api)
        self.log = RemoteLog(api)
        self.keysets = RemoteKeysets(api)
        self.forgetting = RemoteForgetting(api)
        self.erasures = RemoteErasures(api)
        self.jobs = RemoteJobs(api)
        self.keys = RemoteKeys(api)
        self.upkeep = RemoteUpkeep(api)

    @classmethod
    def open(
        cls, url: str, token: str, *, checkpoint_id: str | None = None, patience: Patience | None = None
    ) -> Self:
        """Gives a client after checking that the server answers and, if it is given, that its keys are of
        `checkpoint_id`.

        Raises `KeysetMismatch`, `ServerUnreachable`, `KeyRefused` or the error of any other refusal.
        """
        client = cls(Connection(url, token, patience))
        try:
            client.lookups.require(checkpoint_id)
        except BaseException:
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
