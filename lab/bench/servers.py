"""Servers that are measured over HTTP: ours, a bare ASGI application, and Chroma's, each in a process of its own.

    python -m colmlm.lab.bench.servers 8500

starts the bare one.
"""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import msgspec
import uvicorn

from colmlm.api.wire import LookupAnswer, LookupAnswers, LookupRequest
from colmlm.kb import interpreter
from colmlm.kb.errors import InvalidValue
from colmlm.kb.lookup.records import Hit
from colmlm.kb.store.settings import Settings

START_SECONDS = 600
CHROMA_HEARTBEAT = "/api/v2/heartbeat"
CHROMA_COMMAND = "import sys; from chromadb.cli.cli import app; sys.argv = ['chroma', *sys.argv[1:]]; app()"


def variables_of(settings: Settings) -> dict[str, str]:
    """Give the environment variables for the home and the database of these settings."""
    return {
        "COLMLM_HOME": str(settings.home),
        "COLMLM_DATABASE_URL": str(settings.database_url or "").replace("+psycopg", ""),
        "COLMLM_SHARED_SNAPSHOTS": settings.shared_snapshots or "",  # an empty variable counts as unset
    }


@contextmanager
def our_server(
    settings: Settings,
    *,
    with_model: bool,
    workers: int = 1,
    variables: Mapping[str, str] | None = None,
    log: Path | None = None,
) -> Iterator[int]:
    """Start `colmlm serve` with these settings and variables, and yield its port once it is ready.

    It writes its log into a file, where one is named.
    """
    ours = {**variables_of(settings), "COLMLM_LOG_LEVEL": "warning", **(variables or {})}
    words = ["--no-worker", "--workers", str(workers), *([] if with_model else ["--no-model"])]
    port = _free_port()
    command = interpreter.command(
        "-m", "colmlm.cli", "serve", "--host", "127.0.0.1", "--port", str(port), *words
    )
    with _running(command, port, "/readyz", ours, log=log):
        yield port


@contextmanager
def bare_asgi() -> Iterator[int]:
    """Start the application that only parses and answers, and yield its port."""
    port = _free_port()
    with _running(interpreter.command("-m", "colmlm.lab.bench.servers", str(port)), port, "/", {}):
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
    command: list[str],
    port: int,
    path: str,
    variables: Mapping[str, str],
    *,
    is_quiet: bool = False,
    log: Path | None = None,
) -> Iterator[None]:
    out = subprocess.DEVNULL if is_quiet else None
    environment = {**os.environ, **variables}
    with (
        log.open("wb") if log else nullcontext() as errors,
        subprocess.Popen(command, env=environment, stdout=out, stderr=errors) as process,
    ):
        try:
            _wait_until_ready(process, port, path)
            yield
        finally:
            process.send_signal(signal.SIGTERM)


def _wait_until_ready(process: subprocess.Popen[bytes], port: int, path: str) -> None:
    until = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < until:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=START_SECONDS)
        with suppress(OSError), closing(connection):
            connection.request("GET", path)
            if connection.getresponse().status == 200:
                return
        time.sleep(0.1)
    raise InvalidValue("server", "it did not become ready; `colmlm doctor` says what is missing")


# An ASGI application that only parses a lookup's request and answers: the limit of what its server can do.
#
# It runs under uvicorn as `colmlm serve` does, without threads, tokens or a database.

_ANSWER = LookupAnswer(
    question=None,
    hits=[Hit(1, 1, "a value of some words", 0.5, 1)],
    runner_up=0.25,
    threshold=0.125,
    seq=1,
)


async def answer(scope: Any, receive: Any, send: Any) -> None:
    """Answer every request with the same hit for each query."""
    if scope["type"] != "http":
        return
    body, more = b"", scope["method"] == "POST"
    while more:
        message = await receive()
        body, more = body + message["body"], message.get("more_body", False)
    asked = msgspec.json.decode(body or b"{}", type=LookupRequest)
    found = LookupAnswers(checkpoint_id=asked.checkpoint_id or "", answers=[_ANSWER for _ in asked.queries])
    said = msgspec.json.encode(found)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(said)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": said})


def main() -> None:
    uvicorn.run(
        answer,
        host="127.0.0.1",
        port=int(sys.argv[1]),
        log_config=None,
        access_log=False,
        lifespan="off",
    )


if __name__ == "__main__":
    main()
