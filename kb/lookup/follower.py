"""Follower: a thread that keeps a process's index at the head of the change log, also while there are no lookups.

Lookups are correct without it, since each sees every change that was committed before it. A follower only spares them
the work. The database announces every change on a channel, and a poll is the fallback where an announcement is lost. A
keyset that has passed its gate is opened before it is activated, and the one that was active before stays open, so that
no lookup waits for a switch or a rollback. Where a keyset has outgrown its exact index, another is built while that one
answers.
"""

from __future__ import annotations

import logging
import selectors
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

import psycopg

from colmlm.kb.keys import keysets
from colmlm.kb.keys.activation import read_succession
from colmlm.kb.lookup.searchable import SearchableStore
from colmlm.kb.store import waits

CHANNEL = "colmlm_change"
POLL_SECONDS = 1.0
REST_SECONDS = 0.25  # between two catch-ups: what is announced meanwhile is followed together
GROW_AGAIN_SECONDS = 60.0  # from an index that could not be built to the next attempt
LONGEST_PAUSE = 2.0  # seconds at most between two attempts to reach a database that does not answer

_log = logging.getLogger(__name__)


class _Stopped(Exception):
    """Raised in the thread that builds an index, to end it because the process stops."""


class Follower:
    """Follows the change log in its own thread and connection, during a `with` block or from `start` to `stop`."""

    def __init__(self, kb: SearchableStore, *, poll_seconds: float = POLL_SECONDS) -> None:
        self.kb, self.poll_seconds = kb, poll_seconds
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._growing: threading.Thread | None = None
        self._grow_from = 0.0  # the time before which no index is built, since the last one failed

    def start(self) -> Self:
        self._ringing, self._bell = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="follower", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """End the thread and close its connection before it returns."""
        if self._thread is not None:
            self._stopping.set()
            self._ringing.send(b".")
            self._thread.join()
            if self._growing is not None:
                self._growing.join()
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
                    self._follow()  # applies changes that were announced before this connection listened
                    if failures:
                        _log.info("following the change log again")
                    failures = 0
                    while self._wait(connection):
                        self._follow()
            except Exception as error:  # noqa: BLE001 - nobody else follows, so it is tried again whatever it was
                failures += 1
                waits.log_outage(_log, "cannot follow the change log, will try again", error)
                self._stopping.wait(waits.pause_after(failures, LONGEST_PAUSE))

    def _follow(self) -> None:
        is_growing = self._growing is not None and self._growing.is_alive()
        if follow_log(self.kb) and not is_growing and time.monotonic() >= self._grow_from:
            self._growing = threading.Thread(target=self._grow, name="index-builder", daemon=True)
            self._growing.start()

    def _grow(self) -> None:
        """Build the kind of index that is due, while the outgrown one answers and follows the log."""
        try:
            self.kb.searcher.grow(self._grown)
        except _Stopped:
            pass
        except Exception as error:  # noqa: BLE001 - the outgrown index answers until another attempt
            self._grow_from = time.monotonic() + GROW_AGAIN_SECONDS
            waits.log_outage(_log, "cannot build the index, will try again", error)

    def _grown(self, done: int, total: int) -> None:
        if self._stopping.is_set():
            raise _Stopped
        _log.info("index: %d of %d keys", done, total)

    @contextmanager
    def _listening(self) -> Iterator[psycopg.Connection[Any]]:
        with self.kb.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            driver = connection.connection.driver_connection
            assert isinstance(driver, psycopg.Connection), "the engine runs on psycopg"
            connection.detach()  # detached and closed at the end, since the pool must not lend a listening connection
            connection.exec_driver_sql(f"LISTEN {CHANNEL}")
            yield driver

    def _wait(self, connection: psycopg.Connection[Any]) -> bool:
        """Rest, and wait for a change or until the next poll; give False where the thread has to stop."""
        self._stopping.wait(min(REST_SECONDS, self.poll_seconds))
        with selectors.DefaultSelector() as selector:
            selector.register(connection, selectors.EVENT_READ)
            selector.register(self._bell, selectors.EVENT_READ)
            selector.select(self.poll_seconds)
        for _ in connection.notifies(timeout=0):
            pass  # the announced change does not matter, since all up to the head are applied
        return not self._stopping.is_set()


def follow_log(kb: SearchableStore) -> bool:
    """Bring this process's index to the head of the log, and open the keyset that may be activated next.

    Gives whether the keyset has outgrown its exact index, so that another kind must be built.
    """
    with kb.sessions() as session:
        line = read_succession(session)
        if line.active is None:
            return False
        active = keysets.keyset_head(session, line.active)
    kb.searcher.catch_up()
    kb.searcher.hand_on()
    kb.searcher.adopt_fit(active)
    kb.searcher.stand_by(line.next, line.answering)
    return kb.searcher.has_outgrown(active.index_spec)
