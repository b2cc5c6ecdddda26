"""Holding: notes that both of two facts that contradict each other hold, and takes that back. Session first.

It ends when one of the two gets another value or question.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import func, select, text
from sqlalchemy.orm import Session

from colmlm.kb.errors import NotFound, refusals
from colmlm.kb.facts.edits import done, storable_ids
from colmlm.kb.facts.records import Edit
from colmlm.kb.log import audit
from colmlm.kb.tables import ChangeRow

KIND = "hold"

_HOLD = text("""
UPDATE fact_pair SET held_seq = :seq WHERE id = (
    SELECT id FROM standing_pair
    WHERE fact_id = :one AND other_id = :other AND NOT same_value AND (held_seq IS NULL) = :holds
      AND greatest(given_seq, other_given_seq) < :before
) RETURNING id
""")


def hold_fact(session: Session, pair: Sequence[int], actor: str, reason: str, *, holds: bool) -> Edit:
    """Note that two facts that contradict both hold; without `holds`, that not.

    Raises `PairNotFound`, also where somebody has noted the same before.
    """
    return _noted(session, audit.begin_change(session, actor, reason), pair, {"holds": holds})


def undo_hold(session: Session, pending: audit.Pending, change: ChangeRow) -> Edit:
    """Take back what the change noted. Raises `NotUndoable` where that is not the last that was noted of the pair."""
    pair = change.fact_ids
    noted = select(func.max(ChangeRow.seq)).where(ChangeRow.kind == KIND, ChangeRow.fact_ids.contains(pair))
    since = "something else was done since to one of facts"
    if session.scalar(noted) != change.seq:
        raise refusals.not_undoable(change.seq, since, pair)
    payload = {"holds": not change.payload["holds"], "undoes": change.seq}
    try:
        return _noted(session, pending, pair, payload)
    except NotFound as error:
        raise refusals.not_undoable(change.seq, since, pair) from error


def _noted(session: Session, pending: audit.Pending, pair: Sequence[int], payload: dict[str, Any]) -> Edit:
    one, other = sorted(pair)
    holds = payload["holds"]
    given = {
        "one": one,
        "other": other,
        "seq": pending.seq if holds else None,
        "holds": holds,
        "before": payload.get("undoes", pending.seq),  # values that were given since were never judged
    }
    if len(storable_ids((one, other))) < 2 or session.scalar(_HOLD, given) is None:
        raise refusals.pair_not_found((one, other))
    return done(session, pending, KIND, (one, other), payload)
