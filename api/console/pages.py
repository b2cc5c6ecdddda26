"""The console's routes: one module for each page, all with answers in HTML."""

from __future__ import annotations

from litestar import Router, get
from litestar.exceptions import NotFoundException
from litestar.params import FromPath

from colmlm.api.console import (
    ask,
    audit,
    backups,
    corpora,
    erasures,
    facts,
    forget,
    jobs,
    keys,
    keysets,
    session,
    status,
    views,
)
from colmlm.api.door.rights import Right, needs

ROOT = "/console"


def is_page(path: str) -> bool:
    """Whether a browser asks here, rather than a program."""
    return path == "/" or path.startswith(f"{ROOT}/")


@get("/{elsewhere:path}", opt=needs(Right.lookup), sync_to_thread=False)
def nowhere(elsewhere: FromPath[str]) -> None:
    """What has no page gets one that says so."""
    raise NotFoundException


HANDLERS = (
    *session.HANDLERS,
    Router(
        ROOT,
        route_handlers=[
            *ask.HANDLERS,
            *facts.HANDLERS,
            *forget.HANDLERS,
            *erasures.HANDLERS,
            *audit.HANDLERS,
            *keysets.HANDLERS,
            *corpora.HANDLERS,
            *jobs.HANDLERS,
            *keys.HANDLERS,
            *backups.HANDLERS,
            *status.HANDLERS,
            nowhere,
        ],
        include_in_schema=False,
        exception_handlers={Exception: views.refused},
    ),
)
