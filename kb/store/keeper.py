"""Keeper: starts the embedded server again where it was killed, while a server or a worker of this home runs.

A server that `colmlm db down` stopped stays down until a command starts it. A server elsewhere has its own owner to
start it, so there is nothing to do, and connections to it recover by themselves.
"""

from __future__ import annotations

import logging
import threading
import time
from types import TracebackType
from typing import Self

import psutil

from colmlm.kb.errors import KBError
from colmlm.kb.store import outages
from colmlm.kb.store.embedded_server import EmbeddedServer
from colmlm.kb.store.settings import Settings

POLL_SECONDS = 0.25
LONGEST_PAUSE = 10.0  # seconds at most between two attempts
STEADY_SECONDS = 10.0  # a server that ran this long is started again without a pause

_log = logging.getLogger(__name__)


class Keeper:
    """Keeps the database of these settings running, from `start` to `stop`, or as a context manager."""

    def __init__(self, settings: Settings) -> None:
        self.server = EmbeddedServer.of(settings)
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> Self:
        if self.server is not None:
            self._thread = threading.Thread(
                target=self._keep, args=(self.server,), name="keeper", daemon=True
            )
            self._thread.start()
        return self

    def stop(self) -> None:
        """Ends the thread, after an attempt to start the server that it may be making."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _keep(self, server: EmbeddedServer) -> None:
        while not self._stopping.is_set():
            try:
                self._watch(server)
            except Exception as error:  # noqa: BLE001 - nobody else starts the server again
                outages.tell(_log, "cannot look after the database server, will try again", error)
                self._stopping.wait(LONGEST_PAUSE)

    def _watch(self, server: EmbeddedServer) -> None:
        joined, attempts, tried_at, was_told = server.pid(), 0, 0.0, False
        while not self._stopping.wait(POLL_SECONDS):
            pid = server.pid()
            if pid is not None and pid == joined:
                continue
            if pid is None and server.was_stopped:
                if not was_told:
                    _log.warning("the database was stopped; colmlm db up starts it, and it is waited for")
                joined, was_told = None, True
                continue
            attempts = 0 if time.monotonic() - tried_at > STEADY_SECONDS else attempts + 1
            if attempts and self._stopping.wait(outages.pause(attempts, LONGEST_PAUSE)):
                return
            joined, was_told = _revived(server), False
            tried_at = time.monotonic()


def _revived(server: EmbeddedServer) -> int | None:
    """Gives the process id of the server, once it is started or joined; None where that did not succeed."""
    began, before = time.monotonic(), server.pid()
    try:
        if not server.revive():
            return None
    except (KBError, OSError, psutil.Error) as error:
        outages.tell(_log, "the database server cannot be started, will try again", error)
        return None
    if before is None:
        _log.warning("the database server was gone; it runs again after %.1f s", time.monotonic() - began)
    return server.pid()
