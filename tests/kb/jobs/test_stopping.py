"""A worker that is told to stop before it has begun."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from sqlalchemy import make_url

from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.settings import Settings
from tests.kb.jobs.process import worker


@dataclass
class Gateway:
    """A way to the database that can be held up: who connects meanwhile is let through when it is open again."""

    target: str
    listening: socket.socket
    is_open: threading.Event = field(default_factory=threading.Event)
    knocked: threading.Event = field(default_factory=threading.Event)

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
            back = threading.Thread(target=_copy, args=(server, client), daemon=True)
            back.start()
            _copy(client, server)
            back.join()


def _copy(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while block := source.recv(1 << 16):
            sink.sendall(block)
        sink.shutdown(socket.SHUT_WR)


@contextmanager
def gateway(database_url: str) -> Iterator[tuple[Gateway, str]]:
    """An open gateway to this database, and the address through it."""
    url = make_url(database_url)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        gate = Gateway(str(Path(str(url.query["host"])) / ".s.PGSQL.5432"), listening)
        gate.is_open.set()
        threading.Thread(target=gate.serve, daemon=True).start()
        through = url.set(host="127.0.0.1", port=listening.getsockname()[1]).difference_update_query(["host"])
        try:
            yield gate, through.render_as_string(hide_password=False)
        finally:
            gate.is_open.set()


def test_a_worker_stopped_while_it_connects_ends_without_a_complaint(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    with ExitStack() as opened:
        gate, url = opened.enter_context(gateway(str(settings.database_url)))
        kb = opened.enter_context(KnowledgeBase.open(replace(settings, database_url=url)))
        working = worker(kb)
        gate.is_open.clear()
        running = threading.Thread(target=working.run)
        with caplog.at_level(logging.WARNING):
            running.start()
            assert gate.knocked.wait(20)
            working.stop()
            gate.is_open.set()
            running.join()
    assert [record.message for record in caplog.records] == []
