"""The records of the inbox: proposed facts with what a person needs to judge them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypedDict, get_args

from colmlm.kb.facts.records import FactRecord, Review

Kind = Literal["any", "cited", "doubted", "contradicting", "unasked"]
KINDS: tuple[Kind, ...] = get_args(Kind)
IN_INBOX = 50  # unless another `limit` is given


class InboxFilters(TypedDict, total=False):
    """Choose which proposed facts to review: of a corpus, of a document, and of a `kind`.

    The kinds are those "cited" in outputs, those "doubted" by the check of the machine that marked them, those
    "contradicting" other facts, and those "unasked", without a question.
    """

    corpus: str | None
    document_id: int | None
    kind: Kind


class InboxSought(InboxFilters, total=False):
    """Choose a part of the inbox: at most `limit` facts past `after`, the `next_after` of the part before."""

    after: int
    limit: int


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Quote a document around a fact: ``text[start:end]`` is its span, and `text` begins at `offset` there."""

    document_id: int
    offset: int
    text: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Neighbour:
    """Another live fact that asks the same, in the same words; `same` where it says the same, but for upper case."""

    fact_id: int
    value: str
    question: str
    review: Review
    same: bool


@dataclass(frozen=True, slots=True)
class InboxItem:
    """A proposed fact to judge: how many of the newest outputs cite it (`uses`), and what was doubted about it.

    `doubt` is the code of what the check of the annotator found wrong with its question, None where it found nothing.
    It `contradicts` where one of the newest contradictions is of it and another fact.
    """

    fact: FactRecord
    uses: int
    doubt: str | None
    around: Surroundings | None
    neighbours: tuple[Neighbour, ...]
    contradicts: bool = False


@dataclass(frozen=True, slots=True)
class ReviewProgress:
    """Count how many facts are proposed, and how many that once were are accepted or rejected.

    None of them is counted beyond 10,000; `is_exact` is false then.
    """

    proposed: int
    accepted: int
    rejected: int
    is_exact: bool


@dataclass(frozen=True, slots=True)
class Inbox:
    """A part of the inbox, the facts first where most is at stake: cited ones by how often, doubted ones, those that
    contradict others, and the others, by document and id.

    `total` counts those that fit, up to 10,000, and `is_exact` tells if these are all. `progress` has the same scope.
    """

    items: tuple[InboxItem, ...]
    total: int
    is_exact: bool
    next_after: int | None
    progress: ReviewProgress
