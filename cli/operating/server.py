"""One server process: what it loads, and how it is run with that."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING

from colmlm.cli.composition.runtime import Runtime

if TYPE_CHECKING:
    from colmlm.api.loaded_models import LoadedModels
    from colmlm.api.middleware.auth import LocalToken
    from colmlm.api.supervision.supervisor import Shared
    from colmlm.cli.composition.model_keeper import ModelKeeper
    from colmlm.cli.composition.worker_process import WorkerProcess

THREADS = "OMP_NUM_THREADS"


def load(runtime: Runtime, wide_threads: int | None, *, with_model: bool) -> LoadedModels:
    """Load the reader and the models that a server answers with; `wide_threads` are as in `Runtime.model_at`."""
    from colmlm.api.loaded_models import LoadedModels
    from colmlm.api.routes.responses import check_client, name_asker

    if with_model:
        runtime.reader  # noqa: B018
        runtime.sentence_encoder  # noqa: B018
    return LoadedModels(
        runtime.kb, [runtime.model_at(None, check_client, name_asker, wide_threads)] if with_model else []
    )


def run(
    runtime: Runtime,
    listener: socket.socket,
    models: LoadedModels,
    *,
    local: LocalToken | None,
    worker: WorkerProcess | None = None,
    shared: Shared | None = None,
    num_servers: int = 1,
    on_up: Callable[[], object] | None = None,
) -> None:
    """Run one of `num_servers` processes with what was loaded, as `api.serving.run_server` describes."""
    from colmlm.api.serving import run_server
    from colmlm.api.watch.tracing import tracing_from
    from colmlm.kb.jobs.tickets import no_worker

    if models:
        _leave_a_core(num_servers)
    with _keeper(runtime, models, num_servers) if models else nullcontext():
        run_server(
            runtime.kb,
            listener,
            settings=runtime.serving,
            tracing=tracing_from(os.environ),
            worker=worker.state if worker else no_worker,
            local=local,
            reader=runtime.reader if models else None,
            sentences=runtime.sentence_encoder if models else None,
            models=models,
            shared=shared,
            on_up=on_up,
        )


def cores(num_servers: int) -> int | None:
    """Give this process's part of the cores; None where OMP_NUM_THREADS says how many threads compute."""
    return None if THREADS in os.environ else max(1, len(os.sched_getaffinity(0)) // num_servers)


def _leave_a_core(num_servers: int) -> None:
    """Let steps of few tokens be computed by one thread less than this process has cores, where there are two.

    Threads of OpenMP wait for one another by spinning. On a core that the event loop, lookups or PostgreSQL want too,
    each product then waits for a turn of the scheduler: a second thread on two cores costs a third of the tokens.
    """
    import torch

    if (own := cores(num_servers)) is not None:
        torch.set_num_threads(max(1, own - 1))


def _keeper(runtime: Runtime, models: LoadedModels, num_servers: int) -> ModelKeeper:
    from colmlm.api.routes.responses import check_client, name_asker
    from colmlm.cli.composition.model_keeper import ModelKeeper
    from colmlm.model.lm.checkpoint import weights_bytes

    return ModelKeeper(
        runtime.kb,
        models,
        partial(runtime.model_at, check=check_client, asker=name_asker, wide_threads=cores(num_servers)),
        partial(weights_bytes, cache=runtime.settings.home / "models"),
    )
