"""Backups: lists the files in the home's folder `backups`, and queues jobs that write or verify one."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from litestar import get, post
from litestar.response import Redirect

from colmlm.api.console.views import Form, Page, PageRequest, Sent, form_page
from colmlm.api.middleware.auth import Right, needs
from colmlm.api.ports import FromPorts, Ports
from colmlm.kb.backup.kept import KeptBackup, backup_folder, kept_backups
from colmlm.kb.errors import InvalidWork, KBError
from colmlm.kb.jobs.kinds import MakeBackup, VerifyBackup, work_of
from colmlm.kb.jobs.queue import Jobs
from colmlm.kb.jobs.records import JobRecord

JOBS = 200  # how many jobs are searched for those about a file
RECENT = 5


@dataclass(frozen=True, slots=True)
class BackupLine:
    """A backup file, the job that wrote it, and the newest check of its present content; None where there is no such
    job.
    """

    file: KeptBackup
    made: JobRecord | None
    check: JobRecord | None


@get("/backups", opt=needs(Right.admin), sync_to_thread=True)
def overview(ports: FromPorts, request: PageRequest) -> Page:
    """Show the backups, and the form for another."""
    return _overview(ports, request, Form())


@post("/backups", opt=needs(Right.admin), sync_to_thread=True)
def make(ports: FromPorts, request: PageRequest, data: Sent) -> Page:
    """Write a backup, as a job."""
    form = Form(data)
    return _start(ports, request, form, MakeBackup.kind, replace=form.flag("replace"))


@post("/backups/verify", opt=needs(Right.admin), sync_to_thread=True)
def verify(ports: FromPorts, request: PageRequest, data: Sent) -> Page:
    """Compare every checksum of a backup, as a job."""
    return _start(ports, request, Form(data), VerifyBackup.kind)


HANDLERS = (overview, make, verify)


def _start(ports: Ports, request: PageRequest, form: Form, kind: str, **more: bool) -> Page:
    try:
        name = form.text("name", limit=100)
        form.check()
        if kind == MakeBackup.kind and not more["replace"] and _is_kept(ports, name):
            form.mistakes["name"] = "There is one of this name. Choose another, or replace it."
            form.check()
        job = Jobs(ports.kb).submit(work_of(kind, {"name": name, **more}), actor=request.user.name)
    except InvalidWork as error:
        form.mistakes["name"] = "Give a name of letters, digits, dots and dashes, such as monday.backup."
        return _overview(ports, request, form.refuse(error))
    except KBError as error:
        return _overview(ports, request, form.refuse(error))
    return Redirect(f"/console/jobs/{job.job_id}", status_code=303)


def _is_kept(ports: Ports, name: str) -> bool:
    return any(kept.name == name for kept in kept_backups(ports.kb.settings))


def _overview(ports: Ports, request: PageRequest, form: Form) -> Page:
    queue = Jobs(ports.kb)
    jobs = queue.list(kinds=(MakeBackup.kind, VerifyBackup.kind), limit=JOBS)
    return form_page(
        request,
        "backups.html",
        form,
        rows=[_row(kept, jobs) for kept in kept_backups(ports.kb.settings)],
        folder=backup_folder(ports.kb.settings),
        jobs=[job for job in jobs if not job.is_over] or jobs[:RECENT],
        workers=queue.num_workers(),
        name=f"{datetime.now(UTC):%Y-%m-%d}.backup",
    )


def _row(file: KeptBackup, jobs: list[JobRecord]) -> BackupLine:
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
