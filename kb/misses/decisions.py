"""Decisions on groups of misses: dismissed, solved or open again. Each is a change of the log. Session first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from colmlm.kb.errors import InvalidValue, MissGroupNotFound, MissGroupState
from colmlm.kb.facts import mending
from colmlm.kb.log import audit
from colmlm.kb.misses import noting
from colmlm.kb.misses.listing import MAX_ID
from colmlm.kb.misses.records import MissState
from colmlm.kb.tables import MissGroupRow

KINDS: Mapping[MissState, str] = {
    "dismissed": "dismiss-misses",
    "solved": "solve-misses",
    "open": "reopen-misses",
}


def decide(
    session: Session,
    group_ids: Sequence[int],
    state: MissState,
    actor: str,
    reason: str,
    *,
    fact_id: int | None = None,
) -> int:
    """Gives these groups another state, all or none, and gives the change's number.

    Raises `MissGroupNotFound`, `MissGroupState` where one has that state already, and for a fact that is not live
    `FactNotFound` or `FactDeleted`.
    """
    wanted = sorted(set(group_ids))
    if not wanted:
        raise InvalidValue("groups", "none is named")
    noting.lock_groups(session)
    pending = audit.begin(session, actor, reason)
    if fact_id is not None:
        mending.live_states(session, [fact_id])
    storable = [group_id for group_id in wanted if 0 < group_id <= MAX_ID]
    rows = select(MissGroupRow.id, MissGroupRow.state).where(MissGroupRow.id == func.any(storable))
    states = {row.id: row.state for row in session.execute(rows)}
    if missing := [group_id for group_id in wanted if group_id not in states]:
        raise MissGroupNotFound(missing)
    if already := [group_id for group_id in wanted if states[group_id] == state]:
        raise MissGroupState(already, state)
    values = {"state": state, "seq": pending.seq, "fact_id": fact_id}
    session.execute(update(MissGroupRow).where(MissGroupRow.id == func.any(wanted)).values(values))
    payload: dict[str, Any] = {"groups": wanted} | ({} if fact_id is None else {"fact": fact_id})
    return audit.append(session, pending, KINDS[state], payload=payload)
