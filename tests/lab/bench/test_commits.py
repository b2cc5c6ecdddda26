"""The bench of commits deletes what it says it deletes, by both ways."""

from __future__ import annotations

import pytest

from colmlm.kb.service import KnowledgeBase
from colmlm.lab.bench.commits import EACH, ROUNDS, measure


@pytest.mark.slow(reason="runs a benchmark to its end")
def test_every_deletion_is_made_and_each_is_a_change(kb: KnowledgeBase) -> None:
    (figures,) = measure(kb, [2], disk_ms=0)
    assert figures.threads == 2
    assert figures.ratio == figures.together_per_second / figures.alone_per_second > 0
    assert kb.upkeep.fsck().live_facts == 0
    changes = kb.log.changes(limit=10_000)
    assert sum(change.kind == "delete" for change in changes) == 2 * (ROUNDS + 1) * EACH * 2
    assert kb.log.verify().ok
