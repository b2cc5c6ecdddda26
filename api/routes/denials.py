"""Denials: the requests that were refused, for auditors."""

from __future__ import annotations

from litestar import get

from colmlm.api.door.rights import Right, needs
from colmlm.api.errors import PROBLEMS
from colmlm.api.ports import FromPorts
from colmlm.api.schema.paging import Cursor, Limit, after_of, page
from colmlm.api.wire.pages import Page
from colmlm.kb.log.denials import DenialRecord


@get("/denials", opt=needs(Right.audit), responses=PROBLEMS, sync_to_thread=True)
def list_denials(ports: FromPorts, cursor: Cursor = None, limit: Limit = 100) -> Page[DenialRecord]:
    """List denials.

    Requests that were refused for their token, host or rate, newest first.
    """
    found = ports.kb.log.denials(after=after_of(cursor, "denials"), limit=limit + 1)
    return page(found, limit, "denials", lambda denial: (denial.denial_id,))
