"""Gateways: a way over TCP to a database, in a test's own hands."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import make_url


@dataclass
class Gateway:
    """A way to the database that can be held up: who connects meanwhile is let through when it is open again.

    One that is `hushed` closes nothing and carries nothing on, in connections that are open as in new ones.
    """

    target: str
    listening: socket.socket
    is_open: threading.Event = field(default_factory=threading.Event)
    knocked: threading.Event = field(default_factory=threading.Event)
    carries: threading.Event = field(default_factory=threading.Event)

    def serve(self) -> None:
        with suppress(OSError):  # closed at the end
            while True:
                client, _ = self.listening.accept()
                threading.Thread(target=self._let_through, args=(client,), daemon=True).start()

    def _let_through(self, client: socket.socket) -> None:
        if not self.is_open.is_set():
            self.knocked.set()
        self.is_open.wait()
        with client, socket.socket(socket.AF_UNIX) as server:
            server.connect(self.target)
            back = threading.Thread(target=self._copy, args=(server, client), daemon=True)
            back.start()
            self._copy(client, server)
            back.join()

    def _copy(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while block := source.recv(1 << 16):
                self.carries.wait()
                sink.sendall(block)
            sink.shutdown(socket.SHUT_WR)

    @contextmanager
    def hushed(self) -> Iterator[None]:
        """Carries nothing on in the block, as a proxy does that hangs or whose other side has vanished."""
        self.carries.clear()
        try:
            yield
        finally:
            self.carries.set()


@contextmanager
def gateway(database_url: str) -> Iterator[tuple[Gateway, str]]:
    """An open gateway to this database, and the address through it."""
    url = make_url(database_url)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        gate = Gateway(str(Path(str(url.query["host"])) / ".s.PGSQL.5432"), listening)
        gate.is_open.set()
        gate.carries.set()
        threading.Thread(target=gate.serve, daemon=True).start()
        through = url.set(host="127.0.0.1", port=listening.getsockname()[1]).difference_update_query(
            ["host", "requirepeer"]
        )
        try:
            yield gate, through.render_as_string(hide_password=False)
        finally:
            gate.is_open.set()
