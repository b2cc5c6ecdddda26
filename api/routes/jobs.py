"""Jobs: long work is asked for here and done by a worker; a request only queues it, and says how far it is.

A job is seen and cancelled with the right that its work takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from litestar import Request, get, post
from litestar.concurrency import sync_to_thread
from litestar.params import JSONBody, QueryParameter
from litestar.response import ServerSentEvent, ServerSentEventMessage

from colmlm.api.door.rights import Lane, Right, needs
from colmlm.api.errors import PROBLEMS, RightMissing
from colmlm.api.ports import FromPorts, Ports
from colmlm.api.routes.following import Seen, followed
from colmlm.api.schema.paging import Cursor, Limit, after_of, page
from colmlm.api.schema.schemas import PathId
from colmlm.api.wire.pages import Page
from colmlm.kb.access.api_keys import ApiKeyRecord
from colmlm.kb.jobs.kinds import (
    KINDS,
    Check,
    Documents,
    Gate,
    Ingest,
    MakeBackup,
    Rekey,
    VerifyBackup,
    VerifyForgetting,
    Work,
    WriteSnapshot,
)
from colmlm.kb.jobs.queue import Jobs
from colmlm.kb.jobs.records import JobRecord

State = Literal["queued", "running", "succeeded", "failed", "cancelled"]
States = Annotated[
    list[State] | None, QueryParameter(name="state", max_items=5, description="Only in these states")
]
WithKey = Request[ApiKeyRecord, Any, Any]


@post("/jobs/rekey", status_code=202, opt=needs(Right.train), responses=PROBLEMS, sync_to_thread=True)
def start_rekey(ports: FromPorts, request: WithKey, data: JSONBody[Rekey]) -> JobRecord:
    """Start a rekey.

    Gives facts keys: of a keyset's checkpoint, of one in the folder `checkpoints`, or of the worker's own.
    """
    return _start(ports, request, data)


@post("/jobs/gate", status_code=202, opt=needs(Right.train), responses=PROBLEMS, sync_to_thread=True)
def start_gate(ports: FromPorts, request: WithKey, data: JSONBody[Gate]) -> JobRecord:
    """Start a gate.

    Measures a keyset before it answers; with `activate`, lets it answer if it passes.
    """
    return _start(ports, request, data)


@post("/jobs/ingest", status_code=202, opt=needs(Right.edit), responses=PROBLEMS, sync_to_thread=True)
def start_ingest(ports: FromPorts, request: WithKey, data: JSONBody[Ingest]) -> JobRecord:
    """Start an ingest.

    Takes an uploaded annotated file into a corpus.
    """
    return _start(ports, request, data)


@post("/jobs/documents", status_code=202, opt=needs(Right.edit), responses=PROBLEMS, sync_to_thread=True)
def start_documents(ports: FromPorts, request: WithKey, data: JSONBody[Documents]) -> JobRecord:
    """Start to add raw documents.

    Reads uploaded documents, marks their facts, takes them in and keys them.
    """
    return _start(ports, request, data)


@post("/jobs/verify", status_code=202, opt=needs(Right.audit), responses=PROBLEMS, sync_to_thread=True)
def start_verify(ports: FromPorts, request: WithKey, data: JSONBody[VerifyForgetting]) -> JobRecord:
    """Start a verification.

    Asks for the facts of an applied forget run in every way there is.
    """
    return _start(ports, request, data)


@post("/jobs/backup", status_code=202, opt=needs(Right.admin), responses=PROBLEMS, sync_to_thread=True)
def start_backup(ports: FromPorts, request: WithKey, data: JSONBody[MakeBackup]) -> JobRecord:
    """Start a backup.

    Writes it into the folder `backups` of the worker's home.
    """
    return _start(ports, request, data)


@post("/jobs/verify-backup", status_code=202, opt=needs(Right.admin), responses=PROBLEMS, sync_to_thread=True)
def start_backup_check(ports: FromPorts, request: WithKey, data: JSONBody[VerifyBackup]) -> JobRecord:
    """Start to verify a backup.

    Reads one of the folder `backups` of the worker's home to its last byte.
    """
    return _start(ports, request, data)


@post("/jobs/snapshot", status_code=202, opt=needs(Right.train), responses=PROBLEMS, sync_to_thread=True)
def start_snapshot(ports: FromPorts, request: WithKey, data: JSONBody[WriteSnapshot]) -> JobRecord:
    """Start a snapshot.

    Writes the active keyset's index to disk.
    """
    return _start(ports, request, data)


@post("/jobs/fsck", status_code=202, opt=needs(Right.audit), responses=PROBLEMS, sync_to_thread=True)
def start_check(ports: FromPorts, request: WithKey, data: JSONBody[Check]) -> JobRecord:
    """Start a check of everything.

    Compares facts, keys, indexes, documents and the change log with one another.
    """
    return _start(ports, request, data)


@get("/jobs", opt=needs(Right.read), responses=PROBLEMS, sync_to_thread=True)
def list_jobs(
    ports: FromPorts, request: WithKey, states: States = None, cursor: Cursor = None, limit: Limit = 50
) -> Page[JobRecord]:
    """List jobs.

    Those whose work this key may ask for, newest first.
    """
    kinds = [work.kind for work in KINDS.values() if request.user.may(work.right)]
    before = after_of(cursor, "jobs") or None
    found = Jobs(ports.kb).list(kinds=kinds, states=states, before=before, limit=limit + 1)
    return page(found, limit, "jobs", lambda job: (job.job_id,))


@get("/jobs/{job_id:int}", opt=needs(Right.read), responses=PROBLEMS, sync_to_thread=True)
def read_job(ports: FromPorts, request: WithKey, job_id: PathId) -> JobRecord:
    """Read a job.

    What it was asked, how far it is, and what came of it.
    """
    return _seen(ports, request.user, job_id)


@post(
    "/jobs/{job_id:int}/cancel",
    status_code=200,
    opt=needs(Right.read),
    responses=PROBLEMS,
    sync_to_thread=True,
)
def cancel_job(ports: FromPorts, request: WithKey, job_id: PathId) -> JobRecord:
    """Cancel a job.

    One that waits ends at once, one that runs before its next piece of work. What is done stays done.
    """
    _seen(ports, request.user, job_id)
    return Jobs(ports.kb).cancel(job_id, actor=request.user.name)


@get(
    "/jobs/{job_id:int}/events",
    opt=needs(Right.read, Lane.feeds),
    responses=PROBLEMS,
    media_type="text/event-stream",
)
async def follow_job(ports: FromPorts, request: WithKey, job_id: PathId) -> ServerSentEvent:
    """Follow a job.

    Server-sent events `progress` whenever it moves, then one `end`; each with the whole job. The stream ends after
    five minutes in any case, and with an event `draining` where the server is ending; ask again to go on.
    """
    await sync_to_thread(_seen, ports, request.user, job_id)
    return followed(ports, _Moving(Jobs(ports.kb), job_id).look)


STARTING: Sequence[Any] = (
    start_rekey,
    start_gate,
    start_ingest,
    start_documents,
    start_verify,
    start_backup,
    start_backup_check,
    start_snapshot,
    start_check,
)
HANDLERS: Sequence[Any] = (*STARTING, list_jobs, read_job, cancel_job, follow_job)


def _start(ports: Ports, request: WithKey, work: Work) -> JobRecord:
    return Jobs(ports.kb).submit(work, actor=request.user.name)


def _seen(ports: Ports, key: ApiKeyRecord, job_id: int) -> JobRecord:
    """The job. Raises `RightMissing` where this key may not ask for such work."""
    job = Jobs(ports.kb).get(job_id)
    right = KINDS[job.kind].right
    if not key.may(right):
        raise RightMissing(key.role, right)
    return job


@dataclass(slots=True)
class _Moving:
    """A job as it moves; `told` is what was said of it last."""

    jobs: Jobs
    job_id: int
    told: JobRecord | None = None

    def look(self) -> Seen:
        job = self.jobs.get(self.job_id)
        if self.told is not None and _moved(self.told) == _moved(job):
            return Seen([])
        self.told = job
        name = "end" if job.is_over else "progress"
        message = ServerSentEventMessage(event=name, data=msgspec.json.encode(job).decode())
        return Seen([message], is_over=job.is_over)


def _moved(job: JobRecord) -> tuple[Any, ...]:
    """What a job's move changes; a heartbeat is none."""
    return job.state, job.done, job.total, job.message, job.attempts, job.cancelled_by
