"""Reads sets of questions, their runs, and what came of them. The session comes first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from sqlalchemy import Select, func, select, text
from sqlalchemy.orm import Session

from colmlm.kb.errors import QuestionRunNotFound, QuestionSetNotFound
from colmlm.kb.questions.records import AskedItem, KeptQuestion, KeptSet, QuestionRun, Way
from colmlm.kb.tables import QuestionOutcomeRow, QuestionRow, QuestionRunRow, QuestionSetRow

MAX_ID = 2**63 - 1

_FACTS = text("""
SELECT question_id, array_agg(DISTINCT fact_id ORDER BY fact_id) AS fact_ids FROM (
    SELECT question_id, unnest(fact_ids) AS fact_id FROM question_outcome WHERE question_id = ANY(:ids)
    UNION ALL
    SELECT id, unnest(fact_ids) FROM question WHERE id = ANY(:ids)
) AS used GROUP BY question_id
""")


def set_row(session: Session, name: str, *, lock: bool = False) -> QuestionSetRow:
    """Gives the row of a set, locked against others who write it where asked. Raises `QuestionSetNotFound`."""
    statement = select(QuestionSetRow).where(QuestionSetRow.name == name)
    found = session.scalar(statement.with_for_update() if lock else statement) if "\x00" not in name else None
    if found is None:
        raise QuestionSetNotFound(name)
    return found


def sets(session: Session, name: str | None = None) -> list[KeptSet]:
    """Lists the sets by name (or the one of this name), each with its last run."""
    number = select(func.count()).where(QuestionRow.set_id == QuestionSetRow.id).scalar_subquery()
    statement = select(QuestionSetRow, number.label("number")).order_by(QuestionSetRow.name)
    if name is not None:
        statement = statement.where(QuestionSetRow.id == set_row(session, name).id)
    rows = session.execute(statement.execution_options(populate_existing=True)).all()
    newest = select(func.max(QuestionRunRow.id)).group_by(QuestionRunRow.set_id)
    runs = {
        found.question_set: found for found in _records(session, _runs().where(QuestionRunRow.id.in_(newest)))
    }
    return [
        KeptSet(row.name, row.corpus, number, row.actor, row.at, runs.get(row.name)) for row, number in rows
    ]


def questions_of(
    session: Session, set_id: int, after: int = 0, limit: int | None = None
) -> list[KeptQuestion]:
    """Lists the questions of a set in the order in which they were added."""
    statement = select(QuestionRow).where(QuestionRow.set_id == set_id, QuestionRow.id > after)
    rows = session.scalars(statement.order_by(QuestionRow.id).limit(limit)).all()
    facts = facts_of(session, [row.id for row in rows])
    return [
        KeptQuestion(row.id, row.text, tuple(row.expected), facts.get(row.id, ()), row.at) for row in rows
    ]


def facts_of(session: Session, question_ids: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """Gives the facts that each of these questions was taken with, or answered by in any run that is kept."""
    rows = session.execute(_FACTS, {"ids": list(question_ids)})
    return {row.question_id: tuple(row.fact_ids) for row in rows}


def runs(session: Session, name: str, before: int | None, limit: int) -> list[QuestionRun]:
    """Lists the runs of a set, newest first: those older than run `before` (None: all)."""
    statement = _runs().where(QuestionRunRow.set_id == set_row(session, name).id)
    if before is not None:
        statement = statement.where(QuestionRunRow.id < before)
    return _records(session, statement.order_by(QuestionRunRow.id.desc()).limit(limit))


def run_record(session: Session, run_id: int, name: str | None = None) -> QuestionRun:
    """Gives one run, of the set of this name if one is given. Raises `QuestionRunNotFound`."""
    statement = _runs().where(QuestionRunRow.id == (run_id if 0 < run_id <= MAX_ID else 0))
    if name is not None:
        statement = statement.where(QuestionRunRow.set_id == set_row(session, name).id)
    found = _records(session, statement)
    if not found:
        raise QuestionRunNotFound(run_id)
    return found[0]


def items(session: Session, run_id: int, after: int = 0, limit: int | None = None) -> list[AskedItem]:
    """Gives what came of the questions of a run, in the order in which they were asked, past the first `after`."""
    statement = select(QuestionOutcomeRow).where(QuestionOutcomeRow.run_id == run_id)
    rows = session.scalars(statement.order_by(QuestionOutcomeRow.id).offset(after).limit(limit))
    return [
        AskedItem(
            row.question, tuple(row.expected), row.value, row.fact_id, row.outcome, row.reason, row.score,
            row.question_id, tuple(row.fact_ids),
        )
        for row in rows
    ]  # fmt: skip


def _runs() -> Select[QuestionRunRow, str]:
    return select(QuestionRunRow, QuestionSetRow.name).join(
        QuestionSetRow, QuestionSetRow.id == QuestionRunRow.set_id
    )


def _records(session: Session, statement: Select[QuestionRunRow, str]) -> list[QuestionRun]:
    rows = session.execute(statement).all()
    return [_record(row, name) for row, name in rows]


def _record(row: QuestionRunRow, name: str) -> QuestionRun:
    return QuestionRun(
        run_id=row.id, question_set=name, how=cast(Way, row.how), threshold=row.threshold, keyset_id=row.keyset_id,
        checkpoint_id=row.checkpoint_id, reader=row.reader, first_seq=row.first_seq, seq=row.seq,
        asked=row.num_asked, right=row.num_right, wrong=row.num_wrong, abstained=row.num_abstained,
        skipped=row.num_skipped, actor=row.actor, at=row.at, seconds=row.seconds,
        accepted_only=row.accepted_only,
    )  # fmt: skip
