"""Erasure: remove facts for good, by one admin's token or, if the settings say so, by two."""

from __future__ import annotations

from typing import Annotated, Any

from litestar import Response, get, post
from litestar.params import JSONBody
from msgspec import Meta

from colmlm.api.door.auth import Lane, Right, needs
from colmlm.api.errors import PROBLEMS
from colmlm.api.ports import FromPorts
from colmlm.api.routes.edits import WithToken, actor_of
from colmlm.api.schema.schemas import Cursor, Limit, PathId, after_of, page
from colmlm.api.wire.answers import ErasureAnswer, Page
from colmlm.api.wire.requests import MAX_FACTS_PER_EDIT, Id, Request, Why
from colmlm.kb.facts.records import Mentioned
from colmlm.kb.removal import certificate as certificates
from colmlm.kb.removal.erase import Erasure, ErasureRequests
from colmlm.kb.removal.records import Erased, ErasureRequest

FactIds = Annotated[list[Id], Meta(min_length=1, max_length=MAX_FACTS_PER_EDIT)]


class Chosen(Request, frozen=True, kw_only=True):
    """Facts to preview the erasure of: live, deleted or erased before. `mentions` is as in `NewErasure`."""

    fact_ids: FactIds
    mentions: Mentioned = "same-document"


class NewErasure(Why, frozen=True, kw_only=True):
    """Facts to erase, all or none: live, deleted or erased before.

    `mentions` says where else their values are redacted: in their own documents, in all documents, or nowhere.
    """

    fact_ids: FactIds
    mentions: Mentioned = "same-document"


@post(
    "/erasures/preview",
    status_code=200,
    opt=needs(Right.admin, Lane.long_reads),
    responses=PROBLEMS,
    sync_to_thread=True,
)
def preview_erasure(ports: FromPorts, data: JSONBody[Chosen]) -> Erased:
    """Preview an erasure.

    Gives the documents, outputs, forget runs and keys that it would touch, the other facts that say the same, and the
    places that would still say it (`left`). Changes nothing.
    """
    return Erasure(ports.kb).preview(data.fact_ids, mentions=data.mentions)


@post("/erasures", status_code=200, opt=needs(Right.admin), responses=PROBLEMS, sync_to_thread=True)
def erase_facts(ports: FromPorts, request: WithToken, data: JSONBody[NewErasure]) -> ErasureAnswer:
    """Erase facts for good.

    They cannot be restored. The erasure reaches the database and the indexes (level 2); `colmlm erase --now` also
    removes the residue from files. If `level` is below `asked_level`, the facts are erased, but an index or a snapshot
    still holds them: `levels` says which, and what to do. Where the settings require two tokens, this only makes a
    request, which another admin's token approves.

    For a fact that was erased before, it redacts the texts that still say it; where there are none, `seq` is null.
    """
    actor = actor_of(request, data)
    if ports.kb.settings.erase_needs_two:
        asked = ErasureRequests(ports.kb).ask(
            data.fact_ids, token=request.user, actor=actor, reason=data.reason, mentions=data.mentions
        )
        return ErasureAnswer(report=None, request=asked)
    report = Erasure(ports.kb).erase(data.fact_ids, actor=actor, reason=data.reason, mentions=data.mentions)
    return ErasureAnswer(report=report, request=None)


@get("/erasures", opt=needs(Right.admin), responses=PROBLEMS, sync_to_thread=True)
def list_erasures(ports: FromPorts, cursor: Cursor = None, limit: Limit = 50) -> Page[ErasureRequest]:
    """List the erasures that were asked for.

    Requests for erasure, where two tokens are required: waiting and decided ones, oldest first.
    """
    after = after_of(cursor, "erasures")
    found = [asked for asked in ErasureRequests(ports.kb).requests() if asked.erasure_request_id > after]
    return page(found[: limit + 1], limit, "erasures", lambda asked: (asked.erasure_request_id,))


@post(
    "/erasures/{request_id:int}/approve",
    status_code=200,
    opt=needs(Right.admin),
    responses=PROBLEMS,
    sync_to_thread=True,
)
def approve_erasure(ports: FromPorts, request: WithToken, request_id: PathId) -> ErasureAnswer:
    """Approve an erasure.

    Takes another token than the one that made the request. The facts are erased for good. If `level` is below
    `asked_level`, an index or a snapshot still holds them: `levels` says which, and what to do.
    """
    asked, report = ErasureRequests(ports.kb).approve(request_id, token=request.user)
    return ErasureAnswer(report=report, request=asked)


@post(
    "/erasures/{request_id:int}/withdraw",
    status_code=200,
    opt=needs(Right.admin),
    responses=PROBLEMS,
    sync_to_thread=True,
)
def withdraw_erasure(ports: FromPorts, request: WithToken, request_id: PathId) -> ErasureRequest:
    """Withdraw an erasure that waits.

    The request is closed and nothing is erased.
    """
    return ErasureRequests(ports.kb).withdraw(request_id, token=request.user)


@get("/changes/{seq:int}/certificate", opt=needs(Right.audit), responses=PROBLEMS, sync_to_thread=True)
def read_erasure_certificate(ports: FromPorts, seq: PathId) -> Response[dict[str, Any]]:
    """Get the certificate of an erasure.

    Gives signed evidence, as of now, that the facts of this change are erased, without any text, that can be checked
    offline. Keep the bytes unchanged: any other encoding of the same JSON is refused.
    """
    text: Any = certificates.issue_certificate(ports.kb, seq).encode()  # re-encoded bytes would not match
    return Response(text, media_type="application/json")
