"""Undoes what a killed `colmlm evaluate deletion` has left in a knowledge base."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from colmlm.cli.output import note
from colmlm.kb.errors import FactErased, FactNotDeleted
from colmlm.kb.forgetting.records import RunRecord
from colmlm.kb.forgetting.verbs import Forgetting
from colmlm.kb.log import audit
from colmlm.kb.log.records import ChangeRecord
from colmlm.kb.service import KnowledgeBase
from colmlm.lab.methods.deletion_audit import REASON
from colmlm.lab.methods.survivors import REASON as PLANTED

PAGE = 1000
_Record = TypeVar("_Record")


def set_back(kb: KnowledgeBase, actor: str) -> tuple[int, int]:
    """Restores the facts still forgotten, deletes those still planted, and gives the number of each.

    It restores first, since a run may have forgotten planted facts too. A run of which somebody has restored or erased
    a fact since is reported and left as it is.
    """
    forgetting, restored = Forgetting(kb), 0
    for run in reversed(list(_runs(forgetting))):
        if run.state == "applied" and run.reason == REASON:
            try:
                forgetting.restore(run.run_id, actor=actor, reason=REASON)
                restored += run.num_facts
            except (FactNotDeleted, FactErased) as error:
                note(f"warning: forget run {run.run_id}, which a killed one left, is not undone: {error}")
    planted = [i for change in _inserts(kb) if change.reason == PLANTED for i in change.fact_ids]
    left = [i for i in planted if kb.facts.show(i).deleted_seq is None]
    if left:
        kb.facts.delete(left, actor=actor, reason=PLANTED)
    return restored, len(left)


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
