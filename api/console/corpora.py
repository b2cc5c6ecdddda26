"""Corpora: what the base was filled from."""

from __future__ import annotations

from litestar import get

from api.console.views import Page, PageRequest, page
from api.ports import FromPorts
from api.rights import Right, needs


@get("/corpora", opt=needs(Right.read), sync_to_thread=True)
def overview(ports: FromPorts, request: PageRequest) -> Page:
    return page(request, "corpora.html", corpora=ports.kb.corpora())


HANDLERS = (overview,)
