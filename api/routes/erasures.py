"""Erasure: facts removed for good, by one admin's key or by two, as this installation is set."""

from __future__ import annotations

from typing import Annotated

from litestar import get, post
from litestar.params import JSONBody
from msgspec import Meta

from colmlm.api.door.rights import Lane, Right, needs
from colmlm.api.errors import PROBLEMS
from colmlm.api.ports import FromPorts
from colmlm.api.routes.edits import WithKey, actor_of
from colmlm.api.schema.paging import Cursor, Limit, after_of, page
from colmlm.api.schema.schemas import PathId
from colmlm.api.wire.answers import ErasureAnswer
from colmlm.api.wire.pages import Page
from colmlm.api.wire.requests import MAX_FACTS_PER_EDIT, Id, Request, Why
from colmlm.kb.erasure.records import Erased, ErasureRequest
from colmlm.kb.erasure.two_person import ErasureRequests
from colmlm.kb.erasure.verbs import Erasure
from colmlm.kb.facts.redaction import Mentioned

FactIds = Annotated[list[Id], Meta(min_length=1, max_length=MAX_FACTS_PER_EDIT)]


class Chosen(Request, frozen=True, kw_only=True):
    """Facts, live, deleted or erased before; `mentions` as of an erasure."""

    fact_ids: FactIds
    mentions: Mentioned = "same-document"


class NewErasure(Why, frozen=True, kw_only=True):
    """Facts to erase, live, deleted or erased before, all or none.

    `mentions`: their values are redacted where else their own documents say them, in all documents, or in none.
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

    Which documents, outputs, forget runs and keys it would touch, which other facts say the same, and what would be
    `left` that says it, and where. Changes nothing.
    """
    return Erasure(ports.kb).preview(data.fact_ids, mentions=data.mentions)


@post("/erasures", status_code=200, opt=needs(Right.admin), responses=PROBLEMS, sync_to_thread=True)
def erase_facts(ports: FromPorts, request: WithKey, data: JSONBody[NewErasure]) -> ErasureAnswer:
    """Erase facts for good.

    Nothing brings them back. It goes as far as out of the indexes (level 2); `colmlm erase --now` takes it out of the
    files. Where this installation asks for two keys, this only asks, and another admin's key approves.

    Of a fact that was erased before it redacts what still says it; where nothing does, `seq` is null.
    """
    actor = actor_of(request, data)
    if ports.kb.settings.erase_needs_two:
        asked = ErasureRequests(ports.kb).ask(
            data.fact_ids, key=request.user, actor=actor, reason=data.reason, mentions=data.mentions
        )
        return ErasureAnswer(report=None, request=asked)
    report = Erasure(ports.kb).erase(data.fact_ids, actor=actor, reason=data.reason, mentions=data.mentions)
    return ErasureAnswer(report=report, request=None)


@get("/erasures", opt=needs(Right.admin), responses=PROBLEMS, sync_to_thread=True)
def list_erasures(ports: FromPorts, cursor: Cursor = None, limit: Limit = 50) -> Page[ErasureRequest]:
    """List the erasures that were asked for.

    Oldest first, where two keys are needed: those that wait, and those that were decided.
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
def approve_erasure(ports: FromPorts, request: WithKey, request_id: PathId) -> ErasureAnswer:
    """Approve an erasure.

    With another key than the one that asked. The facts are erased for good.
    """
    asked, report = ErasureRequests(ports.kb).approve(request_id, key=request.user)
    return ErasureAnswer(report=report, request=asked)


@post(
    "/erasures/{request_id:int}/withdraw",
    status_code=200,
    opt=needs(Right.admin),
    responses=PROBLEMS,
    sync_to_thread=True,
)
def withdraw_erasure(ports: FromPorts, request: WithKey, request_id: PathId) -> ErasureRequest:
    """Withdraw an erasure that waits.

    Nothing is erased.
    """
    return ErasureRequests(ports.kb).withdraw(request_id, key=request.user)
