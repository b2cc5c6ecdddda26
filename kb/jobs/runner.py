"""Runs one job: calls its handler under a lease, and stores how the job ended."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from colmlm.kb.errors import DatabaseUnavailable, InvalidValue, KBError
from colmlm.kb.jobs import tickets
from colmlm.kb.jobs.kinds import work_of
from colmlm.kb.jobs.lease import BEAT_SECONDS, Cancelled, Interrupted, Lease, LeaseLost
from colmlm.kb.jobs.problems import Problem, problem_of
from colmlm.kb.jobs.records import JobRecord
from colmlm.kb.jobs.uploads import Uploads
from colmlm.kb.jobs.work import Work
from colmlm.kb.log.origin import Origin, origin
from colmlm.kb.principal import Principal
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store import outages
from colmlm.kb.tables import JobRow

_DATABASE_GONE = (*outages.GONE, DatabaseUnavailable)
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class JobRun:
    """What a handler works with: the job, and the knowledge base, whose changes name the actor who queued the job.

    `progress` says how far the work is. It and `check` raise where the work should end, so they are to be called where
    nothing is half done.
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
        """Runs the job, if this ticket is still valid for it."""
        lease = Lease.take(
            self.kb.engine, job_id, ticket, handing_back=self.handing_back, beat_seconds=self.beat_seconds
        )
        if lease is None:
            return
        job = lease.job
        _log.info("job %d (%s) starts, attempt %d", job_id, job.kind, job.attempts)
        try:
            result = self._handle(lease)
        except Cancelled:
            self._settle(lease, "cancelled")
        except LeaseLost:
            lease.close()
        except Interrupted:
            lease.close()
            self._hand_back(job_id, ticket)
        except _DATABASE_GONE as error:
            # Nothing can be written now. The job still counts as running, but without a worker: it is taken up again.
            _log.warning("job %d lost its database: %s", job_id, outages.cause(error))
            lease.close()
        except Exception as error:  # noqa: BLE001 - whatever a handler raises is how its job ends
            if not isinstance(error, KBError):
                _log.exception("job %d (%s) failed", job_id, job.kind)
            self._settle(lease, "failed", error=self.explain(error))
        except BaseException:
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
                f"this worker cannot do {job.kind!r}; start one of the release that queued it",
            )
        kb = _acting_as(self.kb, job.actor)
        run = JobRun(kb, job, Uploads.of(self.kb.settings), lease.progress, lease.check)
        lease.check()
        as_asked = origin.set(Origin(_principal(job), job.request_id))
        try:
            # Through JSON, so that NaN and infinity become null, and not an error when the result is stored.
            return msgspec.json.decode(msgspec.json.encode(handler(run, work), enc_hook=str))
        finally:
            origin.reset(as_asked)

    def _settle(self, lease: Lease, state: str, **outcome: Any) -> None:
        job = lease.job
        if lease.settle(state, **outcome):
            _log.info("job %d (%s) has %s", job.job_id, job.kind, state)
            Uploads.of(self.kb.settings).discard(job.kind, job.arguments)

    def _hand_back(self, job_id: int, ticket: int) -> None:
        with self.kb.sessions.begin() as session:
            job = session.get_one(JobRow, job_id, with_for_update=True)
            if job.ticket == ticket and job.state == "running":
                job.attempts -= 1  # only attempts that failed count
                tickets.requeue(session, job)
        _log.info("job %d was handed back", job_id)


def _principal(job: JobRecord) -> Principal:
    """Gives the principal who queued this job, with the id of the job."""
    asked = job.principal or Principal("job", job.actor)
    return replace(asked, job_id=job.job_id)


def _acting_as(kb: KnowledgeBase, actor: str) -> KnowledgeBase:
    """Gives the same knowledge base with changes logged for this actor."""
    acting = copy.copy(kb)
    acting.settings = replace(kb.settings, actor=actor)
    return acting
