"""Activation: decides which keyset answers lookups, by its keys and their threshold.

Only this module makes another keyset active. A keyset that is ready may be activated where its gate passed recently.
Three activations need no gate: that of the first keyset of a base, where nothing answers yet and so nothing can get
worse; rolling back to the keyset that was active before; and `force`, which the change log keeps together with the
figures of the failed criteria.

Among millions of keys each count takes seconds. So no function counts keys while it has the log locked, and none that
is called often (tests/kb/switching/test_counting.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row, case, exists, func, select, update
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Session

from colmlm.kb.errors import NoActiveKeyset, NoFormerKeyset, count_of, refusals
from colmlm.kb.facts.edits import is_kept
from colmlm.kb.keys import keysets, predicted
from colmlm.kb.keys.calibration import (
    Calibration,
    asked_by_person_condition,
    calibrate_threshold,
    mended_or_marked,
    question_keys,
)
from colmlm.kb.keys.keysets import HEADS, Vectors, active_keyset_id, head_fields, valued_keys
from colmlm.kb.keys.records import MAX_EDITS, GateStanding, KeysetHead, KeysetRecord, Prediction
from colmlm.kb.log import audit
from colmlm.kb.store.store import Store
from colmlm.kb.tables import ChangeRow, FactKeyRow, FactRow, KeysetRow

CALIBRATED = "threshold calibrated"


def activation_standing(session: Session, keyset: KeysetHead) -> GateStanding:
    """Judge a keyset by its last gate report, which counts as failed if the threshold was set by hand since."""
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
        criteria=tuple(gate["criteria"]),
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
    pending = audit.begin_change(session, actor, reason)  # so that no edit commits after the gate is judged
    was = active_keyset_id(session)
    keyset = keysets.keyset_head(session, keyset_id)
    found, gate = activation_standing(session, keyset), keysets.gate_of(session, keyset_id)
    evidence: dict[str, Any] = {"was": was, "gate_seq": found.seq, "forced": False}
    if eased := (gate or {}).get("eased_limits"):
        evidence["eased_limits"] = eased
    if (
        keyset.state == "ready"
        and was is not None
        and (refusal := _refusal(found, max_edits) or _unasked_questions(gate, questions))
    ):
        if not force:
            raise refusals.gate_refused(keyset_id, refusal)
        figures = [_logged_criterion(criterion) for criterion in _failing(gate, keyset)] if gate else []
        evidence |= {"forced": True, "refusal": refusal, "failed": figures}
    _make_active(session, pending, keyset_id, evidence)


def roll_back(session: Session, actor: str, reason: str) -> int:
    """Activate the keyset that was active before this one, and give its id.

    Raises `NoActiveKeyset` or `NoFormerKeyset`.
    """
    pending = audit.begin_change(session, actor, reason)
    active = active_keyset_id(session)
    if active is None:
        raise NoActiveKeyset
    was = former_keyset(session, active)
    _make_active(session, pending, was, {"was": active, "rollback": True})
    return was


def finish_building(session: Session, keyset_id: int, actor: str) -> None:
    """Mark a keyset whose facts all have keys as ready, and activate it where no keyset is active yet."""
    ready = update(KeysetRow).where(KeysetRow.id == keyset_id, KeysetRow.state == "building")
    session.execute(ready.values(state="ready"))
    if active_keyset_id(session) is None:
        # This locks the log: where two keysets finish at once, the second finds the first one active.
        pending = audit.begin_change(session, actor, "the first keyset")
        if active_keyset_id(session) is None:
            seq = activation_standing(session, keysets.keyset_head(session, keyset_id)).seq
            _make_active(session, pending, keyset_id, {"was": None, "gate_seq": seq, "forced": False})


def _make_active(
    session: Session, pending: audit.Pending, keyset_id: int, evidence: Mapping[str, Any]
) -> None:
    """Make this keyset active and log that with the evidence, unless it is active. Raises `KeysetNotReady`."""
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
    """Give the failed criteria of a gate report, with that on the threshold if somebody has set it by hand since."""
    failing = [criterion for criterion in gate["criteria"] if not criterion["passed"]]
    if not keyset.calibrated:
        failing += [
            {**criterion, "passed": False, "figure": 0.0}
            for criterion in gate["criteria"]
            if criterion["name"] == CALIBRATED and criterion["passed"] and criterion["figure"] is not None
        ]
    return failing


def _logged_criterion(criterion: Mapping[str, Any]) -> dict[str, Any]:
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
        ago = count_of(gate.edits_since, "edit")
        return f"its gate passed at change {gate.seq}, {ago} of facts ago (limit {max_edits})"
    return None


def _unasked_questions(gate: Mapping[str, Any] | None, questions: str | None) -> str | None:
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


@dataclass(frozen=True, slots=True)
class Succession:
    """The keysets that can answer, by id with the ids of their checkpoints. `next` is the newest ready one that passed
    its gate and was made after the active one; None where there is none.
    """

    active: int | None
    next: int | None
    answering: Mapping[int, str]


def read_succession(session: Session) -> Succession:
    """Give the keysets that can answer now, by id with their checkpoints."""
    passed = KeysetRow.gate["passed"].as_boolean().label("passed")
    statement = select(KeysetRow.id, KeysetRow.state, KeysetRow.checkpoint_id, passed)
    rows = session.execute(statement.where(KeysetRow.state.in_(("active", "ready")))).all()
    active = next((row.id for row in rows if row.state == "active"), None)
    later = [row.id for row in rows if row.state == "ready" and row.passed and row.id > (active or 0)]
    return Succession(active, max(later, default=None), {row.id: row.checkpoint_id for row in rows})


def find_former_keyset(session: Session, active: int) -> int | None:
    """Give the keyset that a rollback from the active one leads to; None where there was none."""
    try:
        return former_keyset(session, active)
    except NoFormerKeyset:
        return None


def count_keys(session: Session, keyset_id: int) -> KeysetRecord:
    """Give a keyset with the numbers of its keys, which takes seconds among millions: never while the log is locked.

    Raises `KeysetNotFound`.
    """
    found = _records(session, keyset_id)
    if not found:
        raise refusals.keyset_not_found(keyset_id)
    return found[0]


def count_all_keys(session: Session) -> list[KeysetRecord]:
    """Give all keysets by id, also retired ones, with the numbers of their keys."""
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
    """Give an expression (SQL): how many keys a fill would make for the enclosing statement's keyset."""
    # These are two counts and not one with OR, which would look up a key for every fact instead of joining.
    keyed = exists().where(FactKeyRow.keyset_id == KeysetRow.id, FactKeyRow.fact_id == FactRow.id)
    asked = keyed.where(FactKeyRow.kind == "question").correlate(KeysetRow, FactRow)
    keyed = keyed.correlate(KeysetRow, FactRow)
    kept = select(func.count()).select_from(FactRow).where(is_kept(FactRow.id))
    unasked = kept.where(FactRow.document_id.is_not(None), FactRow.question.is_not(None), keyed, ~asked)
    has_questions = question_keys(KeysetRow.id).correlate(KeysetRow)
    by_people = unasked.where(FactRow.id.in_(mended_or_marked()), asked_by_person_condition())
    lacking_question = case((has_questions, unasked.scalar_subquery()), else_=by_people.scalar_subquery())
    return kept.where(~keyed).scalar_subquery() + lacking_question


def _record(row: Row[Any], predictions: tuple[Prediction, ...]) -> KeysetRecord:
    numbers = {"num_unkeyed": 0} if row.state == "retired" else {}
    left = sum(one.left for one in predictions)
    return KeysetRecord(**head_fields(row) | numbers, num_predicted=left, predictions=predictions)


def num_indexed_keys(session: Session, keyset_id: int) -> int:
    """Count the keys that an index of this keyset holds."""
    statement = select(func.count()).where(FactKeyRow.keyset_id == keyset_id, is_kept(FactKeyRow.fact_id))
    return session.scalar(statement) or 0


Encode = Callable[[Sequence[str]], Vectors]


def measure_threshold(
    store: Store, keyset: KeysetHead, encode: Encode, size: int, *, false_accept_rate: float | None = None
) -> Calibration:
    """Measure a threshold by up to `size` questions, spread evenly over the facts; `encode` makes them queries [B, d].

    Raises `InvalidValue` where there are none, and where all facts have one value.
    """
    with store.reports() as session:
        asked = keysets.facts_with_question(session, keyset.keyset_id, size)
    queries_BD = encode([fact.question for fact in asked])
    with store.reports() as session:
        keys = valued_keys(session, keyset.keyset_id, keyset.dim)
        said = [fact.value for fact in asked]
        return calibrate_threshold(queries_BD, said, keys, false_accept_rate=false_accept_rate)
