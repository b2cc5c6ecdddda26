"""The records of misses."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, TypedDict

from sqlalchemy import delete, func, insert, select, text
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.orm import Session

from colmlm.kb.facts import suppression
from colmlm.kb.log.records import ChangeRecord
from colmlm.kb.tables import GenerationRow, MissRow

MissState = Literal["open", "dismissed", "solved"]
MissOrder = Literal["asked", "newest"]
MISSES_LISTED = 20  # groups, unless another `limit` is given
WHOLE = -1  # in the place of a lookup's ordinal: the output as a whole, which somebody called wrong


class MissSearch(TypedDict, total=False):
    """Which groups to list: those of a state ("open"), by how often they were asked ("asked") or "newest" first.

    `after` is the id of the last group of the page before, and `nearest` (3) how many facts to find near each group.
    """

    state: MissState
    order: MissOrder
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
    for it last. Where it is `accepted_only`, it was asked for without proposed facts, and is asked again so.
    """

    question: str
    asked: int
    last_at: datetime
    generation_id: int
    ordinal: int
    proposed: str | None
    accepted_only: bool = False


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


# Noting: keeps which lookups found nothing and which outputs were called wrong, and forgets them again.
# Session first.
#
# A miss names the lookup. What was asked stays with the output alone, so redacting and withholding need not
# know of it.

GROUPS_LOCK = 0x636F6C6D0B
AT_ONCE = 10_000  # misses that are pruned in a transaction


def lock_groups(session: Session) -> None:
    """Keeps others from writing groups until this transaction ends; to be called before the change log is locked."""
    session.execute(select(func.pg_advisory_xact_lock(GROUPS_LOCK)))


def note_miss(session: Session, generation_id: int, ordinals: Iterable[int]) -> None:
    """Keeps that these lookups of an output found nothing."""
    if rows := [{"generation_id": generation_id, "ordinal": ordinal} for ordinal in ordinals]:
        session.execute(insert(MissRow), rows)


def groups_of(session: Session, generation_id: int) -> tuple[int, ...]:
    """Gives the groups that the misses of an output are in."""
    of_output = select(MissRow.group_id).where(
        MissRow.generation_id == generation_id, MissRow.group_id.is_not(None)
    )
    return tuple(sorted({group_id for group_id in session.scalars(of_output) if group_id is not None}))


def note_wrong(session: Session, generation_id: int) -> None:
    """Keeps that somebody called an output wrong. One whose lookups found nothing is a miss already."""
    missed = select(MissRow.ordinal).where(MissRow.generation_id == generation_id, MissRow.ordinal != WHOLE)
    if session.scalars(missed.limit(1)).first() is None:
        row = upsert(MissRow).values(generation_id=generation_id, ordinal=WHOLE)
        session.execute(row.on_conflict_do_nothing())


def forget_wrong(session: Session, generation_id: int) -> None:
    """Takes back what `note_wrong` kept, where nobody calls the output wrong any more. Groups must be locked."""
    gone = delete(MissRow).where(MissRow.generation_id == generation_id, MissRow.ordinal == WHOLE)
    _recount(session, session.scalars(gone.returning(MissRow.group_id)).all())


def prune_misses(session: Session, older_than: timedelta) -> int:
    """Removes up to 10,000 misses of longer ago, with the outputs that said nothing, and says how many.

    Outputs that said something stay. Groups without any miss go.
    """
    suppression.hold_off_erasure(session)
    lock_groups(session)
    before: datetime = session.scalars(select(func.clock_timestamp() - older_than)).one()
    old = select(MissRow.generation_id, MissRow.ordinal, MissRow.group_id).where(MissRow.at < before)
    rows = session.execute(old.order_by(MissRow.at).limit(AT_ONCE)).all()
    ids = [row.generation_id for row in rows]
    silent = select(GenerationRow.id).where(GenerationRow.id == func.any(ids), GenerationRow.output == "")
    gone = list(session.scalars(silent))
    touched = set(session.scalars(select(MissRow.group_id).where(MissRow.generation_id == func.any(gone))))
    session.execute(delete(MissRow).where(MissRow.generation_id == func.any(ids), MissRow.at < before))
    session.execute(delete(GenerationRow).where(GenerationRow.id == func.any(gone)))
    _recount(session, touched | {row.group_id for row in rows})
    return len(rows)


# The oldest miss that is left leads the group, as long as its leader is not there.
_RECOUNT = text("""
UPDATE miss_group g SET asked = n.asked, wrong = n.wrong, last_at = coalesce(n.last_at, g.last_at),
    generation_id = coalesce(n.generation_id, g.generation_id), ordinal = coalesce(n.ordinal, g.ordinal)
FROM (
    SELECT of.id, count(m.generation_id) AS asked, count(*) FILTER (WHERE m.ordinal = :whole) AS wrong,
        max(o.at) AS last_at,
        (array_agg(m.generation_id ORDER BY m.generation_id, m.ordinal))[1] AS generation_id,
        (array_agg(m.ordinal ORDER BY m.generation_id, m.ordinal))[1] AS ordinal
    FROM miss_group of LEFT JOIN miss m ON m.group_id = of.id LEFT JOIN generation o ON o.id = m.generation_id
    WHERE of.id = ANY(CAST(:ids AS bigint[])) GROUP BY of.id
) AS n
WHERE g.id = n.id
""")
_DROP_EMPTY = text("DELETE FROM miss_group WHERE id = ANY(CAST(:ids AS bigint[])) AND asked = 0")


def _recount(session: Session, group_ids: Collection[int | None]) -> None:
    """Counts the misses of these groups anew, and drops those that have none."""
    if ids := sorted({group_id for group_id in group_ids if group_id is not None}):
        session.execute(_RECOUNT, {"ids": ids, "whole": WHOLE})
        session.execute(_DROP_EMPTY, {"ids": ids})
