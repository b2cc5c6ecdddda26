"""Reads and writes sets of questions, their runs and their outcomes. The session is the first parameter."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import cast

from sqlalchemy import Select, delete, func, select, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from colmlm.kb.answers.answering import MAX_QUESTION
from colmlm.kb.errors import InvalidQuestions, InvalidValue, QuestionSetNotFound, refusals
from colmlm.kb.facts import reading
from colmlm.kb.facts.redaction import redact_json
from colmlm.kb.log import audit
from colmlm.kb.log.audit import signature_of
from colmlm.kb.questions.records import AskedItem, DraftQuestion, KeptQuestion, KeptSet, QuestionRun, Way
from colmlm.kb.removal import quotations
from colmlm.kb.tables import QuestionOutcomeRow, QuestionRow, QuestionRunRow, QuestionSetRow
from colmlm.kb.texts.wording import Finder

MAX_ID = 2**63 - 1

_FACTS = text("""
SELECT question_id, array_agg(DISTINCT fact_id ORDER BY fact_id) AS fact_ids FROM (
    SELECT question_id, unnest(fact_ids) AS fact_id FROM question_outcome WHERE question_id = ANY(:ids)
    UNION ALL
    SELECT id, unnest(fact_ids) FROM question WHERE id = ANY(:ids)
) AS used GROUP BY question_id
""")


def set_row(session: Session, name: str, *, lock: bool = False) -> QuestionSetRow:
    """Give the row of a set, with `lock` locked against others who write it. Raises `QuestionSetNotFound`."""
    statement = select(QuestionSetRow).where(QuestionSetRow.name == name)
    found = session.scalar(statement.with_for_update() if lock else statement) if "\x00" not in name else None
    if found is None:
        raise QuestionSetNotFound(name)
    return found


def list_sets(session: Session, name: str | None = None) -> list[KeptSet]:
    """List the sets by name (or the one of this name), each with its last run."""
    number = select(func.count()).where(QuestionRow.set_id == QuestionSetRow.id).scalar_subquery()
    statement = select(QuestionSetRow, number.label("number")).order_by(QuestionSetRow.name)
    if name is not None:
        statement = statement.where(QuestionSetRow.id == set_row(session, name).id)
    rows = session.execute(statement.execution_options(populate_existing=True)).all()
    newest = select(func.max(QuestionRunRow.id)).group_by(QuestionRunRow.set_id)
    runs = {
        found.question_set: found
        for found in _records(session, _select_question_runs().where(QuestionRunRow.id.in_(newest)))
    }
    return [
        KeptSet(row.name, row.corpus, number, row.actor, row.at, runs.get(row.name)) for row, number in rows
    ]


def questions_of_set(
    session: Session, set_id: int, after: int = 0, limit: int | None = None
) -> list[KeptQuestion]:
    """List the questions of a set in the order in which they were added."""
    statement = select(QuestionRow).where(QuestionRow.set_id == set_id, QuestionRow.id > after)
    rows = session.scalars(statement.order_by(QuestionRow.id).limit(limit)).all()
    facts = facts_of_questions(session, [row.id for row in rows])
    return [
        KeptQuestion(row.id, row.text, tuple(row.expected), facts.get(row.id, ()), row.at) for row in rows
    ]


def facts_of_questions(session: Session, question_ids: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """Give for each question the facts of the output it was taken from, and those in its answers of stored runs."""
    rows = session.execute(_FACTS, {"ids": list(question_ids)})
    return {row.question_id: tuple(row.fact_ids) for row in rows}


def list_runs(session: Session, name: str, before: int | None, limit: int) -> list[QuestionRun]:
    """List the runs of a set, newest first: those older than run `before` (None: all)."""
    statement = _select_question_runs().where(QuestionRunRow.set_id == set_row(session, name).id)
    if before is not None:
        statement = statement.where(QuestionRunRow.id < before)
    return _records(session, statement.order_by(QuestionRunRow.id.desc()).limit(limit))


def run_record(session: Session, run_id: int, name: str | None = None) -> QuestionRun:
    """Give one run, of the set of this name if one is given. Raises `QuestionRunNotFound`."""
    statement = _select_question_runs().where(QuestionRunRow.id == (run_id if 0 < run_id <= MAX_ID else 0))
    if name is not None:
        statement = statement.where(QuestionRunRow.set_id == set_row(session, name).id)
    found = _records(session, statement)
    if not found:
        raise refusals.question_run_not_found(run_id)
    return found[0]


def list_items(session: Session, run_id: int, after: int = 0, limit: int | None = None) -> list[AskedItem]:
    """List what came of each question of a run, in the order asked, without the first `after`."""
    statement = select(QuestionOutcomeRow).where(QuestionOutcomeRow.run_id == run_id)
    rows = session.scalars(statement.order_by(QuestionOutcomeRow.id).offset(after).limit(limit))
    return [
        AskedItem(
            row.question, tuple(row.expected), row.value, row.fact_id, row.outcome, row.reason, row.score,
            row.question_id, tuple(row.fact_ids),
        )
        for row in rows
    ]  # fmt: skip


def _select_question_runs() -> Select[QuestionRunRow, str]:
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
        accepted_only=row.accepted_only, corpora=tuple(row.corpora),
    )  # fmt: skip


# Writes sets of questions. Session first; nothing commits. Erasures must be held off, since texts are stored.

MOST = 5_000  # questions of a set
MOST_VALUES = 50  # of a question
SET_NAME = r"^[A-Za-z0-9_][A-Za-z0-9._-]*$"


def check_items(questions: Iterable[DraftQuestion]) -> None:
    """Raise `InvalidQuestions` for the first question that cannot be asked, or whose values cannot be stored."""
    for number, one in enumerate(questions, 1):
        try:
            audit.check_text("question", one.question, blank=False, limit=MAX_QUESTION)
            for value in one.expected:
                audit.check_text("expected value", value, blank=False)
        except InvalidValue as error:
            raise InvalidQuestions(f"number {number} has an invalid {error.field}: {error.cause}") from error
        if len(one.expected) > MOST_VALUES:
            raise InvalidQuestions(
                f"number {number} has {len(one.expected)} values. Give it at most {MOST_VALUES}"
            )


def open_set(session: Session, name: str, corpus: str | None, actor: str) -> QuestionSetRow:
    """Give the row of a set, locked, and make the set where it is missing. A given corpus becomes the set's.

    Raises `InvalidValue` for a bad name, and `CorpusNotFound`.
    """
    if len(name) > 100 or not re.match(SET_NAME, name) or name.endswith("\n"):
        raise InvalidValue("name of the set", "it may have only letters, digits and . _ -")
    if corpus is not None:
        audit.check_text("corpus", corpus)
        reading.require_corpus(session, corpus)
    new = insert(QuestionSetRow).values(name=name, corpus=corpus, actor=signature_of(actor).actor)
    kept = func.coalesce(new.excluded.corpus, QuestionSetRow.corpus)
    made = new.on_conflict_do_update(index_elements=["name"], set_={"corpus": kept})
    return session.scalars(
        made.returning(QuestionSetRow), execution_options={"populate_existing": True}
    ).one()


def put_set(
    session: Session, set_id: int, questions: Sequence[DraftQuestion], fact_ids: Sequence[int] = ()
) -> None:
    """Add questions to a set. One that the set has already gets the new values.

    Raises `InvalidQuestions` where the set would have too many.
    """
    finder = quotations.finder_for_facts(session, fact_ids)
    statement = select(QuestionRow).where(QuestionRow.set_id == set_id)
    there = {row.text: row for row in session.scalars(statement.order_by(QuestionRow.id.desc()))}
    for one in questions:
        row = there.setdefault(one.question, QuestionRow(set_id=set_id))
        _fill_question_row(row, one, fact_ids, finder)
    if len(there) > MOST:
        raise InvalidQuestions(f"the set would grow to {len(there):,}, above {MOST:,}. Use another set")
    session.add_all(there.values())
    session.flush()


def edit_set(session: Session, set_id: int, question_id: int, one: DraftQuestion) -> None:
    """Give a question another text and other values. Raises `QuestionNotFound`."""
    found = select(QuestionRow).where(QuestionRow.set_id == set_id, QuestionRow.id == question_id)
    row = session.scalar(found.with_for_update())
    if row is None:
        raise refusals.question_not_found([question_id])
    _fill_question_row(row, one, row.fact_ids, quotations.finder_for_facts(session, row.fact_ids))
    session.flush()


def remove_questions(session: Session, set_id: int, question_ids: Sequence[int]) -> None:
    """Remove these questions, all or none. What came of them in runs stays. Raises `QuestionNotFound`."""
    if not question_ids:
        raise InvalidValue("questions", "none is named. Name at least one id")
    gone = delete(QuestionRow).where(
        QuestionRow.set_id == set_id, QuestionRow.id == func.any(list(question_ids))
    )
    removed = set(session.scalars(gone.returning(QuestionRow.id)))
    if missing := sorted(set(question_ids) - removed):
        raise refusals.question_not_found(missing)


def _fill_question_row(row: QuestionRow, one: DraftQuestion, fact_ids: Sequence[int], finder: Finder) -> None:
    row.text = redact_json(one.question, finder)
    row.expected = redact_json(list(dict.fromkeys(one.expected)), finder)
    row.fact_ids, row.at = list(fact_ids), datetime.now(UTC)
