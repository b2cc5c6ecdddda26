"""Noting: keeps which lookups found nothing and which outputs were called wrong, and forgets them again. Session first.

A miss names the lookup. What was asked stays with the output alone, so redacting and withholding need not know of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime, timedelta

from sqlalchemy import delete, func, insert, select, text
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.orm import Session

from colmlm.kb.facts import suppression
from colmlm.kb.misses.records import WHOLE
from colmlm.kb.tables import GenerationRow, MissRow

GROUPS_LOCK = 0x636F6C6D0B


AT_ONCE = 10_000  # misses that are pruned in a transaction


def lock_groups(session: Session) -> None:
    """Keep others from writing groups until this transaction ends; to be called before the change log is locked."""
    session.execute(select(func.pg_advisory_xact_lock(GROUPS_LOCK)))


def note_miss(session: Session, generation_id: int, ordinals: Iterable[int]) -> None:
    """Keep that these lookups of an output found nothing."""
    if rows := [{"generation_id": generation_id, "ordinal": ordinal} for ordinal in ordinals]:
        session.execute(insert(MissRow), rows)


def groups_of(session: Session, generation_id: int) -> tuple[int, ...]:
    """Give the groups that the misses of an output are in."""
    of_output = select(MissRow.group_id).where(
        MissRow.generation_id == generation_id, MissRow.group_id.is_not(None)
    )
    return tuple(sorted({group_id for group_id in session.scalars(of_output) if group_id is not None}))


def note_wrong(session: Session, generation_id: int) -> None:
    """Keep that somebody called an output wrong. One whose lookups found nothing is a miss already."""
    missed = select(MissRow.ordinal).where(MissRow.generation_id == generation_id, MissRow.ordinal != WHOLE)
    if session.scalars(missed.limit(1)).first() is None:
        row = upsert(MissRow).values(generation_id=generation_id, ordinal=WHOLE)
        session.execute(row.on_conflict_do_nothing())


def forget_wrong(session: Session, generation_id: int) -> None:
    """Take back what `note_wrong` kept, where nobody calls the output wrong any more. Groups must be locked."""
    gone = delete(MissRow).where(MissRow.generation_id == generation_id, MissRow.ordinal == WHOLE)
    _recount(session, session.scalars(gone.returning(MissRow.group_id)).all())


def prune_misses(session: Session, older_than: timedelta) -> int:
    """Remove up to 10,000 misses of longer ago, with the outputs that said nothing, and say how many.

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
    """Count the misses of these groups anew, and drop those that have none."""
    if ids := sorted({group_id for group_id in group_ids if group_id is not None}):
        session.execute(_RECOUNT, {"ids": ids, "whole": WHOLE})
        session.execute(_DROP_EMPTY, {"ids": ids})
