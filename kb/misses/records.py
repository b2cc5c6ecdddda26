"""The records of misses."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal, TypedDict

from colmlm.kb.log.records import ChangeRecord

MissState = Literal["open", "dismissed", "solved"]
MissSort = Literal["asked", "newest"]
MISSES_LISTED = 20  # groups, unless another `limit` is given
WHOLE = -1  # in the place of a lookup's ordinal: the output as a whole, which somebody called wrong


class MissSearch(TypedDict, total=False):
    """Choose which groups to list: those of a state ("open"), by how often they were asked ("asked") or "newest" first.

    `after` is the id of the last group of the page before, and `nearest` (3) how many facts to find near each group.
    """

    state: MissState
    sort: MissSort
    after: int
    limit: int
    nearest: int


@dataclass(frozen=True, slots=True)
class NearFact:
    """A live fact near what was asked, and its document. `score` is the cosine of its key with the query, None where
    words found it.
    """

    fact_id: int
    value: str
    question: str | None
    score: float | None
    document_id: int | None = None


@dataclass(frozen=True, slots=True)
class MissGroup:
    """Questions near one another that found nothing: `asked` times, last as lookup `ordinal` of `generation_id`.

    `wrong` of these are outputs that somebody called wrong; then `ordinal` may be -1. `question` is what was asked
    last, without what was erased since. `decision` is the change that dismissed, solved or reopened the group, and
    `fact_id` the fact that solved it. `nearest` are the live facts near it now.
    """

    group_id: int
    state: str
    question: str
    asked: int
    wrong: int
    last_at: datetime
    generation_id: int
    ordinal: int
    fact_id: int | None
    decision: ChangeRecord | None
    nearest: tuple[NearFact, ...] = ()


@dataclass(frozen=True, slots=True)
class MissPage:
    """A page of groups, and the number of all of this state. `ungrouped` misses are in none yet: a worker groups them.

    `kept` is false where the settings keep no questions; then there are no groups. `next_after` is None on the last
    page.
    """

    groups: tuple[MissGroup, ...]
    total: int
    ungrouped: int
    kept: bool
    next_after: int | None


@dataclass(frozen=True, slots=True)
class MissedQuestion:
    """One question of a group, as often as it was asked lately, with its last output and the value that was proposed
    for it last. Where it is `accepted_only`, it was asked for without proposed facts, and is asked again so; and of the
    `corpora` that were named.
    """

    question: str
    asked: int
    last_at: datetime
    generation_id: int
    ordinal: int
    proposed: str | None
    accepted_only: bool = False
    corpora: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MissDetails:
    """A group with the different questions among its last 500 misses, newest first."""

    group: MissGroup
    questions: tuple[MissedQuestion, ...]


@dataclass(frozen=True, slots=True)
class AskedAgain:
    """A question that was asked again, and whether it `found` the fact."""

    question: str
    generation_id: int
    found: bool


@dataclass(frozen=True, slots=True)
class Solving:
    """The questions of a group that were asked again. Where all find the fact it is `solved`, by change `seq`."""

    group_id: int
    fact_id: int
    solved: bool
    seq: int | None
    asked: tuple[AskedAgain, ...]
