"""Jobs: asked for, run by a worker, cancelled, refused; and what no worker may do to them."""

from __future__ import annotations

import json
import os
import pwd
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from colmlm.kb.corpus.format import to_record
from colmlm.kb.errors import InvalidValue, InvalidWork
from colmlm.kb.jobs import tickets
from colmlm.kb.jobs.kinds import Check, Gate, Ingest, Rekey, WriteSnapshot, work_of
from colmlm.kb.jobs.queue import Jobs, Lease, prune_jobs
from colmlm.kb.jobs.records import STATES
from colmlm.kb.jobs.uploads import Uploads
from colmlm.kb.jobs.worker import Handler, JobRun, Worker
from colmlm.kb.principal import Origin, Principal, origin
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store import waits
from colmlm.kb.tables import JobRow, job_states
from tests.kb.corpora import PERU
from tests.kb.jobs.process import worker
from tests.refusals import raises_code


@pytest.fixture
def jobs(kb: KnowledgeBase) -> Jobs:
    return Jobs(kb)


def upload(jobs: Jobs, *lines: str) -> str:
    return jobs.uploads.save("peru.jsonl", [line.encode() + b"\n" for line in lines]).upload_id


def working(kb: KnowledgeBase, **handlers: Handler) -> Worker:
    return Worker(kb, handlers, beat_seconds=0.02)


def waited_for(reached: Callable[[], Any], seconds: float = 20) -> Any:
    """What `reached` gives once that is true."""
    deadline = time.monotonic() + seconds
    while not (found := reached()):
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.01)
    return found


def test_a_job_is_in_a_state_that_the_database_knows() -> None:
    assert job_states == STATES


def test_an_uploaded_file_is_ingested_in_its_askers_name_and_then_gone(kb: KnowledgeBase, jobs: Jobs):
    upload_id = upload(jobs, json.dumps(to_record(PERU)), "no json")
    as_asked = origin.set(Origin(Principal("local", "ann"), "r1"))
    job = jobs.submit(Ingest(upload_id=upload_id, corpus="atlas"), actor="ana")
    origin.reset(as_asked)
    assert (job.state, job.attempts, job.request_id) == ("queued", 0, "r1")
    assert worker(kb).run(once=True) == 1
    ended = jobs.get(job.job_id)
    assert (ended.state, ended.attempts, ended.error) == ("succeeded", 1, None)
    assert ended.result is not None and (ended.result["documents"], ended.result["refused"]) == (1, 1)
    change = kb.log.changes()[-1]
    assert (change.actor, change.on_behalf_of, change.request_id) == ("ana", "ana", "r1")
    assert change.principal == Principal("local", "ann", job_id=job.job_id)
    with raises_code("UploadNotFound"):
        jobs.uploads.file(upload_id)
    with kb.engine.connect() as connection:
        assert connection.scalar(text("SELECT count(*) FROM procrastinate_jobs")) == 0


def test_what_is_no_work_is_refused_before_it_is_queued(jobs: Jobs):
    for kind, arguments in (
        ("rekey", {"keyset_id": 0}),
        ("rekey", {"keyset_id": 1, "checkpoint": "mine"}),
        ("rekey", {"checkpoint": "../mine"}),
        ("backup", {"name": "/etc/passwd"}),
        ("backup", {"name": "a", "secret": 1}),
        ("ingest", {"upload_id": "../../x", "corpus": "a"}),
        ("nonsense", {}),
    ):
        with pytest.raises(InvalidWork):
            work_of(kind, arguments)
    assert work_of("gate", {"keyset_id": "2", "activate": "true"}, strict=False) == Gate(
        keyset_id=2, activate=True
    )
    with raises_code("UploadNotFound"):
        jobs.submit(Ingest(upload_id="0" * 32, corpus="atlas"), actor="ana")
    with raises_code("JobNotFound"):
        jobs.get(2**63)
    assert jobs.list() == []


def test_a_queued_job_is_cancelled_at_once_and_never_runs(kb: KnowledgeBase, jobs: Jobs):
    upload_id = upload(jobs, json.dumps(to_record(PERU)))
    job = jobs.submit(Ingest(upload_id=upload_id, corpus="atlas"), actor="ana")
    cancelled = jobs.cancel(job.job_id, actor="ben")
    assert (cancelled.state, cancelled.cancelled_by) == ("cancelled", "ben") and cancelled.finished_at
    assert worker(kb).run(once=True) == 0 and kb.corpora.all() == []
    assert list(jobs.uploads.directory.iterdir()) == []
    with raises_code("JobFinished"):
        jobs.cancel(job.job_id, actor="ben")


def test_a_running_job_ends_at_its_next_step_when_it_is_cancelled(kb: KnowledgeBase, jobs: Jobs):
    job = jobs.submit(Check(), actor="ana")
    begun = threading.Event()

    def endless(run: JobRun, _: Check) -> None:
        while True:
            run.progress(1, 2, "steps")
            begun.set()
            time.sleep(0.01)

    thread = threading.Thread(target=working(kb, fsck=endless).run, kwargs={"once": True})
    thread.start()
    assert begun.wait(20)
    assert jobs.cancel(job.job_id, actor="ben").state == "running"
    thread.join(20)
    ended = jobs.get(job.job_id)
    assert (ended.state, ended.done, ended.total, ended.message) == ("cancelled", 1, 2, "steps")


def test_what_fails_keeps_a_problem_and_tells_no_secret_of_a_fault(kb: KnowledgeBase, jobs: Jobs):
    def refuses(run: JobRun, _: WriteSnapshot) -> None:
        run.kb.keysets.active()

    def breaks(run: JobRun, _: Check) -> None:
        raise RuntimeError("password=hunter2")

    refused, broken = jobs.submit(WriteSnapshot(), actor="ana"), jobs.submit(Check(), actor="ana")
    working(kb, snapshot=refuses, fsck=breaks).run(once=True)
    error, fault = jobs.get(refused.job_id).error, jobs.get(broken.job_id).error
    assert error is not None and error["type"] == "urn:colmlm:NoActiveKeyset"
    assert (
        fault is not None
        and fault["type"] == "urn:colmlm:InternalError"
        and "hunter2" not in json.dumps(fault)
    )


@pytest.mark.parametrize("by_the_driver_itself", [False, True])
def test_a_job_whose_connection_is_cut_has_not_failed_and_is_taken_up_again(
    kb: KnowledgeBase, jobs: Jobs, by_the_driver_itself: bool
):
    def cut(run: JobRun, work: Check) -> None:
        if jobs.get(job.job_id).attempts > 1:
            return
        ends = "SELECT pg_terminate_backend(pg_backend_pid())"
        if by_the_driver_itself:  # as lookups are
            with run.kb.searcher.reader.connect() as connection:
                connection.connection.driver_connection.execute(ends)  # type: ignore[union-attr]
        with run.kb.sessions() as session:
            session.execute(text(ends))

    job = jobs.submit(Check(), actor="ana")
    working(kb, fsck=cut).run(once=True)
    ended = jobs.get(job.job_id)
    assert (ended.state, ended.attempts, ended.error) == ("succeeded", 2, None)


def test_jobs_that_exclude_each_other_take_turns_and_others_do_not_wait(kb: KnowledgeBase, jobs: Jobs):
    running: set[int] = set()
    together: list[frozenset[int]] = []

    def slow(run: JobRun, work: Rekey) -> None:
        running.add(run.job.job_id)
        together.append(frozenset(running))
        time.sleep(0.2)
        running.discard(run.job.job_id)

    first, second = (jobs.submit(Rekey(keyset_id=7), actor="ana").job_id for _ in range(2))
    other = jobs.submit(Rekey(keyset_id=8), actor="ana").job_id
    Worker(kb, {"rekey": slow}, concurrency=3).run(once=True)
    assert all(jobs.get(job_id).state == "succeeded" for job_id in (first, second, other))
    assert all(not {first, second} <= group for group in together) and {first, other} in together


def test_a_worker_that_stops_hands_back_what_runs_and_the_next_goes_on(kb: KnowledgeBase, jobs: Jobs):
    job_id = jobs.submit(Check(), actor="ana").job_id
    begun = threading.Event()

    def endless(run: JobRun, _: Check) -> None:
        while True:
            run.progress(3, None, "steps")
            begun.set()
            time.sleep(0.01)

    stopping = Worker(kb, {"fsck": endless}, grace_seconds=0.0, beat_seconds=0.02)
    thread = threading.Thread(target=stopping.run)
    thread.start()
    assert begun.wait(20) and jobs.num_workers() == 1
    stopping.stop()
    thread.join(20)
    assert not thread.is_alive() and jobs.num_workers() == 0
    handed_back = jobs.get(job_id)
    assert (handed_back.state, handed_back.attempts) == ("queued", 0)
    working(kb, fsck=lambda run, _: {"ok": True}).run(once=True)
    assert (jobs.get(job_id).state, jobs.get(job_id).attempts) == ("succeeded", 1)


def test_who_was_taken_for_dead_writes_nothing_more(kb: KnowledgeBase, jobs: Jobs):
    job_id = jobs.submit(Check(), actor="ana").job_id
    lease = take(kb, job_id)
    with kb.sessions.begin() as session:
        assert [
            job.id for job in tickets.rescue_tickets(session, stalled_seconds=30)
        ] == []  # it lives: its lock is held
        assert [job.id for job in tickets.rescue_tickets(session, stalled_seconds=0)] == [job_id]
    assert not lease.settle("succeeded", result={})
    assert jobs.get(job_id).state == "queued"
    working(kb, fsck=lambda run, _: {"ok": True}).run(once=True)
    assert (jobs.get(job_id).state, jobs.get(job_id).attempts) == ("succeeded", 2)


def test_a_job_that_kills_its_workers_is_given_up(kb: KnowledgeBase, jobs: Jobs):
    job_id = jobs.submit(Check(), actor="ana").job_id
    for _ in range(tickets.MAX_ATTEMPTS):
        take(kb, job_id).close()  # the lock goes with the connection, as when the process dies
        with kb.sessions.begin() as session:
            tickets.rescue_tickets(session)
    ended = jobs.get(job_id)
    assert (
        ended.state == "failed" and ended.error is not None and ended.error["type"] == "urn:colmlm:JobGivenUp"
    )


def test_a_job_without_a_ticket_gets_one(kb: KnowledgeBase, jobs: Jobs):
    """As where a worker died between taking the ticket and starting the job."""
    job_id = jobs.submit(Check(), actor="ana").job_id
    with kb.engine.begin() as connection:
        connection.execute(text("DELETE FROM procrastinate_jobs"))
    assert worker(kb).run(once=True) == 1
    assert jobs.get(job_id).state == "succeeded"


def test_a_job_that_this_worker_cannot_do_has_ended_and_says_how_to_begin_it_again(
    kb: KnowledgeBase, jobs: Jobs
):
    job = jobs.submit(Check(), actor="ana")
    assert working(kb).run(once=True) == 1
    ended = jobs.get(job.job_id)
    assert ended.state == "failed" and ended.error is not None
    assert "cannot do 'fsck', so the job has ended" in str(ended.error)
    assert "start the job again with `colmlm jobs start`" in str(ended.error)


def test_a_job_of_another_release_fails_and_keeps_no_other_waiting(kb: KnowledgeBase, jobs: Jobs):
    unknown, known = (jobs.submit(Check(), actor="ana").job_id for _ in range(2))
    with kb.engine.begin() as connection:
        connection.execute(text("UPDATE job SET kind = 'tomorrow' WHERE id = :id"), {"id": unknown})
        connection.execute(text("DELETE FROM procrastinate_jobs"))
    worker(kb).run(once=True)
    error = jobs.get(unknown).error
    assert error is not None and error["type"] == "urn:colmlm:InvalidWork"
    assert jobs.get(known).state == "succeeded"


def take(kb: KnowledgeBase, job_id: int) -> Lease:
    """The lease of a worker that never beats."""
    with kb.sessions() as session:
        ticket = session.get_one(JobRow, job_id).ticket
    assert ticket is not None
    lease = Lease.take(kb.engine, job_id, ticket, handing_back=lambda: False, beat_seconds=3600)
    assert lease is not None
    return lease


def test_an_upload_is_refused_by_size_and_by_name_and_leaves_nothing(kb: KnowledgeBase, tmp_path: Path):
    from colmlm.kb.errors import InvalidValue

    uploads = Uploads(tmp_path / "uploads", max_bytes=10)
    for name in ("../x.txt", "a/b.txt", ".hidden", "", "a\nb.txt", "x" * 201):
        with pytest.raises(InvalidValue):
            uploads.save(name, [b"x"])
    with raises_code("UploadTooLarge"):
        uploads.save("x.txt", [b"12345678", b"901"])
    kept = [uploads.save("x.txt", [b"1234567890"]) for _ in range(4)]
    with raises_code("UploadTooLarge", match="no room"):
        uploads.save("x.txt", [b"1"])
    assert {path.parent.name for path in uploads.directory.glob("*/*")} == {one.upload_id for one in kept}
    assert uploads.file(kept[0].upload_id).stat().st_mode & 0o777 == 0o600
    assert uploads.sweep([kept[0].upload_id], older_than=-1) == 3
    assert uploads.file(kept[0].upload_id).read_bytes() == b"1234567890"


def test_an_upload_that_cannot_be_looked_at_keeps_nobody_from_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    uploads = Uploads(tmp_path / "uploads", max_bytes=10)
    kept = uploads.save("x.txt", [b"1"])
    linked = uploads.directory / "linked"
    linked.symlink_to(uploads.directory / kept.upload_id)  # which is a folder, and not removed as one
    (uploads.directory / ("0" * 32)).mkdir()
    assert uploads.sweep([kept.upload_id], older_than=-1) == 1
    assert {path.name for path in uploads.directory.iterdir()} == {kept.upload_id, "linked"}
    assert "an upload that nobody waits for cannot be removed" in caplog.text
    uploads.directory.chmod(0o744)  # its names can be read, and nothing of what they name
    waits.TELLER.told.clear()
    with as_nobody(tmp_path):
        assert uploads.sweep([], older_than=-1) == 0
    assert "Permission denied" in caplog.text


@contextmanager
def as_nobody(folder: Path) -> Iterator[None]:
    """Has the rights of a user who owns nothing in the block, and may enter this folder."""
    if os.geteuid() != 0:
        pytest.skip("only root can become somebody else")
    entered = [one for one in (folder, *folder.parents) if one.stat().st_mode & 0o011 != 0o011]
    modes = {one: one.stat().st_mode for one in entered}
    for one in entered:
        one.chmod(modes[one] | 0o011)
    os.seteuid(pwd.getpwnam("nobody").pw_uid)
    try:
        yield
    finally:
        os.seteuid(0)
        for one, mode in modes.items():
            one.chmod(mode)


def test_a_worker_that_cannot_reach_its_files_still_tidies_the_database(
    kb: KnowledgeBase, jobs: Jobs, caplog: pytest.LogCaptureFixture
) -> None:
    old = jobs.cancel(jobs.submit(Check(), actor="ana").job_id, actor="ana")
    with kb.engine.begin() as connection:
        connection.execute(text("UPDATE job SET finished_at = finished_at - interval '91 days'"))
    kb.settings.home.mkdir(parents=True, exist_ok=True)
    kb.settings = replace(kb.settings, home=kb.settings.home / ("x" * 300))  # a name that the system refuses
    with pytest.raises(OSError, match="name too long"):
        kb.settings.home.mkdir()
    working = worker(kb)
    running = threading.Thread(target=working.run)
    with caplog.at_level("WARNING"):
        running.start()
        waited_for(lambda: old.job_id not in {job.job_id for job in jobs.list()})
        working.stop()
        running.join()
    assert [line for line in caplog.messages if "tidy up" in line] == caplog.messages


def test_a_part_of_tidying_that_fails_in_the_database_keeps_no_other_from_it(
    kb: KnowledgeBase, jobs: Jobs, caplog: pytest.LogCaptureFixture
) -> None:
    old = jobs.cancel(jobs.submit(Check(), actor="ana").job_id, actor="ana")
    with kb.engine.begin() as connection:
        connection.execute(text("UPDATE job SET finished_at = finished_at - interval '91 days'"))
        connection.execute(text("ALTER TABLE miss RENAME COLUMN group_id TO grouped"))
    working = worker(kb)
    running = threading.Thread(target=working.run)
    with caplog.at_level("WARNING"):
        running.start()
        try:
            waited_for(lambda: old.job_id not in {job.job_id for job in jobs.list()})
        finally:
            working.stop()
            running.join()
    assert "cannot tidy up (group misses), will try again" in caplog.text
    assert "whose worker died" not in caplog.text, "the worker goes on taking jobs"


def test_jobs_that_ended_long_ago_go_and_what_they_changed_stays(kb: KnowledgeBase, jobs: Jobs):
    work = Ingest(upload_id=upload(jobs, json.dumps(to_record(PERU))), corpus="atlas")
    old = jobs.submit(work, actor="ana")
    assert worker(kb).run(once=True) == 1
    left = jobs.uploads.directory / work.upload_id
    left.mkdir()  # as if removing it had failed
    cancelled = jobs.cancel(jobs.submit(Check(), actor="ana").job_id, actor="ana")
    waiting = jobs.submit(Check(), actor="ana")
    with kb.engine.begin() as connection:
        connection.execute(
            text("UPDATE job SET finished_at = finished_at - interval '91 days' WHERE id = :id"),
            {"id": old.job_id},
        )
    assert prune_jobs(kb, timedelta(days=92)).total() == 0 and len(jobs.list()) == 3
    kb.settings = replace(kb.settings, job_retention_days=0)
    worker(kb).run(once=True)
    assert jobs.get(old.job_id).state == "succeeded", "0 keeps all"
    kb.settings = replace(kb.settings, job_retention_days=90)
    worker(kb).run(once=True)
    with raises_code("JobNotFound"):
        jobs.get(old.job_id)
    assert not left.exists() and kb.log.changes()[-1].actor == "ana"
    assert {job.job_id for job in jobs.list()} == {cancelled.job_id, waiting.job_id}
    assert prune_jobs(kb, timedelta(0)) == {"cancelled": 1, "succeeded": 1}
    with pytest.raises(InvalidValue):
        prune_jobs(kb, timedelta(seconds=-1))
