"""`RemoteKnowledgeBase`: what a decoder looks facts up in, and keeps its outputs in, over HTTP."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from colmlm.api.routes.vectors import LOOKUPS, MAX_VECTORS, MSGPACK, OCTETS
from colmlm.api.schema.schemas import LookupAnswer, LookupAnswers
from colmlm.cli.remote.connection import Connection, Patience
from colmlm.cli.remote.errors import ServerUnreachable
from colmlm.kb.errors import InvalidQuery, KeysetMismatch
from colmlm.kb.lookup.space import LookupSpace
from colmlm.kb.records import Lookup, NewGeneration, OutputTrace, Source, Splice

RECORDS = "/v1/generations/records"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RemoteKnowledgeBase:
    """A knowledge base behind its API. Threads may share it; its key needs the right to look up, and no other.

    Every lookup is answered there, so a fact that was deleted before it was sent is in none. With `seq` it answers as
    the base stood at that change.
    """

    connection: Connection
    seq: int | None = None

    @classmethod
    def open(
        cls, url: str, key: str, *, checkpoint_id: str | None = None, patience: Patience | None = None
    ) -> Self:
        """One that answers, and whose keys are of `checkpoint_id` where that is named.

        Raises `KeysetMismatch`, `ServerUnreachable`, `KeyRefused` or what else the server refuses with.
        """
        remote = cls(Connection(url, key, patience))
        try:
            remote.require(checkpoint_id)
        except BaseException:
            remote.close()
            raise
        return remote

    def require(self, checkpoint_id: str | None) -> None:
        """Raise `KeysetMismatch` where its keys are of another checkpoint; None: any will do."""
        space = self.space()
        if checkpoint_id is not None and space.checkpoint_id != checkpoint_id:
            raise KeysetMismatch(checkpoint_id, space.checkpoint_id)

    def as_of(self, seq: int) -> Self:
        """The same base as it stood at change `seq`, over the same connections."""
        return replace(self, seq=seq)

    def close(self) -> None:
        self.connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def space(self) -> LookupSpace:
        """What lookups are answered from now: whose queries, how wide, at which threshold, as of which change."""
        response = self.connection.request("GET", LOOKUPS, is_repeatable=True)
        return self._read(response.content, LookupSpace)

    def head_seq(self) -> int:
        return self.space().head_seq

    def find(
        self,
        queries_BD: npt.NDArray[Any],
        *,
        checkpoint_id: str,
        k: int = 1,
        threshold: float | None = None,
        min_seq: int | None = None,
    ) -> list[Lookup]:
        """As `KnowledgeBase.lookup`: `min_seq` waits for an edit there. Asked in batches of `MAX_VECTORS`."""
        queries = np.ascontiguousarray(queries_BD, dtype="<f4")
        if queries.ndim != 2:
            raise InvalidQuery(f"its shape is {queries.shape}, not (batch, width)")
        options = {"k": k, "threshold": threshold, "min_seq": min_seq, "as_of": self.seq}
        given = {"checkpoint_id": checkpoint_id, "dim": queries.shape[1]}
        given |= {name: value for name, value in options.items() if value is not None}
        found: list[Lookup] = []
        for start in range(0, len(queries), MAX_VECTORS):
            found += self._ask(queries[start : start + MAX_VECTORS], given, checkpoint_id)
        return found

    def store(self, generation: NewGeneration) -> OutputTrace:
        """Keep an output there and give its trace, without what became of its facts since.

        Sent again only where the server was not reached: twice kept, it would look like two outputs.
        """
        body = msgspec.json.encode(_as_json(generation))
        headers = {"Content-Type": "application/json"}
        response = self.connection.request(
            "POST", RECORDS, is_repeatable=False, content=body, headers=headers
        )
        return self._read(response.content, OutputTrace)

    def source(self, fact_id: int) -> Source | None:
        """Not told before the output is stored."""
        return None

    def _ask(
        self, queries_BD: npt.NDArray[np.float32], given: dict[str, Any], checkpoint_id: str
    ) -> list[Lookup]:
        try:
            response = self.connection.request(
                "POST",
                LOOKUPS,
                is_repeatable=True,
                params=given,
                content=queries_BD.tobytes(),
                headers={"Content-Type": OCTETS.decode(), "Accept": MSGPACK},
            )
        except KeysetMismatch as error:
            raise KeysetMismatch(checkpoint_id, self.space().checkpoint_id) from error
        try:
            told = msgspec.msgpack.decode(response.content, type=LookupAnswers)
        except msgspec.DecodeError as error:
            raise self._not_ours(error) from error
        if len(told.answers) != len(queries_BD):
            raise self._not_ours(ValueError(f"{len(told.answers)} answers to {len(queries_BD)} queries"))
        return [_lookup(answer) for answer in told.answers]

    def _read(self, content: bytes, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(content, type=kind)
        except msgspec.DecodeError as error:
            raise self._not_ours(error) from error

    def _not_ours(self, error: Exception) -> ServerUnreachable:
        return ServerUnreachable(self.connection.url, f"its answer cannot be read ({error})")


def _lookup(answer: LookupAnswer) -> Lookup:
    return Lookup(tuple(answer.hits), answer.runner_up, answer.threshold, answer.seq, answer.abstained)


def _as_json(generation: NewGeneration) -> dict[str, Any]:
    return {
        "prompt": generation.prompt,
        "output": generation.output,
        "checkpoint_id": generation.checkpoint_id,
        "mode": generation.mode,
        "seq": generation.seq,
        "splices": _splices(generation.splices),
    }


def _splices(splices: Sequence[Splice]) -> list[dict[str, Any]]:
    return [
        {
            "output_start": splice.output_start,
            "output_end": splice.output_end,
            "outcome": splice.outcome,
            "fact_id": splice.fact_id,
            "version": splice.version,
            "score": splice.score,
            "query": None if splice.query is None else base64.b64encode(splice.query).decode(),
        }
        for splice in splices
    ]
