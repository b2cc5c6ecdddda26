"""Activation: decides which keyset answers lookups. Only this module makes another keyset active.

A keyset that is ready may be activated where its gate passed recently. Three activations need no gate: that of the
first keyset of a base, where nothing answers yet and so nothing can get worse; rolling back to the keyset that was
active before; and `force`, which the change log keeps together with the figures of the failed criteria.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import func, select, update
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Session

from colmlm.kb.errors import NoActiveKeyset, NoFormerKeyset, refusals
from colmlm.kb.keys import keysets
from colmlm.kb.keys.keysets import active_keyset_id
from colmlm.kb.keys.records import MAX_EDITS, GateStanding, KeysetHead
from colmlm.kb.log import audit
from colmlm.kb.tables import ChangeRow, KeysetRow

CALIBRATED = "threshold calibrated"


def activation_standing(session: Session, keyset: KeysetHead) -> GateStanding:
    """Judge the last report of a keyset's gate. It has failed where the threshold was set by hand after it passed."""
    gate = keysets.gate_of(session, keyset.keyset_id)
    if gate is None:
        return GateStanding(checked=False, passed=False)
    others = (*audit.MAINTENANCE, *audit.VERDICTS)
    edits = select(func.count()).where(ChangeRow.seq > gate["seq"], ChangeRow.kind.not_in(others))
    failed = tuple(criterion["name"] for criterion in _failing(gate, keyset))
    return GateStanding(
        checked=True,
        passed=gate["passed"] and not failed,
        seq=gate["seq"],
        edits_since=session.scalar(edits) or 0,
        failed=failed,
    )


def activate_keyset(
    session: Session,
    keyset_id: int,
    actor: str,
    reason: str,
    *,
    force: bool = False,
    max_edits: int = MAX_EDITS,
    questions: str | None = None,
) -> None:
    """Make this keyset the one that answers, in every process, at commit.

    Raises `KeysetNotReady`, and, unless `force`, `GateRefused` where its gate was never checked, failed, or passed more
    than `max_edits` edits of facts ago, or where it did not ask the kept `questions` that are named.
    """
    audit.begin_change(
        session, actor, reason
    )  # locks the log, so that no edit commits after the gate is judged
    was = active_keyset_id(session)
    keyset = keysets.keyset_head(session, keyset_id)
    found, gate = activation_standing(session, keyset), keysets.gate_of(session, keyset_id)
    evidence: dict[str, Any] = {"was": was, "gate_seq": found.seq, "forced": False}
    if (
        keyset.state == "ready"
        and was is not None
        and (refusal := _refusal(found, max_edits) or _unasked(gate, questions))
    ):
        if not force:
            raise refusals.gate_refused(keyset_id, refusal)
        figures = [_kept(criterion) for criterion in _failing(gate, keyset)] if gate else []
        evidence |= {"forced": True, "refusal": refusal, "failed": figures}
    _flip(session, keyset_id, actor, reason, evidence)


def roll_back(session: Session, actor: str, reason: str) -> int:
    """Activate the keyset that was active before this one, and give its id.

    Raises `NoActiveKeyset` or `NoFormerKeyset`.
    """
    audit.begin_change(session, actor, reason)
    active = active_keyset_id(session)
    if active is None:
        raise NoActiveKeyset
    was = former_keyset(session, active)
    _flip(session, was, actor, reason, {"was": active, "rollback": True})
    return was


def finish_building(session: Session, keyset_id: int, actor: str) -> None:
    """Mark a keyset whose facts all have keys as ready, and activates it where no keyset is active yet."""
    reason = "the first keyset"
    ready = update(KeysetRow).where(KeysetRow.id == keyset_id, KeysetRow.state == "building")
    session.execute(ready.values(state="ready"))
    if active_keyset_id(session) is None:
        # The log's lock: where two keysets finish at once, the second finds the first one active.
        audit.begin_change(session, actor, reason)
        if active_keyset_id(session) is None:
            activate_keyset(session, keyset_id, actor, reason)


def _flip(session: Session, keyset_id: int, actor: str, reason: str, evidence: Mapping[str, Any]) -> None:
    pending = audit.begin_change(session, actor, reason)
    keyset = keysets.keyset_head(session, keyset_id)
    if keyset.state == "active":
        return
    if keyset.state != "ready":
        raise refusals.keyset_not_ready(keyset_id, keyset.state)
    session.execute(update(KeysetRow).where(KeysetRow.state == "active").values(state="ready"))
    session.execute(update(KeysetRow).where(KeysetRow.id == keyset_id).values(state="active"))
    payload = {**evidence, "keyset": keyset_id, "checkpoint": keyset.checkpoint_id}
    audit.append_change(session, pending, "activate", payload=payload)


def _failing(gate: Mapping[str, Any], keyset: KeysetHead) -> list[Mapping[str, Any]]:
    """Give the criteria that the report failed, with that of the threshold where it was set by hand since."""
    failing = [criterion for criterion in gate["criteria"] if not criterion["passed"]]
    if not keyset.calibrated:
        failing += [
            {**criterion, "passed": False, "figure": 0.0}
            for criterion in gate["criteria"]
            if criterion["name"] == CALIBRATED and criterion["passed"] and criterion["figure"] is not None
        ]
    return failing


def _kept(criterion: Mapping[str, Any]) -> dict[str, Any]:
    """Give a criterion as the log keeps it: floats are texts, since JSON may respell a number and break the hash."""
    return {name: criterion[name] for name in ("name", "note")} | {
        name: None if criterion[name] is None else repr(float(criterion[name]))
        for name in ("figure", "limit")
    }


def _refusal(gate: GateStanding, max_edits: int) -> str | None:
    if not gate.checked:
        return "its gate was never checked"
    if not gate.passed:
        return f"its gate failed at change {gate.seq}: {', '.join(gate.failed)}"
    if gate.edits_since is not None and gate.edits_since > max_edits:
        return (
            f"its gate passed at change {gate.seq}, {gate.edits_since} edits of facts ago (limit {max_edits})"
        )
    return None


def _unasked(gate: Mapping[str, Any] | None, questions: str | None) -> str | None:
    if questions is None or (gate is not None and gate.get("questions") == questions):
        return None
    return f"its gate did not ask the questions {questions!r}"


def former_keyset(session: Session, active: int) -> int:
    """Find in the change log the keyset that was active before this one. Raises `NoFormerKeyset`."""
    # Joined with the keysets that exist, since a row that somebody put into the log may name anything.
    log = select(KeysetRow.id).join(
        ChangeRow, ChangeRow.payload["keyset"] == func.to_jsonb(KeysetRow.id, type_=JSONB)
    )
    others = log.where(ChangeRow.kind == "activate", KeysetRow.id != active)
    found: int | None = session.scalar(others.order_by(ChangeRow.seq.desc()).limit(1))
    if found is None:
        raise NoFormerKeyset(active)
    return found
