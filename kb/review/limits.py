"""Limits: where only accepted facts answer, by corpus and by keyset. Each is a change of the log. Session first."""

from __future__ import annotations

from typing import Any

from sqlalchemy import update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from colmlm.kb.errors import InvalidValue, KeysetNotFound
from colmlm.kb.facts import edits, reading
from colmlm.kb.facts.records import Edit
from colmlm.kb.log import audit
from colmlm.kb.tables import CorpusReviewRow, KeysetRow

KIND = "accepted-only"


def limit(
    session: Session,
    corpus: str | None,
    keyset_id: int | None,
    actor: str,
    reason: str,
    *,
    accepted_only: bool,
) -> Edit:
    """Lets only accepted facts of a corpus, or in a keyset, answer, or proposed ones too.

    Raises `CorpusNotFound`, `KeysetNotFound`, and `InvalidValue` unless it is either a corpus or a keyset.
    """
    pending = audit.begin(session, actor, reason)
    if corpus is not None and keyset_id is None:
        reading.require_corpus(session, corpus)
        values = {"accepted_only": accepted_only, "seq": pending.seq}
        setting = insert(CorpusReviewRow).values(corpus=corpus, **values)
        session.execute(setting.on_conflict_do_update(index_elements=["corpus"], set_=values))
        said: dict[str, Any] = {"corpus": corpus}
    elif keyset_id is not None and corpus is None:
        _limit_keyset(session, keyset_id, accepted_only)
        said = {"keyset": keyset_id}
    else:
        raise InvalidValue("limit", "name either a corpus or a keyset")
    return edits.done(session, pending, KIND, [], {**said, "accepted_only": accepted_only})


def _limit_keyset(session: Session, keyset_id: int, accepted_only: bool) -> None:
    there = keyset_id <= edits.MAX_ID
    setting = update(KeysetRow).where(KeysetRow.id == keyset_id).values(accepted_only=accepted_only)
    if not there or session.scalar(setting.returning(KeysetRow.id)) is None:
        raise KeysetNotFound(keyset_id)
