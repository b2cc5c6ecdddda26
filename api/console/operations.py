"""Operations: jobs, uploads into corpora, backups, the status of this process, and keysets."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

from litestar import get, post
from litestar.concurrency import sync_to_thread
from litestar.datastructures import UploadFile
from litestar.response import Redirect
from sqlalchemy import text

from colmlm.api.console.views import (
    Form,
    FromForm,
    Page,
    PageRequest,
    find_change,
    form_page,
    on_each,
    page,
    show_again,
    verb_of,
)
from colmlm.api.middleware.auth import CorpusLimit, Limiter, Right, needs
from colmlm.api.ports import FromPorts, Ports
from colmlm.api.routes.health import collect_health
from colmlm.api.routes.jobs import permitted_job
from colmlm.api.routes.parameters import PathId, editing_in_scope
from colmlm.kb.backup.write import KeptBackup, backup_folder, kept_backups
from colmlm.kb.errors import InvalidWork, KBError, NoActiveKeyset, count_of, refusals
from colmlm.kb.jobs.kinds import KINDS, Documents, Gate, Ingest, MakeBackup, Rekey, VerifyBackup, work_of
from colmlm.kb.jobs.queue import Jobs
from colmlm.kb.jobs.records import JobRecord, Work
from colmlm.kb.jobs.uploads import Upload, Uploads
from colmlm.kb.keys.records import GateStanding, KeysetHead, KeysetRecord
from colmlm.kb.principal import as_service

JOBS_ON_A_PAGE = 50


def visible_kinds(request: PageRequest, *among: str) -> list[str]:
    """Give the kinds of jobs that the token may start, and so may see, out of those in `among` (none: out of all)."""
    return [kind for kind, work in KINDS.items() if request.user.may(work.right) and kind in (among or KINDS)]


def _show_job(ports: Ports, request: PageRequest, job_id: int, form: Form) -> Page:
    job = permitted_job(ports, request.user, job_id)
    return form_page(request, "job.html", form, job=job, workers=_count_workers(ports))


def _count_workers(ports: Ports) -> int:
    with as_service():  # they are of no corpus
        return Jobs(ports.kb).num_workers()


@get("/jobs", opt=needs(Right.read, scoped=CorpusLimit.rows), sync_to_thread=True)
def list_jobs(ports: FromPorts, request: PageRequest, form: FromForm) -> Page:
    """Show the jobs of kinds that this token may start, newest first."""
    jobs, before = Jobs(ports.kb), form.integer("before")
    found = jobs.list(kinds=visible_kinds(request), before=before, limit=JOBS_ON_A_PAGE + 1)
    more = found[JOBS_ON_A_PAGE - 1].job_id if len(found) > JOBS_ON_A_PAGE else None
    return page(request, "jobs.html", jobs=found[:JOBS_ON_A_PAGE], more=more, workers=_count_workers(ports))


@get("/jobs/{job_id:int}", opt=needs(Right.read, scoped=CorpusLimit.rows), sync_to_thread=True)
def read_job(ports: FromPorts, request: PageRequest, job_id: PathId) -> Page:
    return _show_job(ports, request, job_id, Form())


@post("/jobs/{job_id:int}/cancel", opt=needs(Right.read, scoped=CorpusLimit.targets), sync_to_thread=True)
@show_again(_show_job)
def cancel_job(ports: FromPorts, request: PageRequest, job_id: PathId, form: FromForm) -> Page:
    """Cancel a job: at once if it is queued, else before its next piece of work."""
    permitted_job(ports, request.user, job_id)
    with as_service():
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
    """The fields of an upload's form beside its files."""

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
    why = {"corpus": asked.corpus, "reason": asked.reason or f"upload of {count_of(len(kept), 'file')}"}
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
    with editing_in_scope(ports, corpus=asked.corpus):
        return [jobs.submit(work_of(kind.kind, one), actor=actor) for one in arguments]


def _show_corpora(ports: Ports, request: PageRequest, form: Form) -> Page:
    kinds = visible_kinds(request, Documents.kind, Ingest.kind)
    return form_page(
        request,
        "corpora.html",
        form,
        corpora=ports.kb.corpora.all(),
        formats=FORMATS,
        jobs=Jobs(ports.kb).list(kinds=kinds, limit=UPLOAD_JOBS),
        workers=_count_workers(ports),
        largest=MOST_BYTES // 1024 // 1024,
    )


@get("/corpora", opt=needs(Right.read, scoped=CorpusLimit.rows), sync_to_thread=True)
def list_corpora(ports: FromPorts, request: PageRequest) -> Page:
    return _show_corpora(ports, request, Form())


@post(
    "/corpora",
    opt=needs(Right.edit, Limiter.uploads, CorpusLimit.targets),
    request_max_body_size=MOST_BYTES,
)
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
    """A backup file, the job that wrote it, and the newest check of its present content (None: no such job)."""

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
    health = collect_health(ports)
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


# Keysets: which one is active, the progress and gate of the others, and the switch from one to another.

HEIGHT, WIDTH = 120, 640  # of a histogram's drawing, in SVG units


@dataclass(frozen=True, slots=True)
class KeysetLine:
    keyset: KeysetRecord
    gate: GateStanding
    is_loaded: bool
    refused: str | None  # why its model is not loaded

    @property
    def total(self) -> int:
        return self.keyset.num_keys + self.keyset.num_unkeyed


@dataclass(frozen=True, slots=True)
class Bars:
    """A histogram as a drawing: bars (x, y, width, height) for right and for wrong facts, and the threshold's place."""

    title: str
    low: float
    high: float
    threshold: float
    threshold_x: float
    genuine: tuple[tuple[float, float, float, float], ...]
    impostor: tuple[tuple[float, float, float, float], ...]


def _queue_work(ports: Ports, request: PageRequest, keyset_id: int, work: Work, form: Form) -> Page:
    """Queue a job on a keyset. The form must name the keyset too, or the request did not come from its button."""
    if form.integer("keyset") != keyset_id:
        raise refusals.keyset_not_found(form.integer("keyset") or 0)
    job = Jobs(ports.kb).submit(work, actor=request.user.name)
    return Redirect(f"/console/jobs/{job.job_id}", status_code=303)


def active_keyset(ports: Ports) -> KeysetHead | None:
    """Give the active keyset; None if no keyset is active."""
    try:
        with as_service():  # it is of no corpus
            return ports.kb.keysets.active()
    except NoActiveKeyset:
        return None


def _keyset_lines(ports: Ports) -> list[KeysetLine]:
    return [_keyset_line(ports, keyset) for keyset in ports.kb.keysets.all()]


def _keyset_line(ports: Ports, keyset: KeysetRecord) -> KeysetLine:
    return KeysetLine(
        keyset,
        ports.kb.keysets.standing(keyset.keyset_id),
        is_loaded=keyset.state != "retired" and keyset.checkpoint_id in ports.models,
        refused=ports.models.refused.get(keyset.checkpoint_id),
    )


def _confirm_switch(ports: Ports, request: PageRequest, keyset_id: int | None, form: Form) -> Page:
    rows = _keyset_lines(ports)
    row = next((row for row in rows if row.keyset.keyset_id == keyset_id), None)
    if keyset_id is not None and row is None:
        raise refusals.keyset_not_found(keyset_id)
    return form_page(
        request,
        "keyset_switch.html",
        form,
        verb=verb_of(request),
        row=row,
        active=next((row for row in rows if row.keyset.state == "active"), None),
    )


def _lead_to_change(ports: Ports) -> Page:
    return Redirect(f"/console/keysets?change={ports.kb.log.head_seq()}", status_code=303)


def _draw_histograms(gate: dict[str, Any] | None) -> list[Bars]:
    """Draw the histograms in a report: the checked keyset's and, if it was measured too, the active one's."""
    kept = (gate or {}).get("histograms") or []
    return [_draw_histogram(one) for one in kept]


def _draw_histogram(one: dict[str, Any]) -> Bars:
    low, high = float(one["low"]), float(one["high"])
    tallest = max(*one["genuine"], *one["impostor"], 1)
    width = WIDTH / len(one["genuine"])

    def draw_bars(counts: list[int]) -> tuple[tuple[float, float, float, float], ...]:
        heights = [HEIGHT * count / tallest for count in counts]
        return tuple(
            (round(n * width + 0.5, 2), round(HEIGHT - height, 2), round(width - 1, 2), round(height, 2))
            for n, height in enumerate(heights)
            if height
        )

    where = WIDTH * (float(one["threshold"]) - low) / (high - low)
    return Bars(
        title=one["title"],
        low=low,
        high=high,
        threshold=float(one["threshold"]),
        threshold_x=round(min(max(where, 0), WIDTH), 2),
        genuine=draw_bars(one["genuine"]),
        impostor=draw_bars(one["impostor"]),
    )


@get("/keysets", opt=needs(Right.read), sync_to_thread=True)
def list_keysets(ports: FromPorts, request: PageRequest, form: FromForm) -> Page:
    rows = _keyset_lines(ports)
    return page(request, "keysets.html", rows=rows, done=find_change(ports, form))


@get("/keysets/{keyset_id:int}", opt=needs(Right.read), sync_to_thread=True)
def read_keyset(ports: FromPorts, request: PageRequest, keyset_id: PathId, form: FromForm) -> Page:
    """Show a keyset with the report of its gate."""
    row = _keyset_line(ports, ports.kb.keysets.show(keyset_id))
    gate = ports.kb.keysets.gate(keyset_id)
    checkpoint = ports.kb.keysets.checkpoint(keyset_id)
    return page(
        request,
        "keyset.html",
        row=row,
        gate=gate,
        plots=_draw_histograms(gate),
        checkpoint=checkpoint,
        form=Form(),
        sets=[(one.name, one.name) for one in ports.kb.questions.all()],
        width=WIDTH,
        height=HEIGHT,
        done=find_change(ports, form),
    )


@on_each(get, "/keysets/{keyset_id:int}/activate", "/keysets/{keyset_id:int}/retire", right=Right.train)
def ask_to_switch(ports: FromPorts, request: PageRequest, keyset_id: PathId) -> Page:
    return _confirm_switch(ports, request, keyset_id, Form())


@get("/keysets/rollback", opt=needs(Right.train), sync_to_thread=True)
def ask_to_roll_back(ports: FromPorts, request: PageRequest) -> Page:
    return _confirm_switch(ports, request, None, Form())


@post("/keysets/{keyset_id:int}/activate", opt=needs(Right.train), sync_to_thread=True)
@show_again(_confirm_switch)
def activate_keyset(ports: FromPorts, request: PageRequest, keyset_id: PathId, form: FromForm) -> Page:
    """Activate a keyset, if its gate passed or it is forced."""
    ports.kb.keysets.activate(keyset_id, force=form.flag("force"), **form.sign(request))
    return _lead_to_change(ports)


@post("/keysets/{keyset_id:int}/retire", opt=needs(Right.train), sync_to_thread=True)
@show_again(_confirm_switch)
def retire_keyset(ports: FromPorts, request: PageRequest, keyset_id: PathId, form: FromForm) -> Page:
    """Drop a keyset's keys."""
    ports.kb.keysets.retire(keyset_id, **form.sign(request))
    return _lead_to_change(ports)


@post("/keysets/rollback", opt=needs(Right.train), sync_to_thread=True)
@show_again(partial(_confirm_switch, keyset_id=None))
def roll_back(ports: FromPorts, request: PageRequest, form: FromForm) -> Page:
    """Activate the keyset that was active before."""
    ports.kb.keysets.rollback(**form.sign(request))
    return _lead_to_change(ports)


@post("/keysets/{keyset_id:int}/gate", opt=needs(Right.train), sync_to_thread=True)
def start_gate(ports: FromPorts, request: PageRequest, keyset_id: PathId, form: FromForm) -> Page:
    """Measure a keyset, as a job; with kept questions, where the form names a set of them."""
    asked: dict[str, Any] = {}
    if (questions := form.optional("questions", limit=100)) is not None:
        least, most = (form.number(name, 0, 1) for name in ("min_right", "max_wrong"))
        asked = {"questions": questions, "min_right": least, "max_wrong": most}
    form.check()
    work = work_of(Gate.kind, {"keyset_id": keyset_id, **asked})
    return _queue_work(ports, request, keyset_id, work, form)


@post("/keysets/{keyset_id:int}/rekey", opt=needs(Right.train), sync_to_thread=True)
def start_rekey(ports: FromPorts, request: PageRequest, keyset_id: PathId, form: FromForm) -> Page:
    """Make the keys that a keyset lacks, as a job."""
    return _queue_work(ports, request, keyset_id, Rekey(keyset_id=keyset_id), form)


HANDLERS = (
    list_jobs,
    read_job,
    cancel_job,
    list_corpora,
    upload_files,
    list_backups,
    make_backup,
    verify_backup,
    show_status,
    list_keysets,
    read_keyset,
    start_gate,
    start_rekey,
    *ask_to_switch,
    ask_to_roll_back,
    activate_keyset,
    retire_keyset,
    roll_back,
)
