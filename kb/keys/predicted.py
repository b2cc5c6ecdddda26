"""Predicted keys: keys that a map made from another keyset's keys, until the checkpoint makes the true ones.

The change of the log that stores them has `predicted` in its payload, with their ids and the quality of the map. Ids of
keys are never used again, so the log tells for good which keys were predicted. Those that still exist are to be
replaced, by the queues of `kb.keys.rekey`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from math import inf
from typing import Any

from sqlalchemy import Text, cast, delete, func, select
from sqlalchemy.dialects.postgresql import INT8MULTIRANGE
from sqlalchemy.orm import Session

from colmlm.kb.facts.edits import MAX_ID, is_kept
from colmlm.kb.keys.records import Prediction
from colmlm.kb.tables import (
    ChangeRow,
    FactKeyRow,
)

Stretches = Sequence[tuple[int, int]]  # first and last ids of keys

_SAID = (
    ChangeRow.seq,
    ChangeRow.payload["keyset"],
    ChangeRow.payload["keys"],
    ChangeRow.payload["predicted"],
)
_PREDICTING = (ChangeRow.kind == "key", ChangeRow.payload.has_key("predicted"))
_FIGURES = tuple(field.name for field in fields(Prediction) if field.name.startswith("recall"))


def predicted_stretches(session: Session, keyset_id: int) -> Stretches:
    """Give the ranges (first id, last id) of all keys of a keyset that were ever predicted."""
    rows = session.execute(select(*_SAID).where(*_PREDICTING))
    return _join_ranges(stretch for _, of, keys, _ in rows if of == keyset_id and (stretch := _stretch(keys)))


def predicted_sql(key_id: Any, among: Stretches) -> Any:
    """Give a condition (SQL): a key's id is in one of these ranges (first id, last id)."""
    spelt = ",".join(f"[{first},{last}]" for first, last in among)
    return key_id.op("<@")(cast(cast(f"{{{spelt}}}", Text), INT8MULTIRANGE))


def drop_predictions(
    session: Session, keyset_id: int, kind: str, fact_ids: Sequence[int], among: Stretches
) -> list[int]:
    """Delete the predicted keys of these facts and give their ids. The log must be locked."""
    gone = delete(FactKeyRow).where(
        FactKeyRow.keyset_id == keyset_id,
        FactKeyRow.kind == kind,
        FactKeyRow.fact_id == func.any(list(fact_ids)),
        predicted_sql(FactKeyRow.id, among),
    )
    return sorted(session.scalars(gone.returning(FactKeyRow.id)))


def list_predictions(session: Session) -> dict[int, tuple[Prediction, ...]]:
    """Give the predictions of each keyset, by its id, one for each kind of which predicted keys are left.

    Where several maps made them, the figures are those of the map that kept the least recall.
    """
    made: dict[int, dict[str, tuple[Mapping[str, Any], list[tuple[int, int]]]]] = {}
    for _, keyset_id, keys, told in session.execute(
        select(*_SAID).where(*_PREDICTING).order_by(ChangeRow.seq)
    ):
        if type(keyset_id) is int and isinstance(told, dict) and (stretch := _stretch(keys)):
            by_map = made.setdefault(keyset_id, {})
            by_map.setdefault(json.dumps(told, sort_keys=True), (told, []))[1].append(stretch)
    found: dict[int, tuple[Prediction, ...]] = {}
    for keyset_id, by_map in made.items():
        left = (
            _read_prediction(
                told, _keys_left(session, keyset_id, _join_ranges(among)).get(str(told.get("kind")), 0)
            )
            for told, among in by_map.values()
        )
        found[keyset_id] = _worst_of_kinds([one for one in left if one is not None and one.left])
    return found


def _worst_of_kinds(found: Sequence[Prediction]) -> tuple[Prediction, ...]:
    """Give for each kind the prediction that kept the least recall, with the number of keys left of all of them."""
    by_kind: dict[str, list[Prediction]] = {}
    for one in found:
        by_kind.setdefault(one.kind, []).append(one)
    return tuple(
        replace(
            min(of_kind, key=lambda one: inf if one.kept is None else one.kept),
            left=sum(one.left for one in of_kind),
        )
        for of_kind in by_kind.values()
    )


def were_replaced_since_threshold(session: Session, keyset_id: int) -> bool:
    """Tell whether true keys took the place of predicted ones after the last change of the keyset's threshold."""
    of_keyset = ChangeRow.payload.contains({"keyset": keyset_id})
    chosen = session.scalar(select(func.max(ChangeRow.seq)).where(ChangeRow.kind == "threshold", of_keyset))
    if chosen is None or not (among := predicted_stretches(session, keyset_id)):
        return False
    dropped = ChangeRow.payload["dropped_keys"]
    since = ChangeRow.kind == "key", ChangeRow.seq > chosen, of_keyset, dropped.is_not(None)
    rows = session.scalars(select(dropped).where(*since).order_by(ChangeRow.seq.desc()))
    return any(_any_in(ids, among) for ids in rows)


def _any_in(ids: Any, among: Stretches) -> bool:
    """Tell whether any of these ids of keys, as the log has them, is in one of the stretches."""
    known = ids if isinstance(ids, list) else []
    return any(first <= one <= last for one in known if type(one) is int for first, last in among)


def _keys_left(session: Session, keyset_id: int, among: Stretches) -> dict[str, int]:
    """Count the predicted keys of live facts and tombstones that are left, by kind."""
    of_kind = select(FactKeyRow.kind, func.count()).where(
        FactKeyRow.keyset_id == keyset_id,
        FactKeyRow.id.between(among[0][0], among[-1][1]),
        predicted_sql(FactKeyRow.id, among),
        is_kept(FactKeyRow.fact_id),
    )
    return {row[0]: row[1] for row in session.execute(of_kind.group_by(FactKeyRow.kind))}


def prediction_to_json(prediction: Prediction) -> dict[str, Any]:
    """Give a prediction as the log stores it. Figures are texts: JSON may respell a number, which breaks the hash."""
    kept = {field.name: getattr(prediction, field.name) for field in fields(Prediction)}
    del kept["left"]
    return {
        name: repr(value) if name in _FIGURES and value is not None else value for name, value in kept.items()
    }


def predicted_as_of(session: Session, keyset_id: int, fact_ids: Collection[int], seq: int) -> set[int]:
    """Give those of these facts that had a predicted key in the keyset as of change `seq`."""
    named = select(ChangeRow.seq).where(
        ChangeRow.fact_ids.overlap(sorted(fact_ids)), *_PREDICTING, ChangeRow.seq <= seq
    )
    if not fact_ids or session.scalar(named.limit(1)) is None:
        return set()
    return {fact_id for fact_id in fact_ids if _was_predicted(session, keyset_id, fact_id, seq)}


def _was_predicted(session: Session, keyset_id: int, fact_id: int, seq: int) -> bool:
    """Tell whether as of change `seq` a key of this fact in the keyset was a predicted one."""
    naming = ChangeRow.fact_ids.contains([fact_id])
    before = session.execute(select(*_SAID).where(naming, *_PREDICTING, ChangeRow.seq <= seq))
    among = _join_ranges(
        stretch for _, of, keys, _ in before if of == keyset_id and (stretch := _stretch(keys))
    )
    if not among:
        return False
    still = select(FactKeyRow.id).where(
        FactKeyRow.keyset_id == keyset_id, FactKeyRow.fact_id == fact_id, predicted_sql(FactKeyRow.id, among)
    )
    if session.scalar(still.limit(1)) is not None:
        return True
    dropped = ChangeRow.payload["dropped_keys"]
    since = select(dropped).where(naming, ChangeRow.seq > seq, dropped.is_not(None))
    return any(_any_in(ids, among) for ids in session.scalars(since))


def _stretch(keys: Any) -> tuple[int, int] | None:
    """Read a stretch of key ids from a change's payload; None where a forged row of the log has something else."""
    if not isinstance(keys, list) or [type(one) for one in keys] != [int, int]:
        return None
    first, last = keys
    return (first, last) if 0 < first <= last < MAX_ID else None


def _join_ranges(found: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join stretches that overlap or touch."""
    joined: list[tuple[int, int]] = []
    for first, last in sorted(found):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
        else:
            joined.append((first, last))
    return joined


def _read_prediction(kept: Mapping[str, Any], left: int) -> Prediction | None:
    """Read a prediction as the log stores it; None where a forged row of the log has something else."""
    try:
        return Prediction(
            kind=str(kept["kind"]),
            from_keyset_id=int(kept["from_keyset_id"]),
            method=str(kept["method"]),
            sample=int(kept["sample"]),
            left=left,
            **{name: None if kept.get(name) is None else float(kept[name]) for name in _FIGURES},
        )
    except (KeyError, TypeError, ValueError):
        return None
