"""Server processes: what each loads, how it runs, how several share a port, and which models are kept loaded.

What several share is loaded before they are forked. Nothing here imports a numeric library before that.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import psutil

from colmlm.cli.bases.nearby import told_of
from colmlm.cli.composition.runtime import Runtime
from colmlm.kb.errors import KBError
from colmlm.kb.store import waits

if TYPE_CHECKING:
    from colmlm.api.loaded_models import LoadedModel, LoadedModels
    from colmlm.api.middleware.auth import LocalToken
    from colmlm.api.supervision import SharedState
    from colmlm.cli.composition.worker_process import WorkerProcess
    from colmlm.kb.keys.activation import Succession
    from colmlm.kb.keys.records import CheckpointInfo
    from colmlm.kb.service import KnowledgeBase

THREADS = "OMP_NUM_THREADS"

_log = logging.getLogger(__name__)


def load_models(runtime: Runtime, wide_threads: int | None, *, with_model: bool) -> LoadedModels:
    """Load the reader and models of a server, if `with_model`; `wide_threads` threads compute a step of many tokens."""
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
    shared: SharedState | None = None,
    num_servers: int = 1,
    on_up: Callable[[], object] | None = None,
) -> None:
    """Run one of `num_servers` processes with the loaded models, as `api.serving.run_server` describes."""
    from colmlm.api.serving import run_server
    from colmlm.api.watch.metrics import tracing_from
    from colmlm.kb.jobs.tickets import report_no_worker

    if models:
        _leave_a_core(num_servers)
    with _model_loader(runtime, models, num_servers) if models else nullcontext():
        run_server(
            runtime.kb,
            listener,
            settings=runtime.serving,
            tracing=tracing_from(os.environ),
            worker=worker.state if worker else report_no_worker,
            local=local,
            reader=runtime.reader if models else None,
            sentences=runtime.sentence_encoder if models else None,
            models=models,
            shared=shared,
            on_up=on_up,
        )


def cores_per_server(num_servers: int) -> int | None:
    """Give the number of cores for each server process; None if OMP_NUM_THREADS sets the number of threads."""
    return None if THREADS in os.environ else max(1, len(os.sched_getaffinity(0)) // num_servers)


def _leave_a_core(num_servers: int) -> None:
    """Let torch use one core less than this process's share in steps of few tokens, unless OMP_NUM_THREADS is set.

    Threads of OpenMP wait for one another by spinning. On a core that the event loop, lookups or PostgreSQL want too,
    each matrix product then waits for the scheduler: a second thread on two cores costs a third of the tokens a second.
    """
    import torch

    if (own := cores_per_server(num_servers)) is not None:
        torch.set_num_threads(max(1, own - 1))


def _model_loader(runtime: Runtime, models: LoadedModels, num_servers: int) -> ModelLoader:
    from colmlm.api.routes.responses import check_client, name_asker
    from colmlm.model.lm.checkpoint import weights_bytes

    return ModelLoader(
        runtime.kb,
        models,
        partial(
            runtime.model_at, check=check_client, asker=name_asker, wide_threads=cores_per_server(num_servers)
        ),
        partial(weights_bytes, cache=runtime.settings.home / "models"),
    )


def serve_shared(
    runtime: Runtime,
    listeners: Sequence[socket.socket],
    address: str,
    *,
    with_model: bool,
    worker: Callable[[], WorkerProcess] | None,
) -> None:
    """Serve with a process for each of the listeners until a signal comes, then drain them all.

    `worker`, which starts the worker for jobs, is called in one more process, and again if that process ends.
    """
    with tempfile.TemporaryDirectory(prefix="colmlm-metrics-") as folder, ExitStack() as at_end:
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder  # read once, when the library is imported
        from colmlm.api.supervision import SharedState, Supervisor
        from colmlm.api.watch import logs

        logs.configure(runtime.serving)
        wide_threads = cores_per_server(len(listeners))
        with _one_thread():
            models = _load_models_to_fork(runtime, wide_threads, with_model=with_model)
        local = at_end.enter_context(told_of(runtime, listeners[0], address) if with_model else nullcontext())
        shared = SharedState(len(listeners), Path(folder))
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
                on_up=lambda: shared.set_process_at(place, os.getpid()),
            )

        def stop_listening() -> None:
            for listener in listeners:
                listener.close()

        def attend() -> None:
            stop_listening()
            _run_beside_servers(runtime, shared, worker)

        Supervisor(shared, serve, attend, stop_listening).run()


def _load_models_to_fork(runtime: Runtime, wide_threads: int | None, *, with_model: bool) -> LoadedModels:
    """Load the models, and open the index if there is one, leaving no thread and no connection for the fork."""
    models = load_models(runtime, wide_threads, with_model=with_model)
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


def _run_beside_servers(
    runtime: Runtime, shared: SharedState, worker: Callable[[], WorkerProcess] | None
) -> None:
    """Run the worker for jobs and the metrics' own address, each once beside all servers, until SIGTERM."""
    from colmlm.api.serving import serve_metrics
    from colmlm.api.watch.metrics import Metrics
    from colmlm.kb.jobs.tickets import report_no_worker

    ends = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ends.set())
    with worker() if worker else nullcontext() as run:
        metrics = Metrics(runtime.kb, run.state if run else report_no_worker, shared)
        with serve_metrics(runtime.serving, metrics):
            ends.wait()


# The models of the keysets that answer or may answer next, so that activating one of another checkpoint needs no
# restart: first the active keyset's, then that of the newest that passed its gate, then that which a rollback leads to.

LOOK_SECONDS = 1.0
AGAIN_SECONDS = 60.0  # after which a checkpoint that could not be loaded is tried once more
ROOM = 3  # times the bytes of its weights' files: what a model takes while it is loaded


@dataclass(slots=True)
class ModelLoader:
    """Loads the models of keysets that answer or may answer next, by a thread that runs during a `with` block.

    `load` loads the checkpoint in a directory, `weigh` gives the bytes of its weights, and both raise `ValueError`
    for a directory without a checkpoint. `available` gives the bytes of free memory.
    """

    kb: KnowledgeBase
    models: LoadedModels
    load: Callable[[Path], LoadedModel]
    weigh: Callable[[Path], int]
    available: Callable[[], int] = lambda: int(psutil.virtual_memory().available)
    look_seconds: float = LOOK_SECONDS
    again_seconds: float = AGAIN_SECONDS
    _failed: dict[str, tuple[float, str]] = field(default_factory=dict)
    _former: tuple[int, int | None] | None = None
    _stopping: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self.models.is_kept_up = True
        self._thread = threading.Thread(target=self._run, name="model loader", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self.models.is_kept_up = False
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(self.look_seconds):
            try:
                self.keep_up()
            except Exception as error:  # noqa: BLE001 - else no later keyset would get its model
                waits.log_outage(_log, "cannot see which models are wanted, will try again", error)

    def keep_up(self) -> None:
        """Load the models of keysets that answer or may answer next. Free others once the active one's is loaded."""
        line = self.kb.keysets.line()
        if line.active is None:
            return
        wanted = [self.kb.keysets.checkpoint(keyset_id) for keyset_id in self._keysets(line, line.active)]
        for checkpoint in wanted:
            if checkpoint.checkpoint_id not in self.models and not self._stopping.is_set():
                self._try_to_load(checkpoint)
        there = {checkpoint.checkpoint_id for checkpoint in wanted}
        if wanted[0].checkpoint_id in self.models:
            self.models.keep(there)
        self.models.refused = {
            key: said for key, (_, said) in self._failed.items() if key in there - self.models.checkpoints
        }

    def _keysets(self, line: Succession, active: int) -> Iterator[int]:
        """Yield the ids of the keysets whose models to load: active, next and former one, as far as they can answer."""
        if self._former is None or self._former[0] != active:  # the log is asked once for each activation
            self._former = active, self.kb.keysets.former(active)
        in_line = (active, line.next, self._former[1])
        yield from dict.fromkeys(one for one in in_line if one is not None and one in line.answering)

    def _try_to_load(self, checkpoint: CheckpointInfo) -> None:
        """Load a checkpoint and add its model; after a failure store the cause, and skip it for `again_seconds`."""
        failed = self._failed.get(checkpoint.checkpoint_id)
        if failed is not None and time.monotonic() < failed[0] + self.again_seconds:
            return
        try:
            model = self._load_registered_model(checkpoint)
        except Exception as error:  # noqa: BLE001 - files of a model may be broken in more ways than can be listed
            cause = f"{waits.cause_of(error).rstrip('.')}. This server tries again every minute"
            self._failed[checkpoint.checkpoint_id] = time.monotonic(), cause
            _log.warning("the model %s is not loaded: %s", checkpoint.name, cause)
            return
        self._failed.pop(checkpoint.checkpoint_id, None)
        self.models.add_model(model)
        _log.info("loaded the model %s", checkpoint.name)

    def _load_registered_model(self, checkpoint: CheckpointInfo) -> LoadedModel:
        """Load a checkpoint from where it was registered.

        Raises `ValueError` if its files are gone or are another checkpoint's, or if memory lacks room for it.
        """
        if checkpoint.path is None or not Path(checkpoint.path).is_dir():
            raise ValueError(f"its files are not at {checkpoint.path} where it was registered. Restore them")
        path = Path(checkpoint.path)
        if (free := self.available()) < (needed := ROOM * self.weigh(path)):
            raise ValueError(f"it needs {needed >> 20} MB of memory, and {free >> 20} MB are free. Free some")
        model = self.load(path)
        if model.checkpoint.checkpoint_id != checkpoint.checkpoint_id:
            raise ValueError(f"at {path} is another checkpoint than was registered. Restore that")
        return model
