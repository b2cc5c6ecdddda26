"""Writes sets of questions. Session first; nothing commits. Erasures must be held off, since texts are stored."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from sqlalchemy import delete, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from colmlm.kb.answers.answering import MAX_QUESTION
from colmlm.kb.errors import InvalidQuestions, InvalidValue, QuestionNotFound
from colmlm.kb.facts import kept_questions, reading
from colmlm.kb.facts.redaction import redact_json
from colmlm.kb.log import audit
from colmlm.kb.log.origin import signed
from colmlm.kb.questions.records import DraftQuestion
from colmlm.kb.tables import QuestionRow, QuestionSetRow
from colmlm.kb.texts.wording import Finder

MOST = 5_000  # questions of a set
MOST_VALUES = 50  # of a question
SET_NAME = r"^[A-Za-z0-9_][A-Za-z0-9._-]*$"


def check(questions: Iterable[DraftQuestion]) -> None:
    """Raises `InvalidQuestions` for the first that cannot be asked, or whose values cannot be stored."""
    for number, one in enumerate(questions, 1):
        try:
            audit.check_text("question", one.question, blank=False, limit=MAX_QUESTION)
            for value in one.expected:
                audit.check_text("expected value", value, blank=False)
        except InvalidValue as error:
            raise InvalidQuestions(f"number {number}: {error}".removesuffix(".")) from error
        if len(one.expected) > MOST_VALUES:
            raise InvalidQuestions(f"number {number} has more than {MOST_VALUES} values")


def opened(session: Session, name: str, corpus: str | None, actor: str) -> QuestionSetRow:
    """Gives the set of this name, locked; a new one where there is none. A corpus that is given becomes the set's.

    Raises `InvalidValue` for a name that is none, and `CorpusNotFound`.
    """
    if len(name) > 100 or not re.match(SET_NAME, name) or name.endswith("\n"):
        raise InvalidValue("name of the set", "it has other characters than letters, digits and . _ -")
    if corpus is not None:
        audit.check_text("corpus", corpus)
        reading.require_corpus(session, corpus)
    new = insert(QuestionSetRow).values(name=name, corpus=corpus, actor=signed(actor).actor)
    kept = func.coalesce(new.excluded.corpus, QuestionSetRow.corpus)
    made = new.on_conflict_do_update(index_elements=["name"], set_={"corpus": kept})
    return session.scalars(
        made.returning(QuestionSetRow), execution_options={"populate_existing": True}
    ).one()


def put(
    session: Session, set_id: int, questions: Sequence[DraftQuestion], fact_ids: Sequence[int] = ()
) -> None:
    """Adds these questions to a set; one that is there already gets these values in place of its own.

    Raises `InvalidQuestions` where the set would have too many.
    """
    finder = kept_questions.erased_lately(session, fact_ids)
    statement = select(QuestionRow).where(QuestionRow.set_id == set_id)
    there = {row.text: row for row in session.scalars(statement.order_by(QuestionRow.id.desc()))}
    for one in questions:
        row = there.setdefault(one.question, QuestionRow(set_id=set_id))
        _say(row, one, fact_ids, finder)
    if len(there) > MOST:
        raise InvalidQuestions(f"the set would have {len(there):,}, and {MOST:,} are taken")
    session.add_all(there.values())
    session.flush()


def edit(session: Session, set_id: int, question_id: int, one: DraftQuestion) -> None:
    """Gives a question another text and other values. Raises `QuestionNotFound`."""
    found = select(QuestionRow).where(QuestionRow.set_id == set_id, QuestionRow.id == question_id)
    row = session.scalar(found.with_for_update())
    if row is None:
        raise QuestionNotFound([question_id])
    _say(row, one, row.fact_ids, kept_questions.erased_lately(session, row.fact_ids))
    session.flush()


def remove(session: Session, set_id: int, question_ids: Sequence[int]) -> None:
    """Removes these questions, all or none. What came of them in runs stays. Raises `QuestionNotFound`."""
    if not question_ids:
        raise InvalidValue("questions", "none is named")
    gone = delete(QuestionRow).where(
        QuestionRow.set_id == set_id, QuestionRow.id == func.any(list(question_ids))
    )
    removed = set(session.scalars(gone.returning(QuestionRow.id)))
    if missing := sorted(set(question_ids) - removed):
        raise QuestionNotFound(missing)


def _say(row: QuestionRow, one: DraftQuestion, fact_ids: Sequence[int], finder: Finder) -> None:
    row.text = redact_json(one.question, finder)
    row.expected = redact_json(list(dict.fromkeys(one.expected)), finder)
    row.fact_ids, row.at = list(fact_ids), datetime.now(UTC)
