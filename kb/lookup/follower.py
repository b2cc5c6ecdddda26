"""Follower: a thread that keeps a process's index at the head of the change log also while no lookup asks for it.

Lookups are correct without it, since each sees every change that was committed before it; a follower only spares
them the work. The database announces every change on a channel; a poll is the fallback where an announcement
is lost. A keyset that has passed its gate is opened before it is activated, and the one that was active before stays
open, so that no lookup waits for a switch or a rollback.
"""

from __future__ import annotations

import logging
import selectors
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

import psycopg
from sqlalchemy.exc import SQLAlchemyError

from colmlm.kb.errors import KBError
from colmlm.kb.keys import succession
from colmlm.kb.lookup.searchable import SearchableStore
from colmlm.kb.store import outages

CHANNEL = "colmlm_change"
POLL_SECONDS = 1.0
LONGEST_PAUSE = 2.0  # seconds at most between two attempts to reach a database that does not answer

_log = logging.getLogger(__name__)


class Follower:
    """Follows the change log in a thread and on a connection of its own, in a `with` block or until `stop`."""

    def __init__(self, kb: SearchableStore, *, poll_seconds: float = POLL_SECONDS) -> None:
        self.kb, self.poll_seconds = kb, poll_seconds
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> Self:
        self._ringing, self._bell = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="follower", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """Ends the thread and closes its connection before it returns."""
        if self._thread is not None:
            self._stopping.set()
            self._ringing.send(b".")
            self._thread.join()
            self._ringing.close()
            self._bell.close()
            self._thread = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _run(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            try:
                with self._listening() as connection:
                    follow(self.kb)  # applies changes that were announced before this connection listened
                    if failures:
                        _log.info("following the change log again")
                    failures = 0
                    while self._wait(connection):
                        follow(self.kb)
            except (SQLAlchemyError, psycopg.Error, KBError, OSError) as error:
                failures += 1
                outages.tell(_log, "cannot follow the change log, will try again", error)
                self._stopping.wait(outages.pause(failures, LONGEST_PAUSE))

    @contextmanager
    def _listening(self) -> Iterator[psycopg.Connection[Any]]:
        with self.kb.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            driver = connection.connection.driver_connection
            assert isinstance(driver, psycopg.Connection), "the engine runs on psycopg"
            connection.detach()  # detached and closed at the end, since the pool must not lend a listening connection
            connection.exec_driver_sql(f"LISTEN {CHANNEL}")
            yield driver

    def _wait(self, connection: psycopg.Connection[Any]) -> bool:
        """Waits for a change, or until the next poll; gives False where the thread has to stop."""
        with selectors.DefaultSelector() as selector:
            selector.register(connection, selectors.EVENT_READ)
            selector.register(self._bell, selectors.EVENT_READ)
            selector.select(self.poll_seconds)
        for _ in connection.notifies(timeout=0):
            pass  # the announced change does not matter, since all up to the head are applied
        return not self._stopping.is_set()


def follow(kb: SearchableStore) -> None:
    """Brings this process's index to the head of the log, and opens the keyset that may be activated next."""
    with kb.sessions() as session:
        line = succession.succession(session)
    if line.active is None:
        return
    kb.searcher.catch_up()
    kb.searcher.stand_by(line.next, line.answering)
