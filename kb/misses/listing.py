"""Lists groups of misses with their questions, which are read from the outputs that asked them. Session first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Select, func, select, true, tuple_
from sqlalchemy.orm import Session

from colmlm.kb.errors import MissGroupNotFound
from colmlm.kb.log import audit
from colmlm.kb.log.records import ChangeRecord
from colmlm.kb.misses.questions import MissPlace, ShowTexts, questions
from colmlm.kb.misses.records import MissedQuestion, MissGroup, MissOrder, MissState
from colmlm.kb.tables import ChangeRow, FeedbackRow, GenerationRow, MissGroupRow, MissRow

READ = 500  # of a group's last misses, among which its different questions are
MAX_ID = 2**63 - 1


def groups(
    session: Session, state: MissState, order: MissOrder, after: int, limit: int, show: ShowTexts | None
) -> list[MissGroup]:
    """Gives groups of this state past the group `after`, or where that is not there any more from the first on."""
    by = MissGroupRow.asked if order == "asked" else MissGroupRow.last_at
    statement = select(MissGroupRow).where(MissGroupRow.state == state)
    last = session.get(MissGroupRow, after) if 0 < after <= MAX_ID else None
    if last is not None:
        statement = statement.where(tuple_(by, MissGroupRow.id) < (getattr(last, by.key), last.id))
    rows = session.scalars(statement.order_by(by.desc(), MissGroupRow.id.desc()).limit(limit))
    return _records(session, rows.all(), show)


def count(session: Session, state: MissState) -> int:
    of_state = select(func.count()).select_from(MissGroupRow).where(MissGroupRow.state == state)
    return session.scalar(of_state) or 0


def group(session: Session, group_id: int, show: ShowTexts | None) -> MissGroup:
    """Gives one group. Raises `MissGroupNotFound`."""
    found = session.get(MissGroupRow, group_id) if 0 < group_id <= MAX_ID else None
    if found is None:
        raise MissGroupNotFound([group_id])
    (record,) = _records(session, [found], show)
    return record


def _records(session: Session, rows: Sequence[MissGroupRow], show: ShowTexts | None) -> list[MissGroup]:
    last = _last_of(session, [row.id for row in rows])
    places = {row.id: last.get(row.id, MissPlace(row.generation_id, row.ordinal)) for row in rows}
    asked = questions(session, list(places.values()), show)
    decisions = _decisions(session, [row.seq for row in rows if row.seq is not None])
    return [
        MissGroup(
            group_id=row.id,
            state=row.state,
            question=asked.get(places[row.id], ""),
            asked=row.asked,
            wrong=row.wrong,
            last_at=row.last_at,
            generation_id=places[row.id].generation_id,
            ordinal=places[row.id].ordinal,
            fact_id=row.fact_id,
            decision=decisions.get(row.seq) if row.seq is not None else None,
        )
        for row in rows
    ]


def _last_of(session: Session, group_ids: Sequence[int]) -> dict[int, MissPlace]:
    """Gives the last miss of each group, each by one step in an index."""
    newest = (
        select(MissRow.generation_id, MissRow.ordinal)
        .where(MissRow.group_id == MissGroupRow.id)
        .order_by(MissRow.generation_id.desc())
        .limit(1)
        .lateral("newest")
    )
    of_groups = select(MissGroupRow.id, newest.c.generation_id, newest.c.ordinal).join(newest, true())
    rows = session.execute(of_groups.where(MissGroupRow.id == func.any(list(group_ids))))
    return {row.id: MissPlace(row.generation_id, row.ordinal) for row in rows}


def _decisions(session: Session, seqs: Sequence[int]) -> dict[int, ChangeRecord]:
    found = session.scalars(select(ChangeRow).where(ChangeRow.seq == func.any(list(seqs))))
    return {change.seq: audit.as_record(change) for change in found}


def asked_in(session: Session, group_id: int, show: ShowTexts | None) -> tuple[MissedQuestion, ...]:
    """Gives the different questions among the last misses of a group, newest first."""
    rows = session.execute(_newest(group_id)).all()
    asked = questions(session, [MissPlace(row.generation_id, row.ordinal) for row in rows], show)
    found: dict[tuple[str, bool], list[Any]] = {}
    for row in rows:
        question = asked.get(MissPlace(row.generation_id, row.ordinal), "")
        found.setdefault((question, row.accepted_only), []).append(row)
    proposed = _proposed(session, [row.generation_id for row in rows]) if show is None else {}
    return tuple(
        MissedQuestion(
            question,
            len(same),
            same[0].at,
            same[0].generation_id,
            same[0].ordinal,
            _first(same, proposed),
            accepted_only,
        )
        for (question, accepted_only), same in found.items()
    )


def _newest(group_id: int) -> Select[*tuple[Any, ...]]:
    return (
        select(MissRow.generation_id, MissRow.ordinal, GenerationRow.at, GenerationRow.accepted_only)
        .join(GenerationRow, GenerationRow.id == MissRow.generation_id)
        .where(MissRow.group_id == group_id)
        .order_by(MissRow.generation_id.desc(), MissRow.ordinal)
        .limit(READ)
    )


def _proposed(session: Session, generation_ids: Sequence[int]) -> dict[int, str]:
    """Gives the value that was proposed last for each of these outputs."""
    said = select(FeedbackRow.generation_id, FeedbackRow.value).where(
        FeedbackRow.generation_id == func.any(list(generation_ids)), FeedbackRow.value.is_not(None)
    )
    return {row.generation_id: row.value for row in session.execute(said.order_by(FeedbackRow.at))}


def _first(rows: Iterable[Any], proposed: dict[int, str]) -> str | None:
    return next((proposed[row.generation_id] for row in rows if row.generation_id in proposed), None)
