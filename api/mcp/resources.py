"""The resources: documents as they were ingested, listed page by page, and facts with their history."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ResourceError, ResourceNotFoundError
from mcp.shared.exceptions import MCPError
from mcp.types import INTERNAL_ERROR, INVALID_PARAMS

from colmlm.api.errors import RightMissing
from colmlm.api.mcp.caller import Caller
from colmlm.api.mcp.citing import DOCUMENTS, FACTS
from colmlm.api.mcp.offer import CallerOf
from colmlm.api.mcp.reading import show_fact
from colmlm.kb.access.records import Right
from colmlm.kb.errors import NotFound
from colmlm.kb.facts.records import DocumentRecord

T = TypeVar("T")

LISTED = 100  # documents on a page


def add_resources(server: MCPServer, caller_of: CallerOf) -> None:
    """Adds the resources to a server. They need the right to read."""

    @server.resource(
        f"{FACTS}/{{fact_id}}",
        title="A fact",
        description="A fact with its source sentence, versions and changes.",
        mime_type="application/json",
    )
    def fact(fact_id: int, context: Context) -> str:
        said = _read(caller_of(context.request_context), lambda caller: show_fact(caller, fact_id))
        return json.dumps(said, ensure_ascii=False)

    @server.resource(
        f"{DOCUMENTS}/{{document_id}}",
        title="A document",
        description="A document's text as it was ingested; citations count its characters.",
        mime_type="text/plain",
    )
    def document(document_id: int, context: Context) -> str:
        return _read(
            caller_of(context.request_context), lambda caller: caller.base.documents.read(document_id)[1]
        )


def list_documents(caller: Caller, cursor: str | None) -> dict[str, Any]:
    """Gives a page of the documents as resources, as the protocol has it. The cursor is the last one's id."""
    if cursor is not None and not (cursor.isascii() and cursor.isdecimal() and len(cursor) < 19):
        raise MCPError(
            INVALID_PARAMS, "The cursor is none of this list. Pass the `nextCursor` of a page, or none."
        )
    try:
        found = _read(caller, lambda caller: caller.base.documents.find(after=int(cursor or 0), limit=LISTED))
    except ResourceError as error:
        raise MCPError(INTERNAL_ERROR, str(error)) from error
    more = {"nextCursor": str(found[-1].document_id)} if len(found) == LISTED else {}
    return {"resources": [_resource(document) for document in found], **more}


def _resource(document: DocumentRecord) -> dict[str, Any]:
    name = f"{document.corpus}/{document.external_id}"
    about = f"{document.live_facts} live facts" + (f"; {document.uri}" if document.uri else "")
    return {
        "uri": f"{DOCUMENTS}/{document.document_id}",
        "name": name,
        "title": document.title or name,
        "description": about,
        "mimeType": "text/plain",
    }


def _read(caller: Caller, read: Callable[[Caller], T]) -> T:
    try:
        if Right.read not in caller.rights:
            raise RightMissing(caller.role, Right.read)
        with caller.at_work():
            return read(caller)
    except Exception as error:
        kind = ResourceNotFoundError if isinstance(error, NotFound) else ResourceError
        raise kind(caller.explain(error)) from error
