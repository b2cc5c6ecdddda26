"""The records of answers to questions."""

from __future__ import annotations

from dataclasses import dataclass

from colmlm.kb.facts.records import Source
from colmlm.kb.lookup.records import AskedQuery

NEAREST = 3  # passages shown with an answer
NOTHING = "Nothing in the knowledge base answers this."


@dataclass(frozen=True, slots=True)
class SaidFact:
    """A live fact that a passage or an answer says, in its version of now."""

    fact_id: int
    version: int
    value: str


@dataclass(frozen=True, slots=True)
class NearbyPassage:
    """A sentence near a question, with the one before it, as it says things now, and the live facts in it.

    What was deleted or erased shows as U+2588, and `source` is the stretch it stands for. `score` is that of the search
    for sentences, a cosine and a share of the best BM25; it orders passages of one question and says nothing beyond.
    """

    text: str
    source: Source | None
    score: float
    facts: tuple[SaidFact, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """What the knowledge base says to a question.

    `answer` is None where nothing answers it: it abstained. Is a deleted fact the best place, `withheld` is true, and
    nothing else is said in its stead. `score` is the estimated probability that the answer is right. `facts` are those
    that it overlaps, and `source` is where its document says it, None for a fact without a document. `seq` is the last
    change of the log before the answer was decided. `generation_id` is the output that it is stored as, None where
    answers are not kept.
    """

    question: str
    answer: str | None
    score: float
    threshold: float
    facts: tuple[SaidFact, ...]
    source: Source | None
    withheld: bool
    nearest: tuple[NearbyPassage, ...]
    seq: int
    generation_id: int | None = None

    @property
    def abstained(self) -> bool:
        return self.answer is None


@dataclass(frozen=True, slots=True)
class SaidPart:
    """A live fact in an answer: ``answer[start:end] == value[part_start:part_end]`` of its version.

    From `quoted_start` to `quoted_end` its document says it, or what a correction took the place of; None without one.
    """

    fact_id: int
    version: int
    start: int
    end: int
    part_start: int
    part_end: int
    quoted_start: int | None = None
    quoted_end: int | None = None


@dataclass(frozen=True, slots=True)
class AnsweredQuestion:
    """An answer with what is stored of it beside: the query it was asked as, and the facts in it, in order.

    `query` is None where nothing was encoded.
    """

    answer: Answer
    query: AskedQuery | None = None
    parts: tuple[SaidPart, ...] = ()
