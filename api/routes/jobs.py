"""Jobs: a request queues long work, which a worker does, and reads its progress.

Seeing or cancelling a job takes the same right as starting it. A scoped caller sees the jobs of callers with a right on
its corpora or some of them, and on no other: the policy of the table says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from litestar import get, post
from litestar.concurrency import sync_to_thread
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import JSONBody, QueryParameter
from litestar.response import ServerSentEvent, ServerSentEventMessage

from colmlm.api.errors import MEDIA_TYPE, PROBLEMS, right_missing
from colmlm.api.middleware.auth import CorpusLimit, Limiter, Right, in_thread, needs
from colmlm.api.ports import FromPorts, Ports
from colmlm.api.routes.parameters import Cursor, Limit, PathId, WithToken, after_of, edit_in_scope, page
from colmlm.api.routes.responses import PolledEvents, stream_polled_events
from colmlm.api.wire import Page, Problem
from colmlm.kb.access.records import TokenRecord
from colmlm.kb.errors import refusals
from colmlm.kb.jobs.kinds import (
    KINDS,
    AskQuestions,
    CalibrateAnswers,
    Check,
    Compare,
    Documents,
    Gate,
    Ingest,
    MakeBackup,
    Rekey,
    Sync,
    VerifyBackup,
    VerifyForgetting,
    WriteSnapshot,
)
from colmlm.kb.jobs.queue import Jobs
from colmlm.kb.jobs.records import JobRecord, Work
from colmlm.kb.jobs.uploads import Upload, Uploads
from colmlm.kb.principal import as_service

State = Literal["queued", "running", "succeeded", "failed", "cancelled"]
States = Annotated[
    list[State] | None, QueryParameter(name="state", max_items=5, description="Only in these states")
]


@post("/jobs/rekey", status_code=202, **in_thread(Right.train))
def start_rekey(ports: FromPorts, request: WithToken, data: JSONBody[Rekey]) -> JobRecord:
    """Start a rekey.

    Makes keys for facts with a keyset's checkpoint, with one from the folder `checkpoints`, or with the worker's own.
    """
    return _start(ports, request, data)


@post("/jobs/gate", status_code=202, **in_thread(Right.train))
def start_gate(ports: FromPorts, request: WithToken, data: JSONBody[Gate]) -> JobRecord:
    """Start a gate.

    Measures a keyset before it is activated; with `activate`, activates it if it passes.
    """
    return _start(ports, request, data)


@post("/jobs/ingest", status_code=202, **in_thread(Right.edit, scoped=CorpusLimit.targets))
def start_ingest(ports: FromPorts, request: WithToken, data: JSONBody[Ingest]) -> JobRecord:
    """Start an ingest.

    Ingests an uploaded annotated file into a corpus.
    """
    edit_in_scope(ports, corpus=data.corpus)
    return _start(ports, request, data)


@post("/jobs/documents", status_code=202, **in_thread(Right.edit, scoped=CorpusLimit.targets))
def start_documents(ports: FromPorts, request: WithToken, data: JSONBody[Documents]) -> JobRecord:
    """Start to add raw documents.

    Reads uploaded documents, marks their facts, ingests them and makes their keys.
    """
    edit_in_scope(ports, corpus=data.corpus)
    return _start(ports, request, data)


@post("/jobs/sync", status_code=202, **in_thread(Right.edit, scoped=CorpusLimit.targets))
def start_sync(ports: FromPorts, request: WithToken, data: JSONBody[Sync]) -> JobRecord:
    """Start a sync.

    Adds what is new or changed in a directory of the worker's folder `folders` to a corpus, and takes out what is gone.
    With a token of some corpora it does so again for a corpus that follows the directory already.
    """
    edit_in_scope(ports, corpus=data.corpus)
    _require_followed(ports, request, data)
    return _start(ports, request, data)


@post("/jobs/calibrate-answers", status_code=202, **in_thread(Right.edit))
def start_calibration(ports: FromPorts, request: WithToken, data: JSONBody[CalibrateAnswers]) -> JobRecord:
    """Start to calibrate answers.

    Asks questions of an uploaded file, or of corpora, and chooses the score from which answers are given.
    """
    return _start(ports, request, data)


@post("/jobs/ask-questions", status_code=202, **in_thread(Right.edit))
def start_questions(ports: FromPorts, request: WithToken, data: JSONBody[AskQuestions]) -> JobRecord:
    """Start to ask a set of questions.

    Asks all questions of a set, and stores what came of each as a run.
    """
    return _start(ports, request, data)


@post("/jobs/verify", status_code=202, **in_thread(Right.audit))
def start_verify(ports: FromPorts, request: WithToken, data: JSONBody[VerifyForgetting]) -> JobRecord:
    """Start a verification.

    Asks for the facts of an applied forget run by every kind of query.
    """
    return _start(ports, request, data)


@post("/jobs/backup", status_code=202, **in_thread(Right.admin))
def start_backup(ports: FromPorts, request: WithToken, data: JSONBody[MakeBackup]) -> JobRecord:
    """Start a backup.

    Writes a backup into the folder `backups` of the worker's home.
    """
    return _start(ports, request, data)


@post("/jobs/verify-backup", status_code=202, **in_thread(Right.admin))
def start_backup_check(ports: FromPorts, request: WithToken, data: JSONBody[VerifyBackup]) -> JobRecord:
    """Start to verify a backup.

    Reads a backup in the folder `backups` of the worker's home from start to end and compares its checksums.
    """
    return _start(ports, request, data)


@post("/jobs/snapshot", status_code=202, **in_thread(Right.train))
def start_snapshot(ports: FromPorts, request: WithToken, data: JSONBody[WriteSnapshot]) -> JobRecord:
    """Start a snapshot.

    Writes the active keyset's index to disk.
    """
    return _start(ports, request, data)


@post("/jobs/fsck", status_code=202, **in_thread(Right.audit))
def start_check(ports: FromPorts, request: WithToken, data: JSONBody[Check]) -> JobRecord:
    """Start a check of everything.

    Compares facts, keys, indexes, documents and the change log with one another.
    """
    return _start(ports, request, data)


@post("/jobs/compare", status_code=202, **in_thread(Right.edit))
def start_comparison(ports: FromPorts, request: WithToken, data: JSONBody[Compare]) -> JobRecord:
    """Start to compare all facts.

    Finds the pairs of facts that contradict or say the same, by the words of their questions and by their keys.
    """
    return _start(ports, request, data)


@get("/jobs", **in_thread(Right.read, scoped=CorpusLimit.rows))
def list_jobs(
    ports: FromPorts, request: WithToken, states: States = None, cursor: Cursor = None, limit: Limit = 50
) -> Page[JobRecord]:
    """List jobs.

    The jobs of kinds that this token may start, newest first.
    """
    kinds = [work.kind for work in KINDS.values() if request.user.may(work.right)]
    before = after_of(cursor, "jobs") or None
    found = Jobs(ports.kb).list(kinds=kinds, states=states, before=before, limit=limit + 1)
    return page(found, limit, "jobs", lambda job: (job.job_id,))


@get("/jobs/{job_id:int}", **in_thread(Right.read, scoped=CorpusLimit.rows))
def read_job(ports: FromPorts, request: WithToken, job_id: PathId) -> JobRecord:
    """Read a job.

    Gives its parameters, its progress, and its result.
    """
    return permitted_job(ports, request.user, job_id)


@post("/jobs/{job_id:int}/cancel", status_code=200, **in_thread(Right.read, scoped=CorpusLimit.targets))
def cancel_job(ports: FromPorts, request: WithToken, job_id: PathId) -> JobRecord:
    """Cancel a job.

    A queued job ends at once, a running one before its next piece of work. What it has committed stays.
    """
    permitted_job(ports, request.user, job_id)
    with as_service():
        return Jobs(ports.kb).cancel(job_id, actor=request.user.name)


@get(
    "/jobs/{job_id:int}/events",
    opt=needs(Right.read, Limiter.feeds, CorpusLimit.rows),
    responses=PROBLEMS,
    media_type="text/event-stream",
)
async def follow_job(ports: FromPorts, request: WithToken, job_id: PathId) -> ServerSentEvent:
    """Follow a job.

    Server-sent events: `progress` at every change of the job, then one `end`, each with the whole job. The stream ends
    after five minutes in any case, and with an event `draining` when the server is ending; reconnect to continue.
    """
    await sync_to_thread(permitted_job, ports, request.user, job_id)
    return stream_polled_events(ports, _JobFollower(Jobs(ports.kb), job_id).poll_events)


STARTING: Sequence[Any] = (
    start_rekey,
    start_gate,
    start_ingest,
    start_documents,
    start_sync,
    start_calibration,
    start_questions,
    start_verify,
    start_backup,
    start_backup_check,
    start_snapshot,
    start_check,
    start_comparison,
)


def _require_followed(ports: Ports, request: WithToken, work: Sync) -> None:
    """Refuse a scoped caller a folder that its corpus does not follow yet, since it may belong to other corpora."""
    scope = request.user.corpora
    if scope is not None and (work.move or not ports.kb.corpora.followed_paths(work.corpus)):
        raise refusals.needs_all_corpora(scope)


def _start(ports: Ports, request: WithToken, work: Work) -> JobRecord:
    return Jobs(ports.kb).submit(work, actor=request.user.name)


def permitted_job(ports: Ports, token: TokenRecord, job_id: int) -> JobRecord:
    """Give the job. Raise `RightMissing` if this token may not start jobs of its kind."""
    job = Jobs(ports.kb).get(job_id)
    right = KINDS[job.kind].right
    if not token.may(right):
        raise right_missing(token.role, right)
    return job


@dataclass(slots=True)
class _JobFollower:
    """Polls a job for progress. `told` is the job as it was sent last."""

    jobs: Jobs
    job_id: int
    told: JobRecord | None = None

    def poll_events(self) -> PolledEvents:
        job = self.jobs.get(self.job_id)
        if self.told is not None and _progress_fields(self.told) == _progress_fields(job):
            return PolledEvents([])
        self.told = job
        name = "end" if job.is_over else "progress"
        message = ServerSentEventMessage(event=name, data=msgspec.json.encode(job).decode())
        return PolledEvents([message], is_over=job.is_over)


def _progress_fields(job: JobRecord) -> tuple[Any, ...]:
    """Give the fields of a job whose change is progress; its heartbeat is not among them."""
    return job.state, job.done, job.total, job.message, job.attempts, job.cancelled_by


# Uploads: files for a job to read. A file is written to disk as it arrives, so its size costs no memory.

FileName = Annotated[
    str,
    QueryParameter(min_length=1, max_length=200, description="The file's name; its end says what kind it is"),
]


_TOO_LARGE = ResponseSpec(
    Problem, generate_examples=False, description="The file is too large", media_type=MEDIA_TYPE
)


# `request_max_body_size` is None, since the settings hold the limit, which is checked while the file arrives.
@post(
    "/uploads",
    opt=needs(Right.edit, Limiter.uploads, CorpusLimit.filter),
    responses=PROBLEMS | {413: _TOO_LARGE},
    request_max_body_size=None,
)
async def upload(ports: FromPorts, request: WithToken, name: FileName) -> Upload:
    """Upload a file.

    The body is stored unchanged for a job, which names it by `upload_id`. It is removed when that job is over, or after
    a day without one.
    """
    with Uploads.of(ports.kb.settings).receive(name) as receiving:
        async for block in request.stream():
            await sync_to_thread(receiving.write, block)
    return receiving.upload


HANDLERS: Sequence[Any] = (upload, *STARTING, list_jobs, read_job, cancel_job, follow_job)
