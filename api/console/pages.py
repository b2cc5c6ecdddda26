"""The console's routes, from one module for each page. They all answer in HTML."""

from __future__ import annotations

from litestar import Router, get
from litestar.exceptions import NotFoundException
from litestar.params import FromPath

from colmlm.api.console import (
    ask,
    audit,
    backups,
    comparing,
    corpora,
    erasures,
    facts,
    forget,
    jobs,
    judging,
    keysets,
    mending,
    misses,
    questions,
    review,
    session,
    status,
    tokens,
    views,
)
from colmlm.api.middleware.auth import Right, needs

ROOT = "/console"


def is_page(path: str) -> bool:
    """Tells whether the path is a page for browsers, and not a route for programs."""
    return path in ("/", ROOT) or path.startswith(f"{ROOT}/")


@get("/{elsewhere:path}", opt=needs(Right.lookup), sync_to_thread=False)
def nowhere(elsewhere: FromPath[str]) -> None:
    """Answer an unknown path with a page that says so."""
    raise NotFoundException


HANDLERS = (
    *session.HANDLERS,
    Router(
        ROOT,
        route_handlers=[
            *ask.HANDLERS,
            *facts.HANDLERS,
            *mending.HANDLERS,
            *review.HANDLERS,
            *questions.HANDLERS,
            *misses.HANDLERS,
            *judging.HANDLERS,
            *comparing.HANDLERS,
            *forget.HANDLERS,
            *erasures.HANDLERS,
            *audit.HANDLERS,
            *keysets.HANDLERS,
            *corpora.HANDLERS,
            *jobs.HANDLERS,
            *tokens.HANDLERS,
            *backups.HANDLERS,
            *status.HANDLERS,
            nowhere,
        ],
        include_in_schema=False,
        exception_handlers={Exception: views.refused},
    ),
)
