"""Question keys of documents' facts: those that people asked for, and those of all facts where a keyset has them.

A question that a person wrote gets a key in every keyset. Questions of an annotator get keys only where a keyset is
asked for them: once it has one, every later rekey makes them for all its facts.

That there is none takes to read the index of all keys, tens of thousands of pages among ten million. So it is noted up
to which key there was none, and only what came since is looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import and_, exists, func, or_, select, update
from sqlalchemy.orm import Session

from colmlm.kb.tables import ChangeRow, FactKeyRow, FactPastRow, FactRow, KeysetRow

_FEW = 10_000  # keys since, up to which each is looked at; of more the whole index takes less, as it leaves out rows
_NOTED_EACH = 500  # keys, so that not each fact that is added writes a note


def asks_by_person() -> Any:
    """Build a condition (SQL): a person wrote the question of this document's fact.

    The fact asked something else before, or a person marked it. A former question that an undo brought back counts.
    """
    asked_otherwise = FactPastRow.question.is_distinct_from(FactRow.question)
    changed = exists().where(FactPastRow.fact_id == FactRow.id, asked_otherwise)
    marked = exists().where(ChangeRow.seq == FactRow.created_seq, ChangeRow.kind == "insert")
    of_document = FactRow.document_id.is_not(None), FactRow.question.is_not(None)
    return and_(*of_document, or_(changed.correlate(FactRow), marked.correlate(FactRow)))


def mended_or_marked() -> Any:
    """Build a statement (SQL) that lists the facts that `asks_by_person` may hold for: few, whatever a base holds."""
    marking = ChangeRow.kind == "insert", ChangeRow.payload.has_key("places")
    marked = select(func.unnest(ChangeRow.fact_ids).label("fact_id")).where(*marking)
    return select(FactPastRow.fact_id).union(marked)


def asked_by_people(session: Session, among: Sequence[int] | None = None) -> list[int]:
    """List the facts of documents (`among` these) whose questions people wrote."""
    which = FactRow.id.in_(mended_or_marked()) if among is None else FactRow.id == func.any(list(among))
    return list(session.scalars(select(FactRow.id).where(which, asks_by_person())))


def has_question_keys(session: Session, keyset_id: int) -> bool:
    """Tell whether this keyset has question keys of documents' facts beside those that people asked for."""
    return _sought(session, keyset_id).found


def seek_question_keys(session: Session, keyset_id: int) -> bool:
    """Says whether this keyset has any, and where it has none, notes now and then up to which key that is so."""
    sought = _sought(session, keyset_id)
    if not sought.found and sought.since > _NOTED_EACH:
        note = update(KeysetRow).where(KeysetRow.id == keyset_id)
        session.execute(note.values(no_question_keys_upto=sought.last))
    return sought.found


def question_keys(keyset_id: Any) -> Any:
    """Build a condition (SQL): a keyset has question keys of documents' facts whose questions nobody wrote."""
    generated = select(FactRow.id).where(FactRow.document_id.is_not(None), ~asks_by_person())
    of_documents = FactKeyRow.fact_id.in_(generated)
    return exists().where(FactKeyRow.keyset_id == keyset_id, FactKeyRow.kind == "question", of_documents)


@dataclass(frozen=True, slots=True)
class _Sought:
    """Whether a question key was found, the keyset's `last` key, and how many came `since` it was noted last."""

    found: bool
    last: int
    since: int


def _sought(session: Session, keyset_id: int) -> _Sought:
    # Keys get their ids while the log is locked, so that none below the last one is still to be committed.
    last = select(func.max(FactKeyRow.id)).where(FactKeyRow.keyset_id == keyset_id).scalar_subquery()
    ids = select(func.coalesce(last, 0), KeysetRow.no_question_keys_upto).where(KeysetRow.id == keyset_id)
    newest, upto = session.execute(ids).one_or_none() or (0, None)
    since, which = newest - (upto or 0), question_keys(keyset_id)
    if upto is not None and since <= _FEW:
        which = which.where(FactKeyRow.id > upto)
    return _Sought(bool(session.scalar(select(which))), newest, since)
