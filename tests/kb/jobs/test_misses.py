"""A worker groups misses, and removes those of long ago with their questions."""

from __future__ import annotations

from dataclasses import replace

from sqlalchemy import text

from colmlm.kb.evidence.records import NewOutput, Splice
from colmlm.kb.misses.misses import num_groups, num_ungrouped
from colmlm.kb.service import KnowledgeBase
from tests.kb.jobs.process import worker


def test_a_worker_groups_misses_and_removes_old_ones(kb: KnowledgeBase) -> None:
    for question in ("Who wrote Emma?", "Which lake lies highest?"):
        missed = Splice(0, 0, "no_match")
        kb.outputs.record(NewOutput(question, "", "", "read", 0, (missed,)))
    worker(kb).run(once=True)
    with kb.sessions() as session:
        assert (num_groups(session), num_ungrouped(session)) == (2, 0)
    with kb.engine.begin() as connection:
        connection.execute(text("UPDATE miss SET at = at - interval '366 days' WHERE generation_id = 1"))
    kb.settings = replace(kb.settings, miss_retention_days=0)
    worker(kb).run(once=True)
    assert len(kb.outputs.find()) == 2, "0 keeps all"
    kb.settings = replace(kb.settings, miss_retention_days=365)
    worker(kb).run(once=True)
    assert [one.prompt for one in kb.outputs.find()] == ["Which lake lies highest?"]
    assert [one.question for one in kb.misses.find().groups] == ["Which lake lies highest?"]
