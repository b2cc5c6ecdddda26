"""A server process like `colmlm serve`, with stand-ins for the model, so that it starts in a second without torch.

    python -m tests.acceptance.server [--salt 2] [--pace 0.5] [--reads] [--load-models] [--port 8484]

It prints its address, serves the database of COLMLM_DATABASE_URL, and waits `pace` seconds before each piece of a
stream. With `--reads` it has a reader, and gives answers. With `--load-models` it loads the models of the keysets in
line, whose directories are named by their salts.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from colmlm.api.loaded_models import LoadedModel, LoadedModels
from colmlm.api.serving import run_server
from colmlm.api.settings import ServerSettings
from colmlm.api.watch import logs
from colmlm.api.watch.metrics import tracing_from
from colmlm.cli.operating.server import ModelLoader
from colmlm.kb import interpreter
from colmlm.kb.evidence.generation import GenerationRequest, Item
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.settings import Settings
from colmlm.lab.bench.servers import variables_of
from tests.api.generator import LookupGenerator
from tests.fakes import FakeEncoder, NearReader, salt_at
from tests.places import PYTHONPATH, ROOT


@dataclass(frozen=True, slots=True)
class PacedGenerator(LookupGenerator):
    pace: float = 0.0

    def stream(self, request: GenerationRequest) -> Iterator[Item]:
        for item in LookupGenerator.stream(self, request):
            time.sleep(self.pace)
            yield item


@dataclass(frozen=True, slots=True)
class ServerProcess:
    """A running server and its address."""

    process: subprocess.Popen[str]
    address: str

    def stop(self, sig: int = signal.SIGTERM) -> str:
        """Asks the server to end, and gives its log once it has."""
        self.process.send_signal(sig)
        return self.process.communicate(timeout=60)[1]


@contextmanager
def server_process(settings: Settings, *words: str, **variables: str) -> Iterator[ServerProcess]:
    """Starts a server on the database of `settings` and waits until it answers; it is killed on leaving."""
    interpreter.shut_out_current_directory()
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("COLMLM_")}
    env = {**inherited, "PYTHONPATH": PYTHONPATH, **variables_of(settings), **variables}
    command = interpreter.command("-m", "tests.acceptance.server", *words)
    with subprocess.Popen(
        command, cwd=ROOT, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            assert address, process.communicate()[1]
            yield ServerProcess(process, address)
        finally:
            process.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--salt", default="")
    parser.add_argument("--pace", type=float, default=0.0)
    parser.add_argument("--reads", action="store_true")
    parser.add_argument("--load-models", action="store_true")
    parser.add_argument("--port", type=int, default=0, help="a free one by default")
    options = parser.parse_args()
    settings = Settings.from_environment(os.environ)
    serving = ServerSettings.from_environment(os.environ)
    logs.configure(serving)
    encoder = FakeEncoder(salt=options.salt)
    listener = socket.create_server(("127.0.0.1", options.port))
    with KnowledgeBase.open(settings) as kb:
        print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)

        def load(path: Path) -> LoadedModel:
            salted = FakeEncoder(salt=salt_at(path))
            return LoadedModel(salted, PacedGenerator(kb, salted, options.pace))

        models = LoadedModels.of(kb, encoder, PacedGenerator(kb, encoder, options.pace))
        loader = ModelLoader(kb, models, load, lambda path: 0)
        with loader if options.load_models else nullcontext():
            run_server(
                kb, listener, models=models,
                settings=serving, tracing=tracing_from(os.environ),
                reader=NearReader() if options.reads else None,
            )  # fmt: skip


if __name__ == "__main__":
    main()
