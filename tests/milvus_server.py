"""A real Milvus server for tests, from its wheel; where that does not start, Milvus Lite, which has the same client.

The server listens on all interfaces, so it gets a network of its own:

    python -m tests.milvus_server PORT DIRECTORY

That process listens on 127.0.0.1:PORT, leaves the network of the machine for an empty one, starts the server in it and
carries bytes between the two. Both are one group of processes, which is killed as a whole.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from colmlm.kb import interpreter
from tests.networks import enter_own_network
from tests.places import PYTHONPATH

PARTS = ("rootCoord", "proxy", "queryCoord", "queryNode", "indexNode", "dataCoord", "dataNode")
START_SECONDS = 120


@dataclass
class MilvusServer:
    """A server on an address of this machine, with all it keeps in one directory."""

    directory: Path
    is_lite: bool = False
    port: int = field(default_factory=lambda: _free_port())
    process: subprocess.Popen[bytes] | None = None

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Starts it and waits until it answers. Raises `RuntimeError` with the reason where it does not."""
        self.directory.mkdir(parents=True, exist_ok=True)
        command = interpreter.command("-m", "tests.milvus_server", self.port, self.directory)
        if self.is_lite:
            command = interpreter.command("-m", "milvus_lite", "server", "--data-dir", self.directory)
            command += ["--host", "127.0.0.1", "--port", str(self.port)]
        environment = {**os.environ, "PYTHONPATH": PYTHONPATH}
        with (self.directory / "said.txt").open("wb") as said:
            self.process = subprocess.Popen(
                command, stdout=said, stderr=said, env=environment, start_new_session=True
            )
        until = time.monotonic() + START_SECONDS
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > until:
                self.kill()
                raise RuntimeError((self.directory / "said.txt").read_text()[-500:] or "it does not answer")
            time.sleep(0.2)

    def _answers(self) -> bool:
        import grpc
        from pymilvus import MilvusClient
        from pymilvus.exceptions import MilvusException

        try:
            client = MilvusClient(uri=self.uri, timeout=2)
        except (MilvusException, grpc.RpcError):
            return False
        with closing(client):
            try:
                client.list_collections(timeout=2)
            except (MilvusException, grpc.RpcError):
                return False
        return True

    def kill(self) -> None:
        """Kills it as a power cut would."""
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None


@contextmanager
def milvus_server(directory: Path, *, is_lite: bool = False) -> Iterator[MilvusServer]:
    server = MilvusServer(directory, is_lite)
    server.start()
    try:
        yield server
    finally:
        server.kill()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        return port


def _started(directory: Path) -> Any:
    """Starts the server; it ends with the object that this gives."""
    import milvus

    server = milvus.MilvusServer(milvus.MilvusServerConfig(), wait_for_started=False)
    server.set_base_dir(str(directory))
    for part in PARTS:
        server.config.set(f"{part}.ip", "127.0.0.1")
    server.config.set("common.session.ttl", 5)  # seconds until what a killed server registered is forgotten
    server.start()
    return server


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(1 << 18):
            writer.write(data)
            await writer.drain()
    writer.close()


async def _serve(listening: socket.socket, port: int) -> None:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(_carry(reader, inner_writer), _carry(inner_reader, writer))

    async with await asyncio.start_server(connected, sock=listening) as server:
        await server.serve_forever()


def main() -> None:
    listening = socket.create_server(("127.0.0.1", int(sys.argv[1])))
    enter_own_network()
    server = _started(Path(sys.argv[2]))
    asyncio.run(_serve(listening, server.listen_port))


if __name__ == "__main__":
    main()
