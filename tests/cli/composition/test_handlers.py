"""The handlers of jobs that need no model."""

from __future__ import annotations

import json

from sqlalchemy import text

from colmlm.kb.corpus.format import to_record
from colmlm.kb.jobs.kinds import Check, Compare, Ingest, MakeBackup, Rekey, VerifyBackup, WriteSnapshot
from colmlm.kb.jobs.queue import Jobs
from colmlm.kb.service import KnowledgeBase
from tests.kb.corpora import PERU
from tests.kb.jobs.process import worker


def test_backup_snapshot_and_check_are_jobs_too(kb: KnowledgeBase) -> None:
    jobs = Jobs(kb)
    peru = jobs.uploads.save("peru.jsonl", [json.dumps(to_record(PERU)).encode()])
    jobs.submit(Ingest(upload_id=peru.upload_id, corpus="atlas"), actor="ana")
    submitted = [
        jobs.submit(work, actor="ana")
        for work in (
            Rekey(),
            WriteSnapshot(),
            MakeBackup(name="one.backup"),
            MakeBackup(name="one.backup"),
            VerifyBackup(name="one.backup"),
            VerifyBackup(name="two.backup"),
            Check(),
        )
    ]
    assert worker(kb).run(once=True) == 8
    ended = [jobs.get(job.job_id) for job in submitted]
    assert [job.state for job in ended] == [*["succeeded"] * 3, "failed", "succeeded", "failed", "succeeded"]
    assert ended[0].done == ended[0].total == len(PERU.facts)
    assert (kb.settings.home / "backups" / "one.backup").is_file()
    assert (
        ended[3].error is not None
        and ended[3].error["type"] == "urn:colmlm:InvalidWork"
        and "one.backup" in ended[3].error["detail"]
    )
    made, verified, checked = (ended[n].result for n in (2, 4, 6))
    assert made is not None and made == verified and checked is not None and checked["ok"]
    assert jobs.counts() == {"queued": 0, "running": 0, "succeeded": 6, "failed": 2, "cancelled": 0}
    newest = jobs.list(limit=2)
    assert [job.job_id for job in newest] == [ended[6].job_id, ended[5].job_id]
    assert [j.kind for j in jobs.list(before=ended[3].job_id, states=["succeeded"], kinds=["rekey"])] == [
        "rekey"
    ]


def test_a_comparison_of_all_facts_is_a_job(kb: KnowledgeBase) -> None:
    for value in ("1889", "1890", "1889"):
        kb.facts.add("When was it opened?", value, anyway=True, actor="ana", reason="test")
    with kb.engine.begin() as connection:
        connection.execute(text("DELETE FROM fact_pair"))
    jobs = Jobs(kb)
    submitted = [jobs.submit(work, actor="ana") for work in (Compare(), Rekey(), Compare(radius=0.9))]
    assert worker(kb).run(once=True) == 3
    first, _, second = (jobs.get(job.job_id) for job in submitted)
    assert first.result == {"facts": 3, "keys": 0, "radius": None, "contradictions": 2, "duplicates": 1}
    assert second.result is not None and (second.result["keys"], second.result["radius"]) == (3, 0.9)
    assert (second.result["contradictions"], second.result["duplicates"]) == (2, 1)
