"""The HTTP application: what `colmlm serve` runs.

Closed by default, in two layers: a request is admitted as an API key before it is routed, and a route that names
no right is the admin's alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import BoundedSemaphore
from typing import TYPE_CHECKING, Any, cast

from litestar import Litestar, Router
from litestar.datastructures import MutableScopeHeaders
from litestar.di import Provide
from litestar.enums import ScopeType
from litestar.openapi import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.openapi.spec import Components, SecurityScheme
from sqlalchemy.exc import SQLAlchemyError

from api import auth, documents, errors, facts, generations, health, lookups, rights, traces
from api.console import pages
from api.ports import Generator, Ports
from api.schemas import MAX_BODY_BYTES
from kb.errors import KBError
from kb.rekey import Encoder
from kb.service import KnowledgeBase

if TYPE_CHECKING:
    from litestar.types import (
        ASGIApp,
        HTTPScope,
        LifeSpanReceive,
        LifeSpanScope,
        LifeSpanSend,
        Message,
        Receive,
        Scope,
        Send,
    )

_HEADERS = {
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
    "referrer-policy": "same-origin",  # "no-referrer" would also make browsers hide the Origin of the sign-in form
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class GatedLitestar(Litestar):
    """Litestar behind the gate. Its own middleware would not see requests that match no route."""

    def __init__(self, gate: auth.Gate, **options: Any) -> None:
        self.gate = gate
        super().__init__(**options)

    async def __call__(
        self,
        scope: Scope | LifeSpanScope,
        receive: Receive | LifeSpanReceive,
        send: Send | LifeSpanSend,
    ) -> None:
        if scope["type"] == ScopeType.HTTP:
            await self._admit(cast("HTTPScope", scope), cast("Receive", receive), cast("Send", send))
        else:
            await super().__call__(scope, receive, send)

    async def _admit(self, scope: HTTPScope, receive: Receive, send: Send) -> None:
        hardened = _hardened(send)
        try:
            scope["user"] = await self.gate.admit(scope)
        except (KBError, SQLAlchemyError) as error:
            await _refused(scope, error)(scope, receive, hardened)
        else:
            await super().__call__(scope, receive, hardened)


def create_app(
    kb: KnowledgeBase,
    encoder: Encoder | None = None,
    generator: Generator | None = None,
    *,
    allowed_hosts: Sequence[str] = (),
) -> Litestar:
    """The API on this knowledge base. Without an encoder or a generator, what needs them answers 503.

    It answers to loopback names and `kb.settings.host`; `allowed_hosts` are further names, without a port.
    """
    slots = BoundedSemaphore(generations.MAX_GENERATIONS)
    ports = Ports(kb=kb, encoder=encoder, generator=generator, generation_slots=slots)
    return GatedLitestar(
        auth.gate(kb.engine, (*auth.LOOPBACK, kb.settings.host, *allowed_hosts)),
        route_handlers=[health.health, *pages.HANDLERS, _v1()],
        dependencies={"ports": Provide(lambda: ports, sync_to_thread=False)},
        guards=[rights.require_right],
        exception_handlers={Exception: errors.respond},
        openapi_config=_openapi(),
        request_max_body_size=MAX_BODY_BYTES,
        logging_config=None,
        debug=False,
    )


def _v1() -> Router:
    return Router(
        "/v1",
        route_handlers=[
            facts.list_facts,
            facts.read_fact,
            facts.insert_fact,
            facts.update_fact,
            facts.delete_facts,
            facts.delete_fact,
            facts.restore_facts,
            lookups.look_up,
            generations.generate,
            generations.list_generations,
            generations.trace_output,
            traces.trace_fact,
            traces.list_changes,
            traces.list_keysets,
            documents.read_document,
        ],
    )


def _openapi() -> OpenAPIConfig:
    scheme = SecurityScheme(type="http", scheme="bearer", description="An API key: colmlm keys create")
    return OpenAPIConfig(
        title="colmlm",
        version="1",
        description="A knowledge base that a language model reads and people can edit.",
        components=Components(security_schemes={"key": scheme}),
        security=[{"key": []}],
        use_handler_docstrings=True,
        render_plugins=[JsonRenderPlugin()],
        openapi_router=Router(
            "/schema", route_handlers=[], include_in_schema=False, opt=rights.needs(rights.Right.read)
        ),
    )


def _refused(scope: HTTPScope, error: Exception) -> ASGIApp:
    """A browser that opens the console without a key gets the sign-in form, with the same status."""
    if isinstance(error, errors.NotSignedIn) and scope["path"] == "/" and scope["method"] == "GET":
        return pages.sign_in_form()
    return errors.refusal(error)


def _hardened(send: Send) -> Send:
    """`send` that adds the headers no answer goes without; a page may bring its own policy."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableScopeHeaders.from_message(message)
            for name, value in _HEADERS.items():
                headers.setdefault(name, value)
        await send(message)

    return sending
