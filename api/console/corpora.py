"""Corpora: shows what the base was filled from, and takes uploads, which jobs then ingest."""

from __future__ import annotations

from typing import Any, NamedTuple

from litestar import get, post
from litestar.concurrency import sync_to_thread
from litestar.datastructures import UploadFile
from litestar.response import Redirect

from colmlm.api.console.jobs import visible
from colmlm.api.console.views import Form, Page, PageRequest, form_page
from colmlm.api.middleware.auth import Lane, Right, needs
from colmlm.api.ports import FromPorts, Ports
from colmlm.kb.errors import KBError
from colmlm.kb.jobs.kinds import Documents, Ingest, work_of
from colmlm.kb.jobs.queue import Jobs
from colmlm.kb.jobs.records import JobRecord
from colmlm.kb.jobs.uploads import Upload, Uploads
from colmlm.kb.jobs.work import Work

FORMATS = (
    ("documents", "raw: txt, md, html, pdf, docx, epub, csv, tsv, jsonl, parquet"),
    ("annotated", "annotated, as JSON Lines"),
    ("parquet", "annotated, as Parquet"),
    ("squad", "SQuAD"),
)
MOST_BYTES = 256 * 1024 * 1024  # per form; the API and the command line take more
MOST_FILES = 50
BLOCK = 1 << 20
JOBS = 10


@get("/corpora", opt=needs(Right.read), sync_to_thread=True)
def overview(ports: FromPorts, request: PageRequest) -> Page:
    return _show(ports, request, Form())


@post("/corpora", opt=needs(Right.edit, Lane.uploads), request_max_body_size=MOST_BYTES)
async def upload(ports: FromPorts, request: PageRequest) -> Page:
    """Store the files and queue their jobs: one for all raw documents, one for each annotated file."""
    sent = await request.form()
    files = [file for file in sent.getall("file", []) if isinstance(file, UploadFile) and file.filename]
    form = Form({name: sent.getall(name) for name in sent if name != "file"})
    try:
        asked = _asked(form, files)
        kept = [await _keep(ports, file) for file in files]
        jobs = await sync_to_thread(_queue, ports, request.user.name, asked, kept)
    except KBError as error:
        return await sync_to_thread(_show, ports, request, form.refuse(error))
    return Redirect(
        f"/console/jobs/{jobs[-1].job_id}" if len(jobs) == 1 else "/console/corpora", status_code=303
    )


class _Asked(NamedTuple):
    """What is asked for beside the files."""

    corpus: str
    reason: str | None
    format: str
    questions: bool


def _asked(form: Form, files: list[UploadFile]) -> _Asked:
    corpus, reason = form.text("corpus", limit=200), form.optional("reason", limit=1000)
    format_ = form.choice("format", [value for value, _ in FORMATS])
    if not files:
        form.mistakes["file"] = "Choose at least one file."
    elif len(files) > MOST_FILES:
        form.mistakes["file"] = f"At most {MOST_FILES} files are taken at once; send the others after these."
    form.check()
    return _Asked(corpus, reason, format_, form.flag("questions"))


async def _keep(ports: Ports, file: UploadFile) -> Upload:
    with Uploads.of(ports.kb.settings).receive(file.filename) as receiving:
        while block := await file.read(BLOCK):
            await sync_to_thread(receiving.write, block)
    return receiving.upload


def _queue(ports: Ports, actor: str, asked: _Asked, kept: list[Upload]) -> list[JobRecord]:
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


def _show(ports: Ports, request: PageRequest, form: Form) -> Page:
    jobs = Jobs(ports.kb)
    return form_page(
        request,
        "corpora.html",
        form,
        corpora=ports.kb.corpora.all(),
        formats=FORMATS,
        jobs=jobs.list(kinds=visible(request, Documents.kind, Ingest.kind), limit=JOBS),
        workers=jobs.num_workers(),
        largest=MOST_BYTES // 1024 // 1024,
    )


HANDLERS = (overview, upload)
