"""Serves at one port with several processes, which share what is loaded before they are forked."""

from __future__ import annotations

import gc
import os
import signal
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from colmlm.cli.bases.nearby import told_of
from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.operating.server import THREADS, cores, load, run
from colmlm.kb.errors import KBError

if TYPE_CHECKING:
    from colmlm.api.loaded_models import LoadedModels
    from colmlm.api.supervision.supervisor import Shared
    from colmlm.cli.composition.worker_process import WorkerProcess


def serve_shared(
    runtime: Runtime,
    listeners: Sequence[socket.socket],
    address: str,
    *,
    with_model: bool,
    worker: Callable[[], WorkerProcess] | None,
) -> None:
    """Serve with a process for each of the listeners until a signal comes, and drains them all.

    `worker` starts the worker for jobs, which one more process does, and again where it ends.
    """
    with tempfile.TemporaryDirectory(prefix="colmlm-metrics-") as folder, ExitStack() as at_end:
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder  # read once, when the library is imported
        from colmlm.api.supervision.supervisor import Shared, Supervisor
        from colmlm.api.watch import logs

        logs.configure(runtime.serving)
        wide_threads = cores(len(listeners))
        with _one_thread():
            models = _loaded(runtime, wide_threads, with_model=with_model)
        local = at_end.enter_context(told_of(runtime, listeners[0], address) if with_model else nullcontext())
        shared = Shared(len(listeners), Path(folder))
        gc.collect()
        gc.freeze()  # what is never collected is never written to, and stays one copy

        def serve(place: int) -> None:
            for other in listeners:
                if other is not listeners[place]:
                    other.close()
            run(
                runtime,
                listeners[place],
                models,
                local=local,
                shared=shared,
                num_servers=len(listeners),
                on_up=lambda: shared.tell_up(place, os.getpid()),
            )

        def stop_listening() -> None:
            for listener in listeners:
                listener.close()

        def attend() -> None:
            stop_listening()
            _attend(runtime, shared, worker)

        Supervisor(shared, serve, attend, stop_listening).run()


def _loaded(runtime: Runtime, wide_threads: int | None, *, with_model: bool) -> LoadedModels:
    """Load the models, and open the index where there is one, without a thread or a connection that stays."""
    models = load(runtime, wide_threads, with_model=with_model)
    with suppress(KBError):  # each server says what is missing
        runtime.kb.searcher.open_here()
    runtime.kb.close()  # each process connects for itself
    return models


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let numeric libraries that are imported within the block compute in one thread.

    The threads of OpenMP do not survive a fork, and a child would wait for them for ever.
    """
    before = os.environ.get(THREADS)
    os.environ[THREADS] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[THREADS]
        else:
            os.environ[THREADS] = before


def _attend(runtime: Runtime, shared: Shared, worker: Callable[[], WorkerProcess] | None) -> None:
    """Run what there is once beside all servers, until SIGTERM: the worker for jobs, and the metrics' own address."""
    from colmlm.api.serving import serve_metrics
    from colmlm.api.watch.metrics import Metrics
    from colmlm.kb.jobs.tickets import no_worker

    ends = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ends.set())
    with worker() if worker else nullcontext() as run:
        metrics = Metrics(runtime.kb, run.state if run else no_worker, shared)
        with serve_metrics(runtime.serving, metrics):
            ends.wait()
