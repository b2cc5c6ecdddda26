"""Jobs: long work that a worker does, with its progress and its result."""

from __future__ import annotations

from litestar import get, post
from litestar.response import Redirect

from colmlm.api.console.views import Form, Page, PageRequest, Sent, form_page, page
from colmlm.api.errors import RightMissing
from colmlm.api.middleware.auth import Right, needs
from colmlm.api.ports import FromPorts, Ports
from colmlm.api.routes.parameters import PathId
from colmlm.kb.errors import KBError
from colmlm.kb.jobs.kinds import KINDS
from colmlm.kb.jobs.queue import Jobs
from colmlm.kb.jobs.records import JobRecord

ON_A_PAGE = 50


@get("/jobs", opt=needs(Right.read), sync_to_thread=True)
def overview(ports: FromPorts, request: PageRequest) -> Page:
    """Show the jobs of kinds that this token may start, newest first."""
    jobs, before = Jobs(ports.kb), Form.asked(request).integer("before")
    found = jobs.list(kinds=visible(request), before=before, limit=ON_A_PAGE + 1)
    more = found[ON_A_PAGE - 1].job_id if len(found) > ON_A_PAGE else None
    return page(request, "jobs.html", jobs=found[:ON_A_PAGE], more=more, workers=jobs.num_workers())


@get("/jobs/{job_id:int}", opt=needs(Right.read), sync_to_thread=True)
def read(ports: FromPorts, request: PageRequest, job_id: PathId) -> Page:
    return _show(ports, request, job_id, Form())


@post("/jobs/{job_id:int}/cancel", opt=needs(Right.read), sync_to_thread=True)
def cancel(ports: FromPorts, request: PageRequest, job_id: PathId, data: Sent) -> Page:
    """Cancel a job: at once if it is queued, else before its next piece of work."""
    _seen(ports, request, job_id)
    try:
        Jobs(ports.kb).cancel(job_id, actor=request.user.name)
    except KBError as error:
        return _show(ports, request, job_id, Form(data).refuse(error))
    return Redirect(f"/console/jobs/{job_id}", status_code=303)


HANDLERS = (overview, read, cancel)


def visible(request: PageRequest, *among: str) -> list[str]:
    """Gives the kinds of jobs, of these or of all, that the token may start and so may see."""
    return [kind for kind, work in KINDS.items() if request.user.may(work.right) and kind in (among or KINDS)]


def _show(ports: Ports, request: PageRequest, job_id: int, form: Form) -> Page:
    job, workers = _seen(ports, request, job_id), Jobs(ports.kb).num_workers()
    return form_page(request, "job.html", form, job=job, workers=workers)


def _seen(ports: Ports, request: PageRequest, job_id: int) -> JobRecord:
    """Gives the job. Raises `RightMissing` where this token may not start jobs of its kind."""
    job = Jobs(ports.kb).get(job_id)
    right = KINDS[job.kind].right
    if not request.user.may(right):
        raise RightMissing(request.user.role, right)
    return job
