"""The records of facts that are compared: those that contradict, those that say the same, and stale ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypedDict

from colmlm.kb.facts.records import FactRecord

Kind = Literal["contradictions", "duplicates"]
Staleness = Literal["replaced", "corrected-before"]


class ComparedPart(TypedDict, total=False):
    """Which part of a list to give: of a corpus, past the number `after`, at most `limit`."""

    corpus: str | None
    after: int
    limit: int


class PairsSought(ComparedPart, total=False):
    """Which pairs to list: where `held`, the contradictions of which somebody said that both hold."""

    held: bool


@dataclass(frozen=True, slots=True)
class FactPair:
    """Two live facts that are compared, the older first. Of two that contradict, the fact `answering` answers.

    They are alike by the words of their questions, or where there is a `score`, by their sentences (1) or their keys;
    then none answers before the other. `held_seq` is the change by which somebody said that both hold.
    """

    pair_id: int
    fact: FactRecord
    other: FactRecord
    score: float | None
    answering: int | None
    held_seq: int | None


@dataclass(frozen=True, slots=True)
class PairPage:
    """A part of a list of pairs. They are not counted beyond 10,000; `is_exact` is false where there are more."""

    pairs: tuple[FactPair, ...]
    total: int
    is_exact: bool
    next_after: int | None


@dataclass(frozen=True, slots=True)
class StaleFact(FactRecord):
    """A live fact whose document has a newer text: it was restored after that came, or corrected before."""

    why: Staleness = "replaced"


@dataclass(frozen=True, slots=True)
class StalePage:
    """A part of the list of stale facts, counted as pairs are."""

    facts: tuple[StaleFact, ...]
    total: int
    is_exact: bool
    next_after: int | None


@dataclass(frozen=True, slots=True)
class AlsoSaid:
    """A fact, and the other live facts that say the same to the same question or in the same sentence."""

    fact_id: int
    by: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ComparedCounts:
    """How many contradictions, duplicates and stale facts there are; none is counted beyond 10,000."""

    contradictions: int
    duplicates: int
    stale: int
