"""What `colmlm evaluate deletion` leaves in a knowledge base when it is killed, and how the next run undoes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from cli.deletion_audit import REASON
from cli.survivors import REASON as PLANTED
from kb import audit
from kb.forget_records import RunRecord
from kb.forgetting import Forgetting
from kb.records import ChangeRecord
from kb.service import KnowledgeBase

PAGE = 1000
_Record = TypeVar("_Record")


def set_back(kb: KnowledgeBase, actor: str) -> tuple[int, int]:
    """Restore what is forgotten still and delete what is planted still; how many facts of either there were.

    In this order, since a run may have forgotten what was planted, too.
    """
    forgetting = Forgetting(kb)
    applied = [run for run in _runs(forgetting) if run.state == "applied" and run.reason == REASON]
    for run in reversed(applied):
        forgetting.restore(run.run_id, actor=actor, reason=REASON)
    planted = [i for change in _inserts(kb) if change.reason == PLANTED for i in change.fact_ids]
    left = [i for i in planted if kb.fact(i).deleted_seq is None]
    if left:
        kb.delete(left, actor=actor, reason=PLANTED)
    return sum(run.num_facts for run in applied), len(left)


def _runs(forgetting: Forgetting) -> Iterator[RunRecord]:
    return _paged(lambda after: forgetting.runs(after, PAGE), lambda run: run.run_id)


def _inserts(kb: KnowledgeBase) -> Iterator[ChangeRecord]:
    def page(after: int) -> list[ChangeRecord]:
        with kb.sessions() as session:
            return audit.changes(session, after, PAGE, kind="insert")

    return _paged(page, lambda change: change.seq)


def _paged(page: Callable[[int], Sequence[_Record]], key: Callable[[_Record], int]) -> Iterator[_Record]:
    after = 0
    while found := page(after):
        yield from found
        after = key(found[-1])
