"""`RemoteBase`: a knowledge base behind its API, as commands ask for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from colmlm.api.schema.schemas import EditResult, LookupAnswers
from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.nouns.base import Decoder
from colmlm.cli.remote.api import Api
from colmlm.cli.remote.connection import Connection
from colmlm.cli.remote.corpora import RemoteCorpora
from colmlm.cli.remote.documents import RemoteDocuments
from colmlm.cli.remote.erasures import RemoteErasures
from colmlm.cli.remote.forgetting import RemoteForgetting
from colmlm.cli.remote.generator import RemoteGenerator
from colmlm.cli.remote.here_only import refuse
from colmlm.cli.remote.jobs import RemoteJobs
from colmlm.cli.remote.keys import RemoteKeys
from colmlm.cli.remote.keysets import RemoteKeysets
from colmlm.cli.remote.log import RemoteLog
from colmlm.cli.remote.verbs import RemoteFacts, RemoteOutputs, edit_of
from colmlm.kb.lookup.history import AsOfLookup
from colmlm.kb.records import Edit, Lookup
from colmlm.kb.upkeep.statistics import Statistics


@dataclass(frozen=True, slots=True)
class RemoteBase:
    """See `cli.nouns.base.Base`. The runtime is for decoding here; its knowledge base is not opened."""

    connection: Connection
    runtime: Runtime

    @property
    def server(self) -> str:
        return self.connection.url

    @property
    def api(self) -> Api:
        return Api(self.connection)

    @property
    def facts(self) -> RemoteFacts:
        return RemoteFacts(self.api)

    @property
    def outputs(self) -> RemoteOutputs:
        return RemoteOutputs(self.api)

    @property
    def log(self) -> RemoteLog:
        return RemoteLog(self.api)

    @property
    def documents(self) -> RemoteDocuments:
        return RemoteDocuments(self.api)

    @property
    def jobs(self) -> RemoteJobs:
        return RemoteJobs(self.api)

    @property
    def keysets(self) -> RemoteKeysets:
        return RemoteKeysets(self.api)

    @property
    def keys(self) -> RemoteKeys:
        return RemoteKeys(self.api)

    @property
    def forgetting(self) -> RemoteForgetting:
        return RemoteForgetting(self.api)

    @property
    def erasures(self) -> RemoteErasures:
        return RemoteErasures(self.api)

    @property
    def corpora(self) -> RemoteCorpora:
        return RemoteCorpora(self.api)

    def actor(self, named: str | None) -> str:
        return named or ""

    def only_here(self, **given: object) -> None:
        refuse(**given)

    def use_checkpoint(self, path: Path | None) -> None:
        self.only_here(checkpoint=path)

    def insert(
        self,
        question: str,
        value: str,
        *,
        answer: str | None,
        actor: str,
        reason: str,
        allow_erased: bool,
        is_keyed: bool,
    ) -> tuple[Edit, bool]:
        self.only_here(no_key=not is_keyed)
        body = {"question": question, "value": value, "answer": answer, "allow_erased": allow_erased}
        done = self.api.edit("/facts", EditResult, body | {"reason": reason, "on_behalf_of": actor or None})
        return edit_of(done), done.keyed

    def look_up(
        self, question: str, *, k: int, threshold: float | None, min_seq: int | None, as_of: int | None
    ) -> Lookup:
        asked = {"questions": [question], "k": k, "threshold": threshold, "min_seq": min_seq, "as_of": as_of}
        (told,) = self.api.ask("/lookups", LookupAnswers, asked).answers
        found = (tuple(told.hits), told.runner_up, told.threshold, told.seq, told.abstained)
        if told.redacted is None:
            return Lookup(*found)
        return AsOfLookup(*found, redacted=told.redacted, unkeyed=told.unkeyed or 0)

    @contextmanager
    def generator(self, checkpoint: Path | None, as_of: int | None, *, there: bool) -> Iterator[Decoder]:
        if there:
            refuse(checkpoint=checkpoint, as_of=as_of)
            yield RemoteGenerator(self.api)
            return
        from colmlm.cli.composition.generator import StoringGenerator
        from colmlm.cli.remote.knowledge_base import RemoteKnowledgeBase

        loaded = Runtime.from_environment(checkpoint=checkpoint).checkpoint
        remote = RemoteKnowledgeBase(self.connection)
        remote.require(loaded.checkpoint_id)
        lookup = remote if as_of is None else remote.as_of(as_of)
        yield StoringGenerator(loaded, remote, lookup, as_of)

    def statistics(self) -> Statistics:
        return self.api.get("/stats", Statistics)
