"""Counting: how many keys a keyset has, and how many facts lack one. Among millions each count takes seconds.

So nothing counts while the log is locked, and nothing that is asked often (tests/kb/switching/test_counting.py).
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Row, case, exists, func, select
from sqlalchemy.orm import Session

from colmlm.kb.errors import refusals
from colmlm.kb.facts.edits import is_kept
from colmlm.kb.keys import predicted
from colmlm.kb.keys.calibration import asks_by_person, mended_or_marked, question_keys
from colmlm.kb.keys.keysets import HEADS, head_of
from colmlm.kb.keys.records import KeysetRecord, Prediction
from colmlm.kb.tables import FactKeyRow, FactRow, KeysetRow


def count_keys(session: Session, keyset_id: int) -> KeysetRecord:
    """Give a keyset with the numbers of its keys, which takes seconds among millions: never while the log is locked.

    Raises `KeysetNotFound`.
    """
    found = _records(session, keyset_id)
    if not found:
        raise refusals.keyset_not_found(keyset_id)
    return found[0]


def all_counted(session: Session) -> list[KeysetRecord]:
    """Give all keysets by id, those retired too, with the numbers of their keys."""
    return _records(session, None)


def _records(session: Session, keyset_id: int | None) -> list[KeysetRecord]:
    num_keys = (
        select(func.count())
        .where(FactKeyRow.keyset_id == KeysetRow.id)
        .correlate(KeysetRow)
        .scalar_subquery()
    )
    numbers = num_keys.label("num_keys"), num_unkeyed().label("num_unkeyed")
    statement = HEADS.add_columns(*numbers).order_by(KeysetRow.id)
    if keyset_id is not None:
        statement = statement.where(KeysetRow.id == keyset_id)
    made = predicted.list_predictions(session)
    return [_record(row, made.get(row.keyset_id, ())) for row in session.execute(statement)]


def num_unkeyed() -> Any:
    """Give an expression (SQL) for the length of the rekey queue of the enclosing statement's keyset."""
    # These are two counts and not one with OR, which would look up a key for every fact instead of joining.
    keyed = exists().where(FactKeyRow.keyset_id == KeysetRow.id, FactKeyRow.fact_id == FactRow.id)
    asked = keyed.where(FactKeyRow.kind == "question").correlate(KeysetRow, FactRow)
    keyed = keyed.correlate(KeysetRow, FactRow)
    kept = select(func.count()).select_from(FactRow).where(is_kept(FactRow.id))
    unasked = kept.where(FactRow.document_id.is_not(None), FactRow.question.is_not(None), keyed, ~asked)
    has_questions = question_keys(KeysetRow.id).correlate(KeysetRow)
    by_people = unasked.where(FactRow.id.in_(mended_or_marked()), asks_by_person())
    lacking_question = case((has_questions, unasked.scalar_subquery()), else_=by_people.scalar_subquery())
    return kept.where(~keyed).scalar_subquery() + lacking_question


def _record(row: Row[Any], predictions: tuple[Prediction, ...]) -> KeysetRecord:
    numbers = {"num_unkeyed": 0} if row.state == "retired" else {}
    left = sum(one.left for one in predictions)
    return KeysetRecord(**head_of(row) | numbers, num_predicted=left, predictions=predictions)


def num_indexed_keys(session: Session, keyset_id: int) -> int:
    """Count the keys that an index of this keyset holds."""
    statement = select(func.count()).where(FactKeyRow.keyset_id == keyset_id, is_kept(FactKeyRow.fact_id))
    return session.scalar(statement) or 0
