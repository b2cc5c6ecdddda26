"""Retraining: move every lookup from one checkpoint's keys to another's, and back, while lookups go on.

rekey -> build -> check (the gate) -> activate -> retire; rollback goes back at once. `keysets.activate` is the flip
itself; here is the policy of when it may happen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from kb import audit, keysets
from kb.contention import tried_again
from kb.errors import GateRefused, KeysetActive, KeysetNotReady, NoActiveKeyset, NoFormerKeyset
from kb.records import KeysetRecord
from kb.replica import active_keyset_id, rebuild, save
from kb.service import KnowledgeBase
from kb.tables import Change

MAX_EDITS = 1000  # of facts, between a gate and the activation that relies on it


@dataclass(frozen=True, slots=True)
class Built:
    """An index made anew from the database, and its snapshot on disk."""

    keyset_id: int
    index_spec: str
    num_keys: int
    seq: int


@dataclass(frozen=True, slots=True)
class GateStanding:
    """What a keyset's gate is worth now. `edits_since` counts changes of facts, not of keys."""

    checked: bool
    passed: bool
    seq: int | None = None
    edits_since: int | None = None
    failed: tuple[str, ...] = ()


class Retraining:
    """The verbs of a retraining job on a knowledge base."""

    def __init__(self, kb: KnowledgeBase) -> None:
        self.kb = kb

    def build(self, keyset_id: int) -> Built:
        """Make a keyset's index anew from the database, trained on all keys there are, and write its snapshot.

        A server then opens it in the time it takes to read the file.
        """
        with self.kb.sessions.begin() as session:
            keyset = keysets.get_keyset(session, keyset_id)
            if keyset.state == "retired":
                raise KeysetNotReady(keyset_id, keyset.state)
            replica = rebuild(session, keyset)
            save(session, replica, self.kb.settings.index_directory)
        return Built(keyset_id, replica.index.spec, len(replica.index), replica.applied_seq)

    def standing(self, keyset_id: int) -> GateStanding:
        with self.kb.sessions() as session:
            return _standing(session, keyset_id)

    def gate(self, keyset_id: int) -> dict[str, Any] | None:
        """The last report of a keyset's gate, as it was stored; None where it was never checked."""
        with self.kb.sessions() as session:
            keysets.get_keyset(session, keyset_id)
            return keysets.gate_of(session, keyset_id)

    def set_threshold(
        self, keyset_id: int, threshold: float, *, actor: str, reason: str = "calibrated"
    ) -> KeysetRecord:
        """Set the score below which a lookup is no match. Raises `InvalidValue`."""
        with self.kb.sessions.begin() as session:
            return keysets.set_threshold(session, keyset_id, threshold, actor, reason)

    @tried_again
    def activate(
        self,
        keyset_id: int,
        *,
        force: bool = False,
        max_edits: int = MAX_EDITS,
        actor: str | None = None,
        reason: str = "activate",
    ) -> KeysetRecord:
        """Let this keyset answer from now on, in every process, if its gate says so.

        Raises `GateRefused` where the gate was never checked, failed, or passed more than `max_edits` edits of facts
        ago; `force` goes on and is recorded. Where no keyset is active there is nothing to do worse than.
        """
        actor = actor or self.kb.settings.actor
        with self.kb.sessions.begin() as session:
            audit.begin(session, actor, reason)  # no edit comes between the gate's age and the flip
            former = active_keyset_id(session)
            keyset, standing = keysets.get_keyset(session, keyset_id), _standing(session, keyset_id)
            if keyset.state == "ready" and former is not None and not force:
                _require_passed(keyset_id, standing, max_edits)
            evidence = {"was": former, "gate_seq": standing.seq, "forced": force}
            return keysets.activate(session, keyset_id, actor, reason, evidence)

    @tried_again
    def rollback(self, *, actor: str | None = None, reason: str = "rollback") -> KeysetRecord:
        """Let the keyset answer that was active before this one; doing it twice ends where it began.

        It needs no gate. Facts that came since and have no key there (`num_unkeyed`) are silent until it is rekeyed;
        for all others it answers at once.
        """
        actor = actor or self.kb.settings.actor
        with self.kb.sessions.begin() as session:
            audit.begin(session, actor, reason)
            active = active_keyset_id(session)
            if active is None:
                raise NoActiveKeyset
            former = _former(session, active)
            evidence = {"was": active, "rollback": True}
            return keysets.activate(session, former, actor, reason, evidence)

    def retirable(self, keyset_id: int) -> KeysetRecord:
        """The keyset as it is before its keys are dropped. Raises `KeysetActive`."""
        with self.kb.sessions() as session:
            keyset = keysets.get_keyset(session, keyset_id)
        if keyset.state == "active":
            raise KeysetActive(keyset_id)
        return keyset

    @tried_again
    def retire(self, keyset_id: int, *, actor: str | None = None, reason: str = "retire") -> KeysetRecord:
        """Drop a keyset's keys for good. Raises `KeysetActive`."""
        with self.kb.sessions.begin() as session:
            return keysets.retire(session, keyset_id, actor or self.kb.settings.actor, reason)


def _standing(session: Session, keyset_id: int) -> GateStanding:
    gate: dict[str, Any] | None = keysets.gate_of(session, keyset_id)
    if gate is None:
        return GateStanding(checked=False, passed=False)
    edits = select(func.count()).where(Change.seq > gate["seq"], Change.kind.not_in(audit.MAINTENANCE))
    return GateStanding(
        checked=True,
        passed=gate["passed"],
        seq=gate["seq"],
        edits_since=session.scalar(edits) or 0,
        failed=tuple(c["name"] for c in gate["criteria"] if not c["passed"]),
    )


def _require_passed(keyset_id: int, gate: GateStanding, max_edits: int) -> None:
    if not gate.checked:
        raise GateRefused(keyset_id, "its gate was never checked")
    if not gate.passed:
        raise GateRefused(keyset_id, f"its gate failed at change {gate.seq}: {', '.join(gate.failed)}")
    if gate.edits_since is not None and gate.edits_since > max_edits:
        raise GateRefused(
            keyset_id,
            f"its gate passed at change {gate.seq}, {gate.edits_since} edits of facts ago (limit {max_edits})",
        )


def _former(session: Session, active: int) -> int:
    """The keyset that was active before this one, by the change log."""
    keyset = Change.payload["keyset"].as_integer()
    log = select(keyset).where(Change.kind == "activate", keyset != active)
    former: int | None = session.scalar(log.order_by(Change.seq.desc()).limit(1))
    if former is None:
        raise NoFormerKeyset(active)
    return former
