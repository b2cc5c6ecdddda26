"""Hearing: asks one question in one way; gives what was said, what was likeliest, and where that was looked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from colmlm.kb.answers.answering import Answering
from colmlm.kb.answers.ranked import RankedLookups
from colmlm.kb.answers.records import SaidPart
from colmlm.kb.keys.rekey import Encoder
from colmlm.kb.lookup.options import READER
from colmlm.kb.lookup.records import Lookup
from colmlm.kb.questions.records import Way

LEAST = {"words": -1.0, "reader": 0.0}  # thresholds that anything reaches


@dataclass(frozen=True, slots=True)
class Heard:
    """What a question was answered with: `value`, None where nothing was said.

    `best` is what was likeliest, also below the threshold. `fact_ids` are the facts in it, and `fact_id` the one that
    says most of the value. Where it was `withheld`, these are deleted.
    """

    value: str | None
    fact_id: int | None
    fact_ids: tuple[int, ...]
    score: float
    threshold: float
    withheld: bool
    best: str | None


class Asker(Protocol):
    """Asks questions in one way."""

    @property
    def way(self) -> Way: ...

    @property
    def reader(self) -> str | None:
        """The digest of the reader, where this way has one read."""
        ...

    @property
    def accepted_only(self) -> bool:
        """Whether no proposed fact answers."""
        ...

    def ask(self, question: str) -> Heard: ...

    def looked_in(self, question: str) -> Sequence[str]:
        """Gives the texts among which the answer is chosen, as they say things now."""
        ...


@dataclass(frozen=True, slots=True)
class ByAnswers:
    """Asks as `colmlm ask` does: in the mode "read", or "paper"."""

    answering: Answering
    way: Way = "read"
    threshold: float | None = None
    accepted_only: bool = False

    @property
    def reader(self) -> str | None:
        return self.answering.reader.digest if self.way == "read" else None

    def ask(self, question: str) -> Heard:
        asked = self.answering.asked(
            question, self.way, threshold=self.threshold, nearest=0, accepted_only=self.accepted_only
        )
        answer, best = asked.answer, asked.best
        if self.way == "paper" and best is None:
            best = next(iter(self.looked_in(question)), None)
        most = _most(asked.parts)
        threshold = answer.threshold if asked.asked_at is None else asked.asked_at
        return Heard(answer.answer, most, asked.under, answer.score, threshold, answer.withheld, best)

    def looked_in(self, question: str) -> Sequence[str]:
        if self.way == "paper":
            hits = self.answering.nearest_hits(question, accepted_only=self.accepted_only)
            return [hit.value for hit in hits]
        return self.answering.looked_in(question, accepted_only=self.accepted_only)


@dataclass(frozen=True, slots=True)
class ByRanking:
    """Asks as a lookup does that finds facts by more than their keys: by "words", or by the "reader"."""

    answering: Answering
    lookups: RankedLookups
    encoder: Encoder
    way: Way
    threshold: float | None = None
    accepted_only: bool = False

    @property
    def reader(self) -> str | None:
        return self.answering.reader.digest if self.way == READER else None

    def ask(self, question: str) -> Heard:
        lookup = self._find(question, self.threshold)
        if lookup.hits:
            hit = lookup.hits[0]
            said = (hit.value, hit.fact_id, (hit.fact_id,), hit.score)
            return Heard(*said, lookup.threshold, False, hit.value)
        gone = () if lookup.abstained is None else (lookup.abstained,)
        below = None if gone else next(iter(self._find(question, LEAST[self.way]).hits), None)
        near = gone if below is None else (below.fact_id,)
        best, score = (None, 0.0) if below is None else (below.value, below.score)
        return Heard(None, None, near, score, lookup.threshold, bool(gone), best)

    def looked_in(self, question: str) -> Sequence[str]:
        return self.answering.looked_in(question, accepted_only=self.accepted_only)

    def _find(self, question: str, threshold: float | None) -> Lookup:
        (found,) = self.lookups.find(
            self.encoder.encode_questions([question]),
            checkpoint_id=self.encoder.checkpoint.checkpoint_id,
            ranking=self.way,
            texts=[question],
            threshold=threshold,
            accepted_only=self.accepted_only,
        )
        return found


def _most(parts: Sequence[SaidPart]) -> int | None:
    return max(parts, key=lambda part: part.end - part.start).fact_id if parts else None
