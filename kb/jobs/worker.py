"""The worker: takes tickets, runs their jobs in threads, takes up again the jobs of workers that died, and delivers
changes to the receivers of webhooks.

Procrastinate waits for tickets and hands them out; this module adds how a worker stops, and what it does in between.
When it is told to stop, it takes no more jobs and lets those that run finish for a while; then it hands these back,
for another worker to continue. When it is told twice, it hands them back at once.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import math
import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import msgspec
import procrastinate
import psycopg
from procrastinate.exceptions import ConnectorException
from psycopg_pool import PoolTimeout
from sqlalchemy import select, text
from sqlalchemy.exc import SQLAlchemyError

from colmlm.kb.errors import DatabaseUnavailable, InvalidValue, KBError
from colmlm.kb.jobs import tickets
from colmlm.kb.jobs.kinds import uploads_of, work_of
from colmlm.kb.jobs.queue import BEAT_SECONDS, JobCancelled, Jobs, JobStopped, Lease, LeaseLost, prune_jobs
from colmlm.kb.jobs.records import UNFINISHED, JobRecord, Work
from colmlm.kb.jobs.tickets import Problem, problem_of
from colmlm.kb.jobs.uploads import Uploads
from colmlm.kb.principal import Origin, Principal, origin
from colmlm.kb.removal.holds import Retention
from colmlm.kb.removal.purge import restore_recycling
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store import waits
from colmlm.kb.store.engines import conninfo
from colmlm.kb.tables import JobRow
from colmlm.kb.webhooks.sending import RetryPolicy
from colmlm.kb.webhooks.webhooks import Deliverer

GRACE_SECONDS = 20.0
RESCUE_SECONDS = 5.0
PRUNE_SECONDS = 3600.0
GROUP_SECONDS, GROUPED_AT_ONCE = 30.0, 5_000
SHARE_SECONDS = 60.0
LONGEST_PAUSE = 2.0

_DATABASE_GONE = (ConnectorException, psycopg.Error, PoolTimeout, SQLAlchemyError)
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Worker:
    """Runs jobs until told to stop. `stop` may be called from any thread, also before `run`."""

    kb: KnowledgeBase
    handlers: Mapping[str, Handler]
    concurrency: int = 1
    grace_seconds: float = GRACE_SECONDS
    explain: Callable[[Exception], Problem] = problem_of
    beat_seconds: float = BEAT_SECONDS
    stalled_seconds: float = tickets.STALLED_SECONDS
    prune_seconds: float = PRUNE_SECONDS
    persistence: RetryPolicy = field(default_factory=RetryPolicy)
    num_run: int = 0
    _pruned_at: float | None = None
    _group_at: float = -math.inf
    _share_at: float = -math.inf
    _retain_at: float = -math.inf
    _rescuing: threading.Lock = field(default_factory=threading.Lock)
    _stopping: threading.Event = field(default_factory=threading.Event)
    _handing_back: threading.Event = field(default_factory=threading.Event)
    _loop: asyncio.AbstractEventLoop | None = None
    _task: asyncio.Task[None] | None = None
    _is_cut_off: bool = False
    _deliverer: Deliverer = field(init=False)

    def __post_init__(self) -> None:
        self._deliverer = Deliverer(self.kb, self.persistence)

    def run(self, *, once: bool = False) -> int:
        """Work until stopped, or with `once` until no job waits, and count the jobs. SIGTERM and SIGINT stop it."""
        asyncio.run(self._main(once))
        return self.num_run

    def stop(self) -> None:
        """Take no more jobs, and hand running ones back after `grace_seconds`. A second call does that at once."""
        if self._stopping.is_set():
            self._handing_back.set()
            return
        self._stopping.set()
        self._deliverer.stop()
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop has ended meanwhile
                self._loop.call_soon_threadsafe(self._wind_down)

    async def _main(self, once: bool) -> None:
        self._loop = asyncio.get_running_loop()
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._loop.add_signal_handler(number, self.stop)
        rescuing = asyncio.create_task(self._rescue_for_ever(once))
        deliver = self._deliverer.run_once if once else self._deliverer.run
        delivering = asyncio.create_task(asyncio.to_thread(deliver))
        try:
            await self._work(once)
        finally:
            if not once:
                self._deliverer.stop()
            await delivering
            rescuing.cancel()
            with suppress(asyncio.CancelledError):
                await rescuing
            self._loop = None

    async def _work(self, once: bool) -> None:
        failures = 0
        while not self._stopping.is_set():
            before, began = self.num_run, time.monotonic()
            try:
                await asyncio.to_thread(self._rescue if once else self._ask_for_an_answer)
                if self._stopping.is_set():
                    return
                self._task = asyncio.create_task(self._take_tickets(once))
                await self._task
            except asyncio.CancelledError:
                if not self._is_cut_off:
                    return
                self._is_cut_off = False  # the next round waits until the database answers again
            except _DATABASE_GONE as error:
                if once:
                    raise
                failures = 1 if time.monotonic() - began > LONGEST_PAUSE else failures + 1
                waits.log_outage(_log, "cannot take jobs, will try again", error)
                await self._pause(waits.pause_after(failures, LONGEST_PAUSE))
            if once and self.num_run == before:
                return

    async def _take_tickets(self, once: bool) -> None:
        connector = procrastinate.PsycopgConnector(
            conninfo=conninfo(self.kb.engine, "colmlm worker"), min_size=1, max_size=4
        )
        app = procrastinate.App(connector=connector)
        app.task(name=tickets.TASK, queue=tickets.QUEUE, pass_context=True)(self._run_job)
        try:
            async with app.open_async():
                await app.run_worker_async(
                    queues=[tickets.QUEUE],
                    concurrency=self.concurrency,
                    wait=not once,
                    delete_jobs="always",
                    install_signal_handlers=False,
                    update_heartbeat_interval=self.stalled_seconds / 3,
                    stalled_worker_timeout=self.stalled_seconds,
                )
        finally:
            # Where the worker was told to stop while the pool opened, nothing else closes the pool and its tasks.
            await connector.close_async()

    def _run_job(self, context: procrastinate.JobContext, job_id: int) -> None:
        assert context.job.id is not None, "a ticket that was handed out has a number"
        self.num_run += 1
        runner = Runner(self.kb, self.handlers, self._handing_back.is_set, self.explain, self.beat_seconds)
        runner.run(job_id, context.job.id)

    def _wind_down(self) -> None:
        """Take no more tickets, and hand running jobs back after `grace_seconds`. Runs in the event loop."""
        assert self._loop is not None
        self._loop.call_later(self.grace_seconds, self._handing_back.set)
        if self._task is not None:
            self._task.cancel()

    async def _pause(self, seconds: float) -> None:
        await asyncio.to_thread(self._stopping.wait, seconds)

    async def _rescue_for_ever(self, once: bool) -> None:
        while True:
            try:
                await asyncio.to_thread(self._rescue)
            except Exception as error:  # noqa: BLE001 - else nobody would look until this worker ends
                waits.log_outage(_log, "cannot look for jobs whose worker died", error)
                self._restart_task(once)
            await asyncio.sleep(min(RESCUE_SECONDS, self.stalled_seconds))

    def _restart_task(self, once: bool) -> None:
        """Restart the task that takes tickets. Runs in the event loop.

        By itself procrastinate would go on for half a minute with dead connections, and retry ever more seldom.
        """
        if self._task is not None and not once and not self._stopping.is_set():
            self._is_cut_off = True
            self._task.cancel()

    def _ask_for_an_answer(self) -> None:
        with self.kb.engine.connect() as connection:
            connection.execute(text("SELECT 1"))

    def _rescue(self) -> None:
        """Do the work that recurs, such as queueing the jobs of dead workers again: see `_tidy`.

        A second call waits until the first is over, so whoever returns from it knows that all of it was done.
        """
        with self._rescuing:
            self._tidy()

    def _tidy(self) -> None:
        """Do each part of the work that recurs. A part that fails is logged, and done again in seconds."""
        parts = {
            "take jobs over": self._requeue_left_jobs,
            "sweep uploads": self._remove_unclaimed_uploads,
            "group misses": self._group_misses,
            "share snapshots": self._share,
            "prune": self._prune,
            "carry out retention rules": self._carry_out_retention,
            "restore wal_recycle": self._restore_recycling,
        }
        for named, part in parts.items():
            try:
                part()
            except Exception as error:  # one part that fails must not keep the others from their turn
                if waits.is_outage(error):
                    raise
                waits.log_outage(_log, f"cannot tidy up ({named}), will try again", error)

    def _requeue_left_jobs(self) -> None:
        uploads = Uploads.of(self.kb.settings)
        with self.kb.sessions.begin() as session:
            rescued = tickets.rescue_tickets(session, self.stalled_seconds)
        for job in rescued:
            _log.warning("job %d (%s) was left by its worker, now %s", job.id, job.kind, job.state)
            if job.state not in UNFINISHED:
                uploads.discard(job.kind, job.arguments)

    def _remove_unclaimed_uploads(self) -> None:
        with self.kb.sessions() as session:
            unfinished = session.scalars(select(JobRow).where(JobRow.state.in_(UNFINISHED))).all()
        claimed = [one for job in unfinished for one in uploads_of(job.kind, job.arguments)]
        Uploads.of(self.kb.settings).sweep(claimed)

    def _share(self) -> None:
        if (now := time.monotonic()) >= self._share_at:
            self._share_at = now + SHARE_SECONDS
            Jobs(self.kb).share_snapshots()

    def _group_misses(self) -> None:
        if (began := time.monotonic()) < self._group_at:
            return
        if self.kb.misses.group(most=GROUPED_AT_ONCE) < GROUPED_AT_ONCE:
            took = time.monotonic() - began
            self._group_at = began + max(GROUP_SECONDS, 20 * took)  # many groups take seconds to read

    def _carry_out_retention(self) -> None:
        if (now := time.monotonic()) < self._retain_at:
            return
        self._retain_at = now + self.prune_seconds
        for edit in Retention(self.kb).carry_out():
            _log.info("change %d let documents go by a retention rule", edit.seq)

    def _restore_recycling(self) -> None:
        restore_recycling(self.kb.engine)

    def _prune(self) -> None:
        now, settings = time.monotonic(), self.kb.settings
        if self._pruned_at is not None and now - self._pruned_at < self.prune_seconds:
            return
        self._pruned_at = now
        if (days := settings.job_retention_days) and (
            gone := prune_jobs(self.kb, timedelta(days=days)).total()
        ):
            _log.info("removed %d jobs that ended more than %d days ago", gone, days)
        if (days := settings.miss_retention_days) and (gone := self.kb.misses.prune(timedelta(days=days))):
            _log.info("removed %d misses of more than %d days ago", gone, days)


# Runs one job: calls its handler under a lease, and stores how the job ended.

_DATABASE_GONE_RUNNER = (*waits.GONE, DatabaseUnavailable)
_log_runner = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class JobRun:
    """The job that a handler does, and the knowledge base whose changes name the actor who queued it.

    `progress` reports how far the work is. It and `check` raise `JobStopped` where the work should end, so they are to
    be called where nothing is half done.
    """

    kb: KnowledgeBase
    job: JobRecord
    uploads: Uploads
    progress: Callable[[int, int | None, str | None], None]
    check: Callable[[], None]


# A handler does a whole job, or continues what an earlier attempt committed, and gives the result to store.
Handler = Callable[[JobRun, Any], object]


@dataclass(frozen=True, slots=True)
class Runner:
    """Runs jobs with these handlers, by kind. `handing_back` turns true when the worker should hand its jobs back."""

    kb: KnowledgeBase
    handlers: Mapping[str, Handler]
    handing_back: Callable[[], bool]
    explain: Callable[[Exception], Problem] = problem_of
    beat_seconds: float = BEAT_SECONDS

    def run(self, job_id: int, ticket: int) -> None:
        """Run the job, if this ticket is still valid for it."""
        lease = Lease.take(
            self.kb.engine, job_id, ticket, handing_back=self.handing_back, beat_seconds=self.beat_seconds
        )
        if lease is None:
            return
        job = lease.job
        _log_runner.info("job %d (%s) starts, attempt %d", job_id, job.kind, job.attempts)
        try:
            result = self._handle(lease)
        except JobCancelled:
            self._settle(lease, "cancelled")
        except LeaseLost:
            lease.close()
        except JobStopped:
            lease.close()
            self._hand_back(job_id, ticket)
        except _DATABASE_GONE_RUNNER as error:
            # Nothing can be written now. The job still counts as running, but without a worker: it is taken up again.
            _log_runner.warning("job %d lost its database: %s", job_id, waits.cause_of(error))
            lease.close()
        except Exception as error:  # noqa: BLE001 - whatever a handler raises is how its job ends
            if not isinstance(error, KBError):
                _log_runner.exception("job %d (%s) failed", job_id, job.kind)
            self._settle(lease, "failed", error=self.explain(error))
        except BaseException:  # also where the worker is told to end: the job is taken up by another
            lease.close()
            raise
        else:
            self._settle(lease, "succeeded", result=result)

    def _handle(self, lease: Lease) -> Any:
        job = lease.job
        work: Work = work_of(job.kind, job.arguments)
        if (handler := self.handlers.get(job.kind)) is None:
            raise InvalidValue(
                "kind of the job",
                f"this worker cannot do {job.kind!r}, so the job has ended. Start a worker of the version that queued "
                f"it, and start the job again with `colmlm jobs start`",
            )
        kb = _acting_as(self.kb, job.actor)
        run = JobRun(kb, job, Uploads.of(self.kb.settings), lease.progress, lease.check)
        lease.check()
        # A scoped caller's job works with the program's role: it was checked when it was queued, and what it gives back
        # is limited by the scope of who asked, as an edit's answer is.
        principal = _principal(job)
        is_scoped = principal.corpora is not None
        as_asked = origin.set(Origin(principal, job.request_id, is_service=is_scoped))
        try:
            # Through JSON, so that NaN and infinity become null, and not an error when the result is stored.
            result = msgspec.json.decode(msgspec.json.encode(handler(run, work), enc_hook=str))
            return _without_counts_of_base(result) if is_scoped else result
        finally:
            origin.reset(as_asked)

    def _settle(self, lease: Lease, state: str, **outcome: Any) -> None:
        job = lease.job
        if lease.settle(state, **outcome):
            _log_runner.info("job %d (%s) has %s", job.job_id, job.kind, state)
            Uploads.of(self.kb.settings).discard(job.kind, job.arguments)

    def _hand_back(self, job_id: int, ticket: int) -> None:
        with self.kb.sessions.begin() as session:
            job = session.get_one(JobRow, job_id, with_for_update=True)
            if job.ticket == ticket and job.state == "running":
                job.attempts -= 1  # only attempts that failed count
                tickets.requeue_ticket(session, job)
        _log_runner.info("job %d was handed back", job_id)


def _without_counts_of_base(result: Any) -> Any:
    """Give a job's result with only the id and state of its keyset, whose counts are those of all corpora."""
    if not isinstance(result, dict) or not isinstance(keyset := result.get("keyset"), dict):
        return result
    return {**result, "keyset": {name: keyset[name] for name in ("keyset_id", "state") if name in keyset}}


def _principal(job: JobRecord) -> Principal:
    """Give the principal who queued this job, with the id of the job."""
    asked = job.principal or Principal("job", job.actor)
    return replace(asked, job_id=job.job_id)


def _acting_as(kb: KnowledgeBase, actor: str) -> KnowledgeBase:
    """Give a copy of the knowledge base whose changes name this actor."""
    acting = copy.copy(kb)
    acting.settings = replace(kb.settings, actor=actor)
    return acting
