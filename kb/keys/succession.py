"""Succession: which keyset answers, which one may be activated next, and which one a rollback leads to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from colmlm.kb.errors import NoFormerKeyset
from colmlm.kb.keys import activation
from colmlm.kb.tables import KeysetRow


@dataclass(frozen=True, slots=True)
class Succession:
    """The keysets that can answer, by id with the ids of their checkpoints. `next` passed its gate after the active one
    was made, and is the newest that did.
    """

    active: int | None
    next: int | None
    answering: Mapping[int, str]


def key_succession(session: Session) -> Succession:
    """Give it as it is now."""
    passed = KeysetRow.gate["passed"].as_boolean().label("passed")
    statement = select(KeysetRow.id, KeysetRow.state, KeysetRow.checkpoint_id, passed)
    rows = session.execute(statement.where(KeysetRow.state.in_(("active", "ready")))).all()
    active = next((row.id for row in rows if row.state == "active"), None)
    later = [row.id for row in rows if row.state == "ready" and row.passed and row.id > (active or 0)]
    return Succession(active, max(later, default=None), {row.id: row.checkpoint_id for row in rows})


def former(session: Session, active: int) -> int | None:
    """Give the keyset that a rollback from the active one leads to; None where there was none."""
    try:
        return activation.former_keyset(session, active)
    except NoFormerKeyset:
        return None
