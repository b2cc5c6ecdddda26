"""Forks processes that end with the one that forked them, and that a terminal's signals do not reach."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Forks:
    """Makes children. They unblock the signals that the parent keeps `blocked`.

    Each has the reading end of a pipe of which the parent alone has the other, so it notices also a parent that was
    killed.
    """

    blocked: frozenset[signal.Signals]
    reads: int
    writes: int

    @classmethod
    @contextmanager
    def blocking(cls, *blocked: signal.Signals) -> Iterator[Forks]:
        """Blocks these signals in this process while the context lasts, so that they wait to be asked for."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
        reads, writes = os.pipe()
        try:
            yield cls(frozenset(blocked), reads, writes)
        finally:
            os.close(writes)
            os.close(reads)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def fork(self, work: Callable[[], None]) -> int:
        """Runs `work` in a child and gives its process id. The child runs nothing else, not even at its exit."""
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid:
            return pid
        code = 1
        try:
            self._begin()
            work()
            code = 0
        except BaseException:  # noqa: BLE001 - nothing above this may go on in the child
            _log.exception("a server process failed")
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def _begin(self) -> None:
        os.setpgid(0, 0)  # Ctrl-C reaches the parent alone, which then drains its children
        os.close(self.writes)
        threading.Thread(target=_end_with, args=(self.reads,), name="end of the parent", daemon=True).start()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, self.blocked)


def _end_with(reads: int) -> None:
    os.read(reads, 1)  # nothing is ever written
    os.kill(os.getpid(), signal.SIGTERM)
