"""Servers that are measured over HTTP: ours, a bare ASGI application, and Chroma's, each in a process of its own."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from colmlm.kb import interpreter
from colmlm.kb.errors import InvalidValue
from colmlm.kb.store.settings import Settings

START_SECONDS = 600
CHROMA_HEARTBEAT = "/api/v2/heartbeat"
CHROMA_COMMAND = "import sys; from chromadb.cli.cli import app; sys.argv = ['chroma', *sys.argv[1:]]; app()"


@contextmanager
def our_server(
    settings: Settings, *, with_model: bool, workers: int = 1, variables: Mapping[str, str] | None = None
) -> Iterator[int]:
    """Start `colmlm serve` with these settings and variables, and yield its port once it is ready."""
    ours = {"COLMLM_HOME": str(settings.home), "COLMLM_LOG_LEVEL": "warning", **(variables or {})}
    words = ["--no-worker", "--workers", str(workers), *([] if with_model else ["--no-model"])]
    port = _free_port()
    command = interpreter.command(
        "-m", "colmlm.cli", "serve", "--host", "127.0.0.1", "--port", str(port), *words
    )
    with _running(command, port, "/readyz", ours):
        yield port


@contextmanager
def bare_asgi() -> Iterator[int]:
    """Start the application that only parses and answers, and yield its port."""
    port = _free_port()
    with _running(interpreter.command("-m", "colmlm.lab.bench.bare_asgi", str(port)), port, "/", {}):
        yield port


@contextmanager
def chroma(directory: Path) -> Iterator[int]:
    """Start Chroma's own server on this directory, and yield its port."""
    port = _free_port()
    words = ("run", "--host", "127.0.0.1", "--port", str(port), "--path", str(directory))
    with _running(
        interpreter.command("-c", CHROMA_COMMAND, *words), port, CHROMA_HEARTBEAT, {}, is_quiet=True
    ):
        yield port


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


@contextmanager
def _running(
    command: list[str], port: int, path: str, variables: Mapping[str, str], *, is_quiet: bool = False
) -> Iterator[None]:
    out = subprocess.DEVNULL if is_quiet else None
    with subprocess.Popen(command, env={**os.environ, **variables}, stdout=out) as process:
        try:
            _wait_until_ready(process, port, path)
            yield
        finally:
            process.send_signal(signal.SIGTERM)


def _wait_until_ready(process: subprocess.Popen[bytes], port: int, path: str) -> None:
    until = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < until:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=START_SECONDS)
            connection.request("GET", path)
            if connection.getresponse().status == 200:
                return
        except OSError:
            pass
        time.sleep(0.1)
    raise InvalidValue("server", "it did not become ready; `colmlm doctor` says what is missing")
