"""The HTTP application that `colmlm serve` runs.

It is closed by default, in two layers: a request is authenticated by its token before it is routed, and a route
that declares no right is open to admins only.
"""

from __future__ import annotations

from functools import cache, partial

from litestar import Litestar, Router
from litestar.di import Provide
from litestar.enums import HttpMethod
from litestar.middleware import DefineMiddleware
from litestar.routes import HTTPRoute
from litestar.types import ASGIApp, HTTPScope, Scope

from colmlm.api.console import pages
from colmlm.api.console.views import read_form
from colmlm.api.loaded_models import LoadedModels
from colmlm.api.middleware.auth import LocalToken, require_right
from colmlm.api.middleware.gate import GatedApp, LimiterMiddleware, RequestHooks, build_gate
from colmlm.api.middleware.idempotency import IdempotencyMiddleware
from colmlm.api.middleware.limiters import Limiter, Limiters, RateLimits, Tuning, own_rates
from colmlm.api.middleware.sign_on import build_sign_on
from colmlm.api.openai import chat, completions
from colmlm.api.openai import fields as openai_fields
from colmlm.api.openai import models as openai_models
from colmlm.api.openai import responses as openai_responses
from colmlm.api.ports import Ports
from colmlm.api.routes import (
    changes,
    corpora,
    facts,
    generations,
    health,
    jobs,
    keysets,
    lookups,
    misses,
    questions,
    removal,
    review,
    tokens,
    webhooks,
)
from colmlm.api.routes.parameters import StrictRequest
from colmlm.api.schema import openapi
from colmlm.api.settings import ServerSettings, SignOnSettings
from colmlm.api.watch.logs import Journal
from colmlm.api.watch.operations import Operations, Readiness
from colmlm.api.wire import MAX_BODY_BYTES
from colmlm.kb.answers.answering import Answering
from colmlm.kb.answers.reading import JudgedReader
from colmlm.kb.errors import KBError
from colmlm.kb.evidence.attribution import StoredAnswers
from colmlm.kb.evidence.generation import Generator
from colmlm.kb.keys.rekey import Encoder
from colmlm.kb.lookup.likeness import SentenceEmbedder
from colmlm.kb.lookup.questions import Questions
from colmlm.kb.lookup.replica import find_together
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.waits import AT_THE_DOOR, Waits

CHECKING = (Limiter.auth, Limiter.sign_on, Limiter.probes, Limiter.records)
_AT_THE_DOOR = ("NotSignedIn", "RoleUnmapped")  # errors whose response to a browser is the sign-in form
MOST_LOOKUPS_AT_ONCE = 32  # of one search: the others would wait longer than two searches take
# Threads that wait for the decoder hold no connection meanwhile: the few that they need are among the others.
WORKING = tuple(set(Limiter) - {Limiter.at_once, Limiter.decoding, *CHECKING})


def create_app(
    kb: KnowledgeBase,
    encoder: Encoder | None = None,
    generator: Generator | None = None,
    operations: Operations | None = None,
    tuning: Tuning | None = None,
    settings: ServerSettings | None = None,
    local: LocalToken | None = None,
    reader: JudgedReader | None = None,
    sentences: SentenceEmbedder | None = None,
    models: LoadedModels | None = None,
) -> GatedApp:
    """Build the API on this knowledge base. Without an encoder, a generator or a reader, routes that
    need one answer 503. `sentences` encodes sentences, so that those with the question's meaning are read first.

    The server answers to loopback names, and to the host and the allowed hosts of the settings. It admits the tokens
    of the database, and the one of this process, `local`. `models` are those of a server that loads others while
    it runs, in place of the encoder and the generator.
    """
    settings, tuning = settings or ServerSettings(), tuning or Tuning()
    operations = operations or Operations.of(kb, settings)
    operations.observe(kb)
    shared = operations.shared
    models = LoadedModels.of(kb, encoder, generator) if models is None else models
    limiters = Limiters(tuning.limiters)
    operations.metrics.watch(limiters)
    auth_kb = kb.beside("door", AT_THE_DOOR, limiters.threads(*CHECKING))
    # One connection for each thread, and one more for an edit that timed out and asks who holds the log's lock.
    asked = kb.beside("requests", Waits.of(kb.settings), limiters.threads(*WORKING, Limiter.edits))
    rates = shared.permit_taker(tuning.clock) if shared else own_rates(tuning.clock)
    limits = RateLimits(settings.rate_limit, rates)
    readiness = Readiness(
        auth_kb,
        models,
        operations.drain,
        limiters,
        settings.ready_lag,
        tuning.readiness_seconds,
        tuning.look_seconds,
        operations.worker,
        shared.are_all_up if shared else None,
    )
    sign_on = build_sign_on(settings.sign_on, auth_kb.access)
    ports = Ports(
        kb=asked,
        models=models,
        observed=operations.observe_generator,
        answers=None
        if reader is None
        else StoredAnswers(
            asked,
            Answering(
                asked,
                Questions(asked, models.encoders, await_encoder=models.await_model) if models else None,
                reader,
                sentences,
            ),
        ),
        auth_kb=auth_kb,
        key_lookups=limiters.make_batcher(
            Limiter.lookups, partial(find_together, asked.lookups), MOST_LOOKUPS_AT_ONCE
        ),
        limiters=limiters,
        readiness=readiness,
        metrics_text=operations.metrics.text,
        tuning=tuning,
        settings=settings,
        sign_on=sign_on,
    )
    around = RequestHooks(
        refuse=partial(_refuse, settings.sign_on),
        find_route=lookups.reroute_octets,
        measure=operations.watch.running,
        note=Journal(auth_kb.log, limiters, tuning.clock).note,
        drain=operations.drain,
    )
    gate = build_gate(auth_kb, settings, limiters, local, limits, around, sign_on)
    return GatedApp(gate, build_routes(), {"ports": ports, "access": asked.access})


@cache
def build_routes() -> Litestar:
    """Build the routes, once a process; each request brings the ports that its handler works with."""
    return Litestar(
        route_handlers=[*health.HANDLERS, *pages.HANDLERS, _build_v1()],
        dependencies={"ports": Provide(_ports_of, sync_to_thread=False), "form": Provide(read_form)},
        guards=[require_right],
        middleware=[DefineMiddleware(LimiterMiddleware), DefineMiddleware(IdempotencyMiddleware)],
        exception_handlers={Exception: openai_fields.respond},
        openapi_config=openapi.config(),
        request_max_body_size=MAX_BODY_BYTES,
        logging_config=None,
        debug=False,
    )


def _build_v1() -> Router:
    """Build the router of every route under /v1."""
    router = Router(
        "/v1",
        request_class=StrictRequest,
        route_handlers=[
            *corpora.HANDLERS,
            *facts.HANDLERS,
            *review.HANDLERS,
            *lookups.HANDLERS,
            *generations.HANDLERS,
            *misses.HANDLERS,
            *removal.HANDLERS,
            *questions.HANDLERS,
            *keysets.HANDLERS,
            *changes.HANDLERS,
            *jobs.HANDLERS,
            *tokens.HANDLERS,
            *webhooks.HANDLERS,
            health.read_stats,
            *completions.HANDLERS,
            *chat.HANDLERS,
            *openai_responses.HANDLERS,
            *openai_models.HANDLERS,
        ],
    )
    for route in router.routes:
        if isinstance(route, HTTPRoute):
            # This OPTIONS handler would name the methods of a path's first handler only; the app makes one for all.
            route.route_handlers = [
                handler for handler in route.route_handlers if HttpMethod.OPTIONS not in handler.http_methods
            ]
    return router


def _refuse(sign_on: SignOnSettings, scope: HTTPScope, error: Exception) -> ASGIApp:
    """Give the response for an error before routing.

    A browser without a token, or of a person without a role, gets the sign-in form with the same status.
    """
    if isinstance(error, KBError) and error.code in _AT_THE_DOOR and pages.is_page(scope["path"]):
        return pages.sign_in_form(scope, error, sign_on)
    return openai_fields.refusal(scope["path"], error)


def _ports_of(scope: Scope) -> Ports:
    ports: Ports = scope["state"]["ports"]
    return ports
