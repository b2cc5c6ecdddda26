"""The HTTP application: what `colmlm serve` runs.

Closed by default, in two layers: a request is admitted as an API key before it is routed, and a route that names
no right is the admin's alone.
"""

from __future__ import annotations

from threading import BoundedSemaphore

from litestar import Litestar, Router
from litestar.di import Provide
from litestar.openapi import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.openapi.spec import Components, SecurityScheme

from api import denials, documents, errors, facts, generations, health, jobs, lookups, rights, traces, uploads
from api.console import pages
from api.doorway import GatedLitestar, doorway
from api.idempotency import once
from api.ports import Generator, Ports
from api.schemas import MAX_BODY_BYTES
from kb.rekey import Encoder
from kb.service import KnowledgeBase


def create_app(
    kb: KnowledgeBase,
    encoder: Encoder | None = None,
    generator: Generator | None = None,
) -> Litestar:
    """The API on this knowledge base. Without an encoder or a generator, what needs them answers 503.

    It answers to loopback names, `kb.settings.host` and `kb.settings.allowed_hosts`.
    """
    slots = BoundedSemaphore(generations.MAX_GENERATIONS)
    ports = Ports(kb=kb, encoder=encoder, generator=generator, generation_slots=slots)
    return GatedLitestar(
        doorway(kb),
        route_handlers=[health.health, *pages.HANDLERS, _v1()],
        dependencies={"ports": Provide(lambda: ports, sync_to_thread=False)},
        guards=[rights.require_right],
        middleware=[once(kb.engine)],
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
            denials.list_denials,
            documents.read_document,
            uploads.upload,
            *jobs.HANDLERS,
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
