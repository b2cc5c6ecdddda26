"""Compares two runs of a set: which questions came out otherwise, and what the log says of the time between."""

from __future__ import annotations

from collections.abc import Collection
from itertools import chain

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from colmlm.kb.errors import InvalidValue
from colmlm.kb.questions import reading
from colmlm.kb.questions.records import AskedItem, ChangedItem, RunComparison
from colmlm.kb.tables import ChangeRow

SETTINGS = ("how", "threshold", "keyset_id", "checkpoint_id", "reader", "accepted_only")
MOST_SEQS = 1_000


def compare(session: Session, name: str, before_id: int | None, after_id: int | None) -> RunComparison:
    """Compares two runs of a set, by default the last two. The time between goes from the start of the first run.

    Raises `InvalidValue` where there are no two, and `QuestionRunNotFound`.
    """
    before_id, after_id = _pair(session, name, before_id, after_id)
    before, after = (reading.run_record(session, run_id, name) for run_id in (before_id, after_id))
    was, now = (
        {one.question_id: one for one in reading.items(session, run_id)} for run_id in (before_id, after_id)
    )
    ids = sorted(was.keys() | now.keys())
    changed = [(was.get(one), now.get(one)) for one in ids if _came(was.get(one)) != _came(now.get(one))]
    first, last = sorted((before, after), key=lambda run: run.run_id)
    between = (ChangeRow.seq > first.first_seq) & (ChangeRow.seq <= last.seq)
    kinds = select(ChangeRow.kind, func.count()).where(between).group_by(ChangeRow.kind)
    used = {fact_id for one in chain.from_iterable(changed) if one for fact_id in one.fact_ids}
    touching = select(ChangeRow.seq, ChangeRow.fact_ids).where(
        between, ChangeRow.fact_ids.op("&&")(sorted(used))
    )
    changes = session.execute(touching.order_by(ChangeRow.seq).limit(MOST_SEQS)).all() if used else []
    touched = [(change.seq, frozenset(change.fact_ids)) for change in changes]
    return RunComparison(
        before=before,
        after=after,
        same=len(ids) - len(changed),
        items=tuple(ChangedItem(one, other, _seqs(one, other, touched)) for one, other in changed),
        first_seq=first.first_seq,
        last_seq=last.seq,
        changes=dict(session.execute(kinds.order_by(ChangeRow.kind)).all()),
        settings=tuple(one for one in SETTINGS if getattr(before, one) != getattr(after, one)),
    )


def _pair(session: Session, name: str, before: int | None, after: int | None) -> tuple[int, int]:
    """Fills in the runs that were not named: the newest, and the one before the other."""
    if after is None:
        after = next((run.run_id for run in reading.runs(session, name, None, 1)), None)
    if before is None and after is not None:
        before = next((run.run_id for run in reading.runs(session, name, after, 1)), None)
    if before is None or after is None:
        raise InvalidValue("comparison", f"the set {name!r} has no two runs to compare; run it again")
    return before, after


def _came(item: AskedItem | None) -> tuple[object, ...] | None:
    return None if item is None else (item.value, item.outcome, item.reason)


def _seqs(
    one: AskedItem | None, other: AskedItem | None, touched: Collection[tuple[int, frozenset[int]]]
) -> tuple[int, ...]:
    used = {fact_id for item in (one, other) if item for fact_id in item.fact_ids}
    return tuple(seq for seq, fact_ids in touched if used & fact_ids)
