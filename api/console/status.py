"""Status: the health of this process, its index, its workers, and the versions of its packages."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

from litestar import get
from sqlalchemy import text

from colmlm.api.console.views import Page, PageRequest, page
from colmlm.api.middleware.auth import Right, needs
from colmlm.api.ports import FromPorts, Ports
from colmlm.api.routes.health import state_of
from colmlm.kb.jobs.queue import Jobs

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


@get("/status", opt=needs(Right.read), sync_to_thread=True)
def overview(ports: FromPorts, request: PageRequest) -> Page:
    health = state_of(ports)
    jobs = Jobs(ports.kb)
    return page(
        request,
        "status.html",
        health=health,
        versions=_versions(ports),
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


def _versions(ports: Ports) -> dict[str, str]:
    found = {"Python": platform.python_version()}
    with ports.kb.engine.connect() as connection:
        found["PostgreSQL"] = str(connection.scalar(text("SHOW server_version"))).split(" ")[0]
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


HANDLERS = (overview,)
