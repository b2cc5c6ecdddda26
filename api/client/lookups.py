"""Lookups in a remote knowledge base, by questions and by queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, Unpack

import msgspec

from colmlm.api.client import only_there
from colmlm.api.client.api import Api
from colmlm.api.client.jobs import RemoteJobs
from colmlm.api.client.uploads import upload
from colmlm.api.nouns.lookups import AnswerMode, Calibrating
from colmlm.api.wire.answers import LookupAnswer, LookupAnswers
from colmlm.api.wire.requests import LOOKUPS, MAX_QUERIES, MAX_VECTORS, MSGPACK, OCTETS
from colmlm.kb.answers.records import Answer, AnswerOptions, AnswerThreshold
from colmlm.kb.errors import InvalidQuery, KeysetMismatch
from colmlm.kb.jobs.kinds import CalibrateAnswers, work_of
from colmlm.kb.log.records import OnRecord
from colmlm.kb.lookup.options import KEY, LookupOptions
from colmlm.kb.lookup.records import AsOfLookup, Lookup, LookupSpace

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_LOOKUPS = LOOKUPS.removeprefix("/v1")


@dataclass(frozen=True, slots=True)
class RemoteLookups:
    """The verbs of `api.nouns.lookups.LookupVerbs` over the API. Threads may share it. The token needs only the
    right `lookup`.

    The server answers every lookup, so a fact that was deleted before the request is never a hit. With `seq`, lookups
    are answered as of that change.
    """

    api: Api
    seq: int | None = None

    def require(self, checkpoint_id: str | None) -> None:
        """Raises `KeysetMismatch` where the server's keys are of another checkpoint than this one, if one is given."""
        space = self.space()
        if checkpoint_id is not None and space.checkpoint_id != checkpoint_id:
            raise KeysetMismatch(checkpoint_id, space.checkpoint_id)

    def as_of(self, seq: int) -> Self:
        """Gives the lookups as of change `seq`, over the same connections."""
        return replace(self, seq=seq)

    def space(self) -> LookupSpace:
        return self.api.get(_LOOKUPS, LookupSpace)

    def ask(
        self,
        question: str,
        *,
        as_of: int | None = None,
        **options: Unpack[LookupOptions],
    ) -> Lookup:
        past = self.seq if as_of is None else as_of
        asked = {"questions": [question], "as_of": past, **only_there.options(LookupOptions, options)}
        (told,) = self.api.ask("/lookups", LookupAnswers, asked).answers
        if told.redacted is None:
            return _lookup(told)
        return AsOfLookup(
            tuple(told.hits), told.runner_up, told.threshold, told.seq, told.abstained,
            redacted=told.redacted, unkeyed=told.unkeyed or 0,
        )  # fmt: skip

    def answer(
        self,
        question: str,
        *,
        mode: AnswerMode = "read",
        as_of: int | None = None,
        **options: Unpack[AnswerOptions],
    ) -> Answer:
        only_there.refuse(as_of=as_of)
        asked = {"question": question, "mode": mode, **only_there.options(AnswerOptions, options)}
        return self.api.once("/answers", Answer, asked)

    def answer_threshold(self) -> AnswerThreshold:
        return self.api.get("/answers/threshold", AnswerThreshold)

    def calibrate_answers(
        self, questions: Path | None, how: Calibrating, **who: Unpack[OnRecord]
    ) -> dict[str, Any]:
        only_there.refuse(actor=who["actor"])
        sent = upload(self.api, questions).upload_id if questions else None
        work = {**asdict(how), "corpora": list(how.corpora), "upload_id": sent, "reason": who["reason"]}
        return RemoteJobs(self.api).done(work_of(CalibrateAnswers.kind, work))

    def use_shipped_threshold(self, **who: Unpack[OnRecord]) -> AnswerThreshold:
        body = {"reason": who["reason"], "on_behalf_of": who["actor"] or None}
        return self.api.edit("/answers/threshold", AnswerThreshold, body, method="DELETE")

    def find(
        self, queries_BD: npt.NDArray[Any], *, checkpoint_id: str, **options: Unpack[LookupOptions]
    ) -> list[Lookup]:
        """Looks up queries as `kb.answers.ranked.RankedLookups.find` does, in batches of `MAX_VECTORS`, or as JSON in
        such of `MAX_QUERIES` where texts go with them.
        """
        import numpy as np  # a lookup by questions needs no arrays

        queries = np.ascontiguousarray(queries_BD, dtype="<f4")
        if queries.ndim != 2:
            raise InvalidQuery(f"its shape is {queries.shape}, not (batch, width)")
        said = {"as_of": self.seq, **only_there.options(LookupOptions, options)}
        if said.get("ranking", KEY) != KEY:
            return self._by_texts(queries, said | {"checkpoint_id": checkpoint_id})
        given = {"checkpoint_id": checkpoint_id, "dim": queries.shape[1]}
        given |= {name: value for name, value in said.items() if value is not None}
        found: list[Lookup] = []
        for start in range(0, len(queries), MAX_VECTORS):
            found += self._ask(queries[start : start + MAX_VECTORS], given, checkpoint_id)
        return found

    def _by_texts(self, queries_BD: npt.NDArray[np.float32], given: Mapping[str, Any]) -> list[Lookup]:
        texts: Sequence[str] = given.get("texts", ())
        found: list[Lookup] = []
        for start in range(0, len(queries_BD), MAX_QUERIES):
            rows = slice(start, start + MAX_QUERIES)
            asked = {**given, "queries": queries_BD[rows].tolist(), "texts": texts[rows]}
            found += map(_lookup, self.api.ask(_LOOKUPS, LookupAnswers, asked).answers)
        return found

    def _ask(
        self, queries_BD: npt.NDArray[np.float32], given: dict[str, Any], checkpoint_id: str
    ) -> list[Lookup]:
        try:
            response = self.api.connection.request(
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
            raise self.api.not_ours(error) from error
        if len(told.answers) != len(queries_BD):
            raise self.api.not_ours(ValueError(f"{len(told.answers)} answers to {len(queries_BD)} queries"))
        return [_lookup(answer) for answer in told.answers]


def _lookup(answer: LookupAnswer) -> Lookup:
    return Lookup(tuple(answer.hits), answer.runner_up, answer.threshold, answer.seq, answer.abstained)
