"""The HTTP application that `colmlm serve` runs.

It is closed by default, in two layers: a request is authenticated by its token before it is routed, and a route
that declares no right is open to admins only.
"""

from __future__ import annotations

from functools import cache

from litestar import Litestar
from litestar.di import Provide
from litestar.middleware import DefineMiddleware
from litestar.types import Scope

from colmlm.api.console import pages
from colmlm.api.door.auth import LocalToken, require_right
from colmlm.api.door.doorway import GatedApp, InLane, doorway
from colmlm.api.door.idempotency import Once
from colmlm.api.door.lanes import Lane, Lanes, Tuning
from colmlm.api.door.limits import RateLimits, own_rates
from colmlm.api.loaded_models import LoadedModels
from colmlm.api.openai import errors as openai_errors
from colmlm.api.ports import Ports
from colmlm.api.routes import health
from colmlm.api.routes import listing as routes
from colmlm.api.routes.short_way import ShortWay
from colmlm.api.routes.sought import Seeking
from colmlm.api.schema import openapi
from colmlm.api.settings import ServerSettings
from colmlm.api.watch.operations import Operations
from colmlm.api.watch.readiness import Readiness
from colmlm.api.wire.requests import MAX_BODY_BYTES
from colmlm.kb.answers.answering import Answering
from colmlm.kb.answers.reading import JudgedReader
from colmlm.kb.evidence.attribution import StoredAnswers
from colmlm.kb.evidence.generation import Generator
from colmlm.kb.keys.rekey import Encoder
from colmlm.kb.lookup.likeness import SentenceEmbedder
from colmlm.kb.lookup.questions import Questions
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.waits import AT_THE_DOOR, Waits

AT_DOOR = (Lane.door, Lane.probes, Lane.records)
MOST_LOOKUPS_AT_ONCE = 32  # of one search: the others would wait longer than two searches take
# Threads that wait for the decoder hold no connection meanwhile: the few that they need are among the others.
BEHIND_DOOR = tuple(set(Lane) - {Lane.at_once, Lane.decoding, *AT_DOOR})


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
    need one answer 503. `sentences` encodes sentences, by which those that mean what is asked are read first.

    The server answers to loopback names, and to the host and the allowed hosts of the settings. It admits the tokens
    of the database, and the one of this process, `local`. `models` are those of a server that loads others while
    it runs, in place of the encoder and the generator.
    """
    settings, tuning = settings or ServerSettings(), tuning or Tuning()
    operations = operations or Operations.of(kb, settings)
    operations.observe(kb)
    shared = operations.shared
    models = LoadedModels.of(kb, encoder, generator) if models is None else models
    lanes = Lanes(tuning.lanes)
    operations.metrics.watch(lanes)
    door = kb.beside("door", AT_THE_DOOR, lanes.threads(*AT_DOOR))
    # One connection for each thread, and one more for an edit that timed out and asks who holds the log's lock.
    asked = kb.beside("requests", Waits.of(kb.settings), lanes.threads(*BEHIND_DOOR, Lane.edits))
    rates = shared.rates(tuning.clock) if shared else own_rates(tuning.clock)
    limits = RateLimits(settings.rate_limit, rates)
    readiness = Readiness(
        door,
        models,
        operations.drain,
        lanes,
        settings.ready_lag,
        tuning.readiness_seconds,
        tuning.look_seconds,
        operations.worker,
        shared.are_all_up if shared else None,
    )
    ports = Ports(
        kb=asked,
        models=models,
        observed=operations.observed,
        answers=None
        if reader is None
        else StoredAnswers(
            asked, Answering(asked, Questions(asked, models.encoders) if models else None, reader, sentences)
        ),
        door=door,
        key_lookups=lanes.gathered(
            Lane.lookups, Seeking(door.access, limits, asked.lookups).find, MOST_LOOKUPS_AT_ONCE
        ),
        lanes=lanes,
        readiness=readiness,
        metrics_text=operations.metrics.text,
        tuning=tuning,
        settings=settings,
    )
    gate = doorway(door, settings, lanes, operations.watch, tuning.clock, local, limits)
    return GatedApp(gate, routed(), ports, ShortWay(ports))


@cache
def routed() -> Litestar:
    """Build the routes once a process: each request brings the ports that they work with."""
    return Litestar(
        route_handlers=[*health.HANDLERS, *pages.HANDLERS, routes.v1()],
        dependencies={"ports": Provide(_ports_of, sync_to_thread=False)},
        guards=[require_right],
        middleware=[DefineMiddleware(InLane), DefineMiddleware(Once)],
        exception_handlers={Exception: openai_errors.respond},
        openapi_config=openapi.config(),
        request_max_body_size=MAX_BODY_BYTES,
        logging_config=None,
        debug=False,
    )


def _ports_of(scope: Scope) -> Ports:
    ports: Ports = scope["state"]["ports"]
    return ports
