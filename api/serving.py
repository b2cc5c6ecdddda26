"""Run a server process: it follows the change log, answers requests, drains, and saves a snapshot of its index."""

from __future__ import annotations

import gc
import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import uvicorn
from prometheus_client import start_http_server
from sqlalchemy.exc import SQLAlchemyError

from colmlm.api.app import create_app
from colmlm.api.loaded_models import LoadedModels
from colmlm.api.middleware.auth import LocalToken
from colmlm.api.middleware.connections import DrainingServer, limited_protocol
from colmlm.api.settings import ServerSettings
from colmlm.api.supervision import SharedState
from colmlm.api.watch.metrics import Metrics, Tracing
from colmlm.api.watch.operations import Operations
from colmlm.kb.answers.reading import JudgedReader
from colmlm.kb.errors import KBError, SettingsError
from colmlm.kb.jobs.tickets import OwnWorker, report_no_worker
from colmlm.kb.lookup.follower import Follower
from colmlm.kb.lookup.likeness import SentenceEmbedder
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.embedded_server import Keeper

CUT_OFF_SECONDS = 1  # how long requests that outlast the drain have to react to their cancellation

_log = logging.getLogger(__name__)


def run_server(
    kb: KnowledgeBase,
    listener: socket.socket,
    *,
    models: LoadedModels,
    settings: ServerSettings | None = None,
    tracing: Tracing | None = None,
    worker: OwnWorker = report_no_worker,
    local: LocalToken | None = None,
    reader: JudgedReader | None = None,
    sentences: SentenceEmbedder | None = None,
    shared: SharedState | None = None,
    on_up: Callable[[], object] | None = None,
) -> None:
    """Serve on `listener` until SIGTERM or SIGINT, and return once every running request has ended.

    With `shared` it is one of several at its port: it calls `on_up` when it answers, leaves the metrics' own address
    to `serve_metrics`, and by SIGHUP hands over to another. `worker` gives the state of the worker process that this
    server runs; `local` is admitted beside the tokens of the database.
    """
    settings = settings or ServerSettings()
    operations = Operations.of(kb, settings, tracing, worker, shared)
    config = uvicorn.Config(
        create_app(
            kb,
            models=models,
            operations=operations,
            settings=settings,
            local=local,
            reader=reader,
            sentences=sentences,
        ),
        log_config=None,
        access_log=False,
        http=limited_protocol(report=operations.metrics.count_incomplete),
        ws="none",
        lifespan="on",
        timeout_graceful_shutdown=CUT_OFF_SECONDS,
    )
    with ExitStack() as at_end:
        at_end.enter_context(Keeper(kb.settings))
        if tracing is not None:
            at_end.callback(tracing.close)
        at_end.callback(_leave_snapshot, kb)
        if shared is None:
            at_end.enter_context(serve_metrics(settings, operations.metrics))
        at_end.enter_context(Follower(kb))
        # Connections inherit TCP_NODELAY from their listener. uvloop sets it on every connection, asyncio only where
        # the socket names TCP as its protocol, which one that is passed in does not. Without it a response's second
        # packet waits until the first is acknowledged, which clients delay by 40 ms.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        gc.collect()
        gc.freeze()  # Collecting the loaded modules again would stop all threads for 0.1 s each time
        DrainingServer(config, operations.drain, on_up).run(sockets=[listener])


@contextmanager
def serve_metrics(settings: ServerSettings, metrics: Metrics) -> Iterator[None]:
    """Serve the metrics without a token at a separate address, where the settings name one."""
    if (address := settings.metrics_address()) is None:
        yield
        return
    host, port = address
    try:
        server, thread = start_http_server(port, host, metrics.registry)
    except OSError as error:
        raise SettingsError("COLMLM_METRICS_LISTEN", f"{host}:{port}: {error.strerror or error}") from error
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _leave_snapshot(kb: KnowledgeBase) -> None:
    """Save a snapshot of the open index, so that the next start has few changes to catch up with."""
    if kb.searcher.applied_seq is None:
        return
    try:
        kb.lookups.snapshot()
    except (SQLAlchemyError, KBError, OSError) as error:  # the next start only takes longer
        _log.warning("no snapshot was written: %s", error)
