"""Operations: jobs, uploads into corpora, backups, tokens, and the status of this process."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

from litestar import get, post
from litestar.concurrency import sync_to_thread
from litestar.datastructures import UploadFile
from litestar.response import Redirect
from sqlalchemy import text

from colmlm.api.console.forms import Form, FromForm, form_page, show_again
from colmlm.api.console.views import Page, PageRequest, page
from colmlm.api.errors import right_missing
from colmlm.api.middleware.auth import Limiter, Right, needs
from colmlm.api.ports import FromPorts, Ports
from colmlm.api.routes.health import state_of
from colmlm.api.routes.parameters import PathId
from colmlm.kb.access.records import LONGEST, MAX_RATE, ROLES
from colmlm.kb.backup.write import KeptBackup, backup_folder, kept_backups
from colmlm.kb.errors import InvalidWork, KBError
from colmlm.kb.jobs.kinds import KINDS, Documents, Ingest, MakeBackup, VerifyBackup, work_of
from colmlm.kb.jobs.queue import Jobs
from colmlm.kb.jobs.records import JobRecord, Work
from colmlm.kb.jobs.uploads import Upload, Uploads

JOBS_ON_A_PAGE = 50


def visible_kinds(request: PageRequest, *among: str) -> list[str]:
    """Give the kinds of jobs, of these or of all, that the token may start and so may see."""
    return [kind for kind, work in KINDS.items() if request.user.may(work.right) and kind in (among or KINDS)]


def _show_job(ports: Ports, request: PageRequest, job_id: int, form: Form) -> Page:
    job, workers = _require_visible(ports, request, job_id), Jobs(ports.kb).num_workers()
    return form_page(request, "job.html", form, job=job, workers=workers)


def _require_visible(ports: Ports, request: PageRequest, job_id: int) -> JobRecord:
    """Give the job. Raise `RightMissing` where this token may not start jobs of its kind."""
    job = Jobs(ports.kb).get(job_id)
    right = KINDS[job.kind].right
    if not request.user.may(right):
        raise right_missing(request.user.role, right)
    return job


@get("/jobs", opt=needs(Right.read), sync_to_thread=True)
def list_jobs(ports: FromPorts, request: PageRequest, form: FromForm) -> Page:
    """Show the jobs of kinds that this token may start, newest first."""
    jobs, before = Jobs(ports.kb), form.integer("before")
    found = jobs.list(kinds=visible_kinds(request), before=before, limit=JOBS_ON_A_PAGE + 1)
    more = found[JOBS_ON_A_PAGE - 1].job_id if len(found) > JOBS_ON_A_PAGE else None
    return page(request, "jobs.html", jobs=found[:JOBS_ON_A_PAGE], more=more, workers=jobs.num_workers())


@get("/jobs/{job_id:int}", opt=needs(Right.read), sync_to_thread=True)
def read_job(ports: FromPorts, request: PageRequest, job_id: PathId) -> Page:
    return _show_job(ports, request, job_id, Form())


@post("/jobs/{job_id:int}/cancel", opt=needs(Right.read), sync_to_thread=True)
@show_again(_show_job)
def cancel_job(ports: FromPorts, request: PageRequest, job_id: PathId, form: FromForm) -> Page:
    """Cancel a job: at once if it is queued, else before its next piece of work."""
    _require_visible(ports, request, job_id)
    Jobs(ports.kb).cancel(job_id, actor=request.user.name)
    return Redirect(f"/console/jobs/{job_id}", status_code=303)


# Corpora: shows what the base was filled from, and takes uploads, which jobs then ingest.

FORMATS = (
    ("documents", "raw: txt, md, html, pdf, docx, epub, csv, tsv, jsonl, parquet"),
    ("annotated", "annotated, as JSON Lines"),
    ("parquet", "annotated, as Parquet"),
    ("squad", "SQuAD"),
)
MOST_BYTES = 256 * 1024 * 1024  # per form; the API and the command line take more
MOST_FILES = 50
BLOCK = 1 << 20
UPLOAD_JOBS = 10


class _UploadForm(NamedTuple):
    """Hold what is asked for beside the files."""

    corpus: str
    reason: str | None
    format: str
    questions: bool


def _read_upload_form(form: Form, files: list[UploadFile]) -> _UploadForm:
    corpus, reason = form.text("corpus", limit=200), form.optional("reason", limit=1000)
    format_ = form.choice("format", [value for value, _ in FORMATS])
    if not files:
        form.mistakes["file"] = "Choose at least one file."
    elif len(files) > MOST_FILES:
        form.mistakes["file"] = f"At most {MOST_FILES} files are taken at once; send the others after these."
    form.check()
    return _UploadForm(corpus, reason, format_, form.flag("questions"))


async def _keep_file(ports: Ports, file: UploadFile) -> Upload:
    with Uploads.of(ports.kb.settings).receive(file.filename) as receiving:
        while block := await file.read(BLOCK):
            await sync_to_thread(receiving.write, block)
    return receiving.upload


def _queue_jobs(ports: Ports, actor: str, asked: _UploadForm, kept: list[Upload]) -> list[JobRecord]:
    why = {"corpus": asked.corpus, "reason": asked.reason or f"upload of {len(kept)} files"}
    arguments: list[dict[str, Any]]
    if asked.format == Documents.kind:
        arguments = [{**why, "upload_ids": [file.upload_id for file in kept], "questions": asked.questions}]
        kind: type[Work] = Documents
    else:
        arguments = [
            {**why, "upload_id": file.upload_id, "format": asked.format, "key": True} for file in kept
        ]
        kind = Ingest
    jobs = Jobs(ports.kb)
    return [jobs.submit(work_of(kind.kind, one), actor=actor) for one in arguments]


def _show_corpora(ports: Ports, request: PageRequest, form: Form) -> Page:
    jobs = Jobs(ports.kb)
    return form_page(
        request,
        "corpora.html",
        form,
        corpora=ports.kb.corpora.all(),
        formats=FORMATS,
        jobs=jobs.list(kinds=visible_kinds(request, Documents.kind, Ingest.kind), limit=UPLOAD_JOBS),
        workers=jobs.num_workers(),
        largest=MOST_BYTES // 1024 // 1024,
    )


@get("/corpora", opt=needs(Right.read), sync_to_thread=True)
def list_corpora(ports: FromPorts, request: PageRequest) -> Page:
    return _show_corpora(ports, request, Form())


@post("/corpora", opt=needs(Right.edit, Limiter.uploads), request_max_body_size=MOST_BYTES)
async def upload_files(ports: FromPorts, request: PageRequest) -> Page:
    """Store the files and queue their jobs: one for all raw documents, one for each annotated file."""
    sent = await request.form()
    files = [file for file in sent.getall("file", []) if isinstance(file, UploadFile) and file.filename]
    form = Form({name: sent.getall(name) for name in sent if name != "file"})
    try:
        asked = _read_upload_form(form, files)
        kept = [await _keep_file(ports, file) for file in files]
        jobs = await sync_to_thread(_queue_jobs, ports, request.user.name, asked, kept)
    except KBError as error:
        return await sync_to_thread(_show_corpora, ports, request, form.refuse(error))
    return Redirect(
        f"/console/jobs/{jobs[-1].job_id}" if len(jobs) == 1 else "/console/corpora", status_code=303
    )


# Backups: lists the files in the home's folder `backups`, and queues jobs that write or verify one.

BACKUP_JOBS = 200  # how many jobs are searched for those about a file
RECENT_JOBS = 5


@dataclass(frozen=True, slots=True)
class BackupLine:
    """A backup file, the job that wrote it, and the newest check of its present content; None where there is no such
    job.
    """

    file: KeptBackup
    made: JobRecord | None
    check: JobRecord | None


def _start_backup_job(ports: Ports, request: PageRequest, form: Form, kind: str, **more: bool) -> Page:
    try:
        name = form.text("name", limit=100)
        form.check()
        if kind == MakeBackup.kind and not more["replace"] and _is_kept(ports, name):
            form.mistakes["name"] = "There is one of this name. Choose another, or replace it."
            form.check()
        job = Jobs(ports.kb).submit(work_of(kind, {"name": name, **more}), actor=request.user.name)
    except InvalidWork as error:
        form.mistakes["name"] = "Give a name of letters, digits, dots and dashes, such as monday.backup."
        return _show_backups(ports, request, form.refuse(error))
    except KBError as error:
        return _show_backups(ports, request, form.refuse(error))
    return Redirect(f"/console/jobs/{job.job_id}", status_code=303)


def _is_kept(ports: Ports, name: str) -> bool:
    return any(kept.name == name for kept in kept_backups(ports.kb.settings))


def _show_backups(ports: Ports, request: PageRequest, form: Form) -> Page:
    queue = Jobs(ports.kb)
    jobs = queue.list(kinds=(MakeBackup.kind, VerifyBackup.kind), limit=BACKUP_JOBS)
    return form_page(
        request,
        "backups.html",
        form,
        rows=[_backup_line(kept, jobs) for kept in kept_backups(ports.kb.settings)],
        folder=backup_folder(ports.kb.settings),
        jobs=[job for job in jobs if not job.is_over] or jobs[:RECENT_JOBS],
        workers=queue.num_workers(),
        name=f"{datetime.now(UTC):%Y-%m-%d}.backup",
    )


def _backup_line(file: KeptBackup, jobs: list[JobRecord]) -> BackupLine:
    about = [job for job in jobs if job.arguments.get("name") == file.name and job.is_over]
    made = (
        job
        for job in about
        # The size must match, since another file may have been put under this name since.
        if job.kind == MakeBackup.kind and job.result and job.result.get("num_bytes") == file.num_bytes
    )
    checks = (
        job
        for job in about
        # A check that began before the file was replaced says nothing about the present one.
        if job.kind == VerifyBackup.kind and job.started_at is not None and job.started_at >= file.written_at
    )
    return BackupLine(file, next(made, None), next(checks, None))


@get("/backups", opt=needs(Right.admin), sync_to_thread=True)
def list_backups(ports: FromPorts, request: PageRequest) -> Page:
    """Show the backups, and the form for another."""
    return _show_backups(ports, request, Form())


@post("/backups", opt=needs(Right.admin), sync_to_thread=True)
def make_backup(ports: FromPorts, request: PageRequest, form: FromForm) -> Page:
    """Write a backup, as a job."""
    return _start_backup_job(ports, request, form, MakeBackup.kind, replace=form.flag("replace"))


@post("/backups/verify", opt=needs(Right.admin), sync_to_thread=True)
def verify_backup(ports: FromPorts, request: PageRequest, form: FromForm) -> Page:
    """Compare every checksum of a backup, as a job."""
    return _start_backup_job(ports, request, form, VerifyBackup.kind)


# Tokens: their roles, when they expire, and when they were last used. A secret is shown once.

TOKENS_ON_A_PAGE = 200
ROLE_TEXTS = {
    "decoder": "look up, and store what a decoder said",
    "reader": "look up, read, ask",
    "operator": "read, edit, forget, audit",
    "auditor": "read, and audit",
    "trainer": "read, key and switch keysets, export",
    "admin": "everything, with tokens, erasures and backups",
}
GRACE_HOURS = (
    ("0", "ends at once"),
    ("1", "works for another hour"),
    ("24", "works for another day"),
    ("168", "works for another week"),
)


def _in_days(days: int | None) -> timedelta | None:
    return None if days is None else timedelta(days=days)


def show_tokens(ports: FromPorts, request: PageRequest, form: FromForm) -> Page:
    """Show every token, also expired and revoked ones, and the form for another."""
    after, revoked = form.integer("after", low=0) or 0, form.integer("revoked")
    access = ports.kb.access
    found = access.all(after=after, limit=TOKENS_ON_A_PAGE + 1)
    ended = access.show(access.name_of(revoked)) if revoked else None
    return form_page(
        request,
        "tokens.html",
        form,
        tokens=found[:TOKENS_ON_A_PAGE],
        more=found[TOKENS_ON_A_PAGE - 1].key_id if len(found) > TOKENS_ON_A_PAGE else None,
        ended=ended if ended and ended.revoked_at else None,
        roles=[(role, f"{role}: {ROLE_TEXTS[role]}") for role in ROLES],
        most_days=LONGEST.days,
        most_rate=MAX_RATE,
        limit=ports.settings.rate_limit,
    )


def _confirm_token(ports: Ports, request: PageRequest, verb: str, token_id: int, form: Form) -> Page:
    token = ports.kb.access.show(ports.kb.access.name_of(token_id))
    return form_page(
        request,
        "token_edit.html",
        form,
        verb=verb,
        token=token,
        hours=GRACE_HOURS,
        most_days=LONGEST.days,
        is_own=token.key_id == request.user.key_id,
    )


@post("/tokens", opt=needs(Right.admin), sync_to_thread=True)
@show_again(show_tokens)
def create_token(ports: FromPorts, request: PageRequest, form: FromForm) -> Page:
    """Create a token, and show its secret once."""
    name, role = form.text("name", limit=100), form.choice("role", list(ROLES))
    days, rate = form.integer("days", 1, LONGEST.days), form.integer("rate", 1, MAX_RATE)
    form.check()
    secret, made = ports.kb.access.create(name, role, expires_in=_in_days(days), rate_limit=rate)
    return page(request, "token_secret.html", token=made, secret=secret, verb="made")


@get("/tokens/{token_id:int}/rotate", opt=needs(Right.admin), sync_to_thread=True)
def ask_to_rotate(ports: FromPorts, request: PageRequest, token_id: PathId) -> Page:
    """Ask how long the old secret works, before a token gets another."""
    return _confirm_token(ports, request, "rotate", token_id, Form())


@post("/tokens/{token_id:int}/rotate", opt=needs(Right.admin), sync_to_thread=True)
@show_again(partial(_confirm_token, verb="rotate"))
def rotate_token(ports: FromPorts, request: PageRequest, token_id: PathId, form: FromForm) -> Page:
    """Give a token another secret, and show it once."""
    hours = form.choice("grace", [value for value, _ in GRACE_HOURS])
    days = form.integer("days", 1, LONGEST.days)
    form.check()
    name, grace = ports.kb.access.name_of(token_id), timedelta(hours=int(hours))
    secret, rotated = ports.kb.access.rotate(name, grace=grace, expires_in=_in_days(days))
    return page(request, "token_secret.html", token=rotated, secret=secret, verb="rotated")


@get("/tokens/{token_id:int}/revoke", opt=needs(Right.admin), sync_to_thread=True)
def ask_to_revoke(ports: FromPorts, request: PageRequest, token_id: PathId) -> Page:
    """Ask for confirmation before a token is revoked: show whose it is, and when it was last used."""
    return _confirm_token(ports, request, "revoke", token_id, Form())


@post("/tokens/{token_id:int}/revoke", opt=needs(Right.admin), sync_to_thread=True)
@show_again(partial(_confirm_token, verb="revoke"))
def revoke_token(ports: FromPorts, request: PageRequest, token_id: PathId, form: FromForm) -> Page:
    """Revoke a token, with every secret of it, in every process."""
    ports.kb.access.revoke(ports.kb.access.name_of(token_id))
    return Redirect(f"/console/tokens?revoked={token_id}", status_code=303)


# Status: the health of this process, its index, its workers, and the versions of its packages.

PACKAGES = (
    "colmlm",
    "litestar",
    "sqlalchemy",
    "psycopg",
    "faiss-cpu",
    "faiss-gpu",
    "numpy",
    "torch",
    "transformers",
)


def _find_versions(ports: Ports) -> dict[str, str]:
    found = {"Python": platform.python_version()}
    with ports.kb.engine.connect() as connection:
        found["PostgreSQL"] = str(connection.scalar(text("SHOW server_version"))).split(" ")[0]
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


@get("/status", opt=needs(Right.read), sync_to_thread=True)
def show_status(ports: FromPorts, request: PageRequest) -> Page:
    health = state_of(ports)
    jobs = Jobs(ports.kb)
    return page(
        request,
        "status.html",
        health=health,
        versions=_find_versions(ports),
        jobs=jobs.counts(),
        workers=health.workers,
        worker=ports.readiness.worker(),
        to_review=ports.kb.review.progress() if health.migrations_at_head else None,
        misses=ports.kb.misses.open_groups() if health.migrations_at_head else 0,
        compared=ports.kb.comparisons.counts() if health.migrations_at_head else None,
        answering=ports.need_calibrations().standing()
        if ports.answers and health.migrations_at_head
        else None,
    )


HANDLERS = (
    list_jobs,
    read_job,
    cancel_job,
    list_corpora,
    upload_files,
    list_backups,
    make_backup,
    verify_backup,
    get("/tokens", opt=needs(Right.admin), sync_to_thread=True)(show_tokens),
    create_token,
    ask_to_rotate,
    rotate_token,
    ask_to_revoke,
    revoke_token,
    show_status,
)
