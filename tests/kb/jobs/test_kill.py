"""A real worker, killed with -9 in the middle of its work; another goes on, and all is as if nothing had happened."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator

import pytest

from colmlm.kb import interpreter
from colmlm.kb.corpus.format import to_record
from colmlm.kb.jobs.kinds import Ingest, Rekey
from colmlm.kb.jobs.queue import Jobs
from colmlm.kb.jobs.records import JobRecord
from colmlm.kb.service import KnowledgeBase
from tests.kb.corpora import ingest, numbered
from tests.kb.jobs.test_jobs import waited_for
from tests.places import ROOT

MANY = 400


@pytest.fixture
def start(kb: KnowledgeBase) -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    """Starts a worker process on the knowledge base."""
    started = []

    def begin() -> subprocess.Popen[bytes]:
        url, home = kb.engine.url.render_as_string(hide_password=False), kb.settings.home
        command = interpreter.command("-m", "tests.kb.jobs.process", url, home)
        started.append(subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.wait()


def killed_at_work(
    jobs: Jobs, job_id: int, start: Callable[[], subprocess.Popen[bytes]], begun: Callable[[], object]
) -> JobRecord:
    """Kill a worker in the middle of this job, let another finish it, and give the job as it ended."""
    first = start()
    waited_for(begun, 60)
    first.kill()
    first.wait()
    left = jobs.get(job_id)
    assert left.state == "running" and left.heartbeat_at is not None  # nobody could say otherwise
    start()
    ended: JobRecord = waited_for(lambda: (job := jobs.get(job_id)).is_over and job, 60)
    return ended


@pytest.mark.slow(reason="kills workers and waits for others to go on")
def test_a_rekey_goes_on_after_a_kill(kb: KnowledgeBase, start: Callable[[], subprocess.Popen[bytes]]):
    ingest(kb, *numbered(MANY))
    jobs = Jobs(kb)
    job_id = jobs.submit(Rekey(), actor="ana").job_id
    ended = killed_at_work(jobs, job_id, start, lambda: jobs.get(job_id).done)
    assert (ended.state, ended.attempts) == ("succeeded", 2)
    assert ended.total is not None and 0 < ended.total < MANY  # what the first one keyed was not keyed again
    (keyset,) = kb.keysets.all()
    assert (keyset.state, keyset.num_keys, keyset.num_unkeyed) == ("active", MANY, 0)
    report = kb.upkeep.fsck()
    assert report.ok and report.unkeyed_facts == 0 and report.index_ids == MANY


def test_a_worker_told_to_stop_hands_back_and_ends_well(
    kb: KnowledgeBase, start: Callable[[], subprocess.Popen[bytes]]
):
    ingest(kb, *numbered(MANY))
    jobs = Jobs(kb)
    job_id = jobs.submit(Rekey(), actor="ana").job_id
    worker = start()
    waited_for(lambda: jobs.get(job_id).done, 60)
    worker.terminate()
    assert worker.wait(60) == 0
    handed_back = jobs.get(job_id)
    assert (handed_back.state, handed_back.attempts, jobs.num_workers()) == ("queued", 0, 0)
    assert 0 < kb.keysets.all()[0].num_keys < MANY  # what it keyed stays, and is not keyed again


@pytest.mark.slow(reason="kills workers and waits for others to go on")
def test_an_ingest_goes_on_after_a_kill(kb: KnowledgeBase, start: Callable[[], subprocess.Popen[bytes]]):
    jobs = Jobs(kb)
    lines = [json.dumps(to_record(document)).encode() + b"\n" for document in numbered(10 * MANY)]
    upload_id = jobs.uploads.save("many.jsonl", lines).upload_id
    work = Ingest(upload_id=upload_id, corpus="many", commit_every=20)
    ended = killed_at_work(jobs, jobs.submit(work, actor="ana").job_id, start, kb.corpora.all)
    assert (ended.state, ended.attempts) == ("succeeded", 2) and ended.result is not None
    assert ended.result["unchanged"] > 0
    assert ended.result["documents"] + ended.result["unchanged"] == 10 * MANY
    (corpus,) = kb.corpora.all()
    assert (corpus.documents, corpus.facts) == (10 * MANY, 10 * MANY)
    assert kb.upkeep.fsck().ok and list(jobs.uploads.directory.iterdir()) == []
