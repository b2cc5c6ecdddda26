"""Health: whether this process lives and is ready, and, with a token, its whole state and how much there is."""

from __future__ import annotations

from datetime import datetime

import msgspec
from litestar import Response, get
from litestar.openapi.datastructures import ResponseSpec
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from colmlm.api.errors import PROBLEMS
from colmlm.api.middleware.auth import Limiter, Right, in_thread, needs
from colmlm.api.ports import FromPorts, Ports
from colmlm.kb.errors import NoActiveKeyset
from colmlm.kb.jobs.queue import Jobs
from colmlm.kb.jobs.tickets import WorkerState
from colmlm.kb.keys.records import KeysetHead
from colmlm.kb.lookup.records import IndexMemory
from colmlm.kb.store import database
from colmlm.kb.upkeep.upkeep import Statistics


class OwnWorkerHealth(msgspec.Struct, frozen=True, kw_only=True):
    """The worker process that a server runs. `failures` counts its latest consecutive unexpected exits.

    Its last output is on the console's page Status and in the log.
    """

    running: bool
    since: datetime
    failures: int
    restarts: int
    exit_code: int | None = None


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a server. `ok` is true if nothing is `missing`: it answers lookups and prompts.

    `index_seq` is the last change in this process's index, `head_seq` the last in the log; `index_lag` is how many were
    not yet in the index at the request. `index_memory` is what an index of torch takes. `checkpoint_id` is the loaded
    model's; lookups need it to be the active keyset's. `workers` is the number of live workers, and `worker` the one
    that this server runs. `degraded` holds `worker` where no jobs are done, and `model` where a model that may be
    wanted next is not loaded; `models_refused` says why, by checkpoint, and `models` are the checkpoints that are
    loaded.
    """

    ok: bool
    missing: list[str]
    database: bool
    migrations_at_head: bool
    head_seq: int | None = None
    index_seq: int | None = None
    index_lag: int | None = None
    index_memory: IndexMemory | None = None
    active_keyset: KeysetHead | None = None
    checkpoint_id: str | None = None
    generator_loaded: bool
    degraded: list[str]
    workers: int | None = None
    worker: OwnWorkerHealth | None = None
    models: list[str] = []
    models_refused: dict[str, str] = {}


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    """Record whether a server should be sent requests. The names in `missing` and `degraded` are from fixed lists.

    A degraded server should be sent requests all the same (docs/production/monitor.md).
    """

    ready: bool
    missing: tuple[str, ...]
    degraded: tuple[str, ...] = ()


RESPONSES = {
    **PROBLEMS,
    503: ResponseSpec(Health, generate_examples=False, description="Something is missing"),
}


@get("/healthz", opt=needs(Right.lookup, Limiter.at_once), include_in_schema=False, sync_to_thread=False)
def alive() -> str:
    """Answer that the process lives, and nothing else, since no token is needed."""
    return "ok"


@get("/readyz", opt=needs(Right.lookup, Limiter.at_once), include_in_schema=False)
async def ready(ports: FromPorts) -> Response[Ready]:
    """Answer 200 if this server should be sent requests, else 503 with what is missing, by names of a fixed list."""
    missing, degraded = await ports.readiness.missing_parts(), await ports.readiness.degraded_parts()
    found = Ready(ready=not missing, missing=missing, degraded=degraded)
    return Response(found, status_code=503 if missing else 200)


@get("/metrics", opt=needs(Right.lookup, Limiter.probes), include_in_schema=False, sync_to_thread=True)
def metrics(ports: FromPorts) -> Response[bytes]:
    """Read this process's metrics for Prometheus. They are counts and times, no texts, so any token may read them."""
    # As a media type Litestar would name its character set a second time.
    return Response(ports.metrics_text(), headers={"content-type": CONTENT_TYPE_LATEST})


@get("/health", opt=needs(Right.lookup), responses=RESPONSES, sync_to_thread=True)
def health(ports: FromPorts) -> Response[Health]:
    """Read the health of this process.

    Answers 200 if nothing is missing, else 503 with what is. If the database is down, the response is a problem
    document.
    """
    state = collect_health(ports)
    return Response(state, status_code=200 if state.ok else 503)


def collect_health(ports: Ports) -> Health:
    """Collect the health of this process: its parts that are missing or degraded, its index, models and workers."""
    at_head = database.is_at_head(ports.kb.engine)
    keyset = _active_keyset(ports) if at_head else None
    checkpoint_id = _loaded_checkpoint(ports, keyset)
    missing = [
        what
        for what, is_missing in {
            "migrations": not at_head,
            "active keyset": keyset is None,
            "encoder": checkpoint_id is None,
            "generator": not ports.generator_loaded,
            "checkpoint of the active keyset": keyset
            and checkpoint_id
            and keyset.checkpoint_id != checkpoint_id,
        }.items()
        if is_missing
    ]
    applied_seq = ports.kb.searcher.applied_seq  # before catching up: the lag a lookup would have met
    head_seq = ports.kb.log.head_seq() if at_head else None
    return Health(
        ok=not missing,
        missing=missing,
        database=True,
        migrations_at_head=at_head,
        head_seq=head_seq,
        index_seq=ports.kb.lookups.catch_up() if keyset else None,
        index_lag=None if applied_seq is None or head_seq is None else max(0, head_seq - applied_seq),
        index_memory=ports.kb.searcher.memory,
        active_keyset=keyset,
        checkpoint_id=checkpoint_id,
        generator_loaded=ports.generator_loaded,
        degraded=list(ports.readiness.check_degraded_parts()),
        workers=Jobs(ports.kb).num_workers() if at_head else None,
        worker=_own_worker(ports.readiness.worker()),
        models=sorted(ports.models.checkpoints),
        models_refused=dict(ports.models.refused),
    )


def _loaded_checkpoint(ports: Ports, keyset: KeysetHead | None) -> str | None:
    """Give the id of the keyset's checkpoint if it is loaded, else of another that is; None if none is."""
    if keyset is not None and keyset.checkpoint_id in ports.models:
        return keyset.checkpoint_id
    return ports.encoder.checkpoint.checkpoint_id if ports.encoder else None


def _own_worker(state: WorkerState | None) -> OwnWorkerHealth | None:
    return msgspec.convert(state, OwnWorkerHealth, from_attributes=True) if state is not None else None


def _active_keyset(ports: Ports) -> KeysetHead | None:
    try:
        return ports.kb.keysets.active()
    except NoActiveKeyset:
        return None


HANDLERS = (alive, ready, metrics, health)


# Statistics: the numbers of corpora, documents, facts, outputs, keysets and forget runs.


@get("/stats", **in_thread(Right.read))
def read_stats(ports: FromPorts) -> Statistics:
    """Count everything.

    Counts corpora, documents, facts, those to review, outputs, keysets and forget runs in one snapshot of the database.
    """
    return ports.kb.upkeep.statistics()
