"""Question keys of documents' facts: once a keyset has one, every later rekey makes them for all its facts.

That there is none takes to read the index of all keys, tens of thousands of pages among ten million. So it is noted up
to which key there was none, and only what came since is looked at.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import exists, func, select, update
from sqlalchemy.orm import Session

from colmlm.kb.tables import FactKeyRow, FactRow, KeysetRow

_FEW = 10_000  # keys since, up to which each is looked at; of more the whole index takes less, as it leaves out rows
_NOTED_EACH = 500  # keys, so that not each fact that is added writes a note


def has_question_keys(session: Session, keyset_id: int) -> bool:
    """Says whether this keyset has keys made of questions of documents' facts."""
    return _sought(session, keyset_id).found


def seek_question_keys(session: Session, keyset_id: int) -> bool:
    """Says whether this keyset has any, and where it has none, notes now and then up to which key that is so."""
    sought = _sought(session, keyset_id)
    if not sought.found and sought.since > _NOTED_EACH:
        note = update(KeysetRow).where(KeysetRow.id == keyset_id)
        session.execute(note.values(no_question_keys_upto=sought.last))
    return sought.found


def question_keys(keyset_id: Any) -> Any:
    """Gives a condition (SQL) that a keyset has keys made of questions of documents' facts."""
    of_documents = FactKeyRow.fact_id.in_(select(FactRow.id).where(FactRow.document_id.is_not(None)))
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
