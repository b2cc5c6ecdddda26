"""Supervisor: forks the server processes, replaces one that ends, and restarts or drains them by signals.

SIGTERM and SIGINT drain all, a second one ends them at once. SIGHUP replaces one after the other: the next is up before
the former is told to leave, and takes over its socket, which the supervisor holds, so that no connection is refused.

What a process loads before it forks is shared by all until it is written to. A fork copies the forking thread alone,
so the supervisor has no other: it starts no thread and computes nothing that would.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from prometheus_client.multiprocess import mark_process_dead

from colmlm.api.supervision.forking import Forks
from colmlm.api.supervision.shared import Shared

TICK_SECONDS = 0.05
SHORT_LIVED_SECONDS = 1.0  # one that ends sooner is replaced only after such a pause
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Post:
    """Work that one process has to do at any time, and that process."""

    work: Callable[[], None]
    pid: int = 0
    since: float = 0.0


class Supervisor:
    """Runs `serve(place)` in a process for each place, and `attend` in one more, until it is told to end."""

    def __init__(
        self,
        shared: Shared,
        serve: Callable[[int], None],
        attend: Callable[[], None],
        stop_listening: Callable[[], None],
    ) -> None:
        """`stop_listening` closes this process's sockets, so that those of a server that ends are closed with it."""
        self.shared, self.serve, self.attend, self.stop_listening = shared, serve, attend, stop_listening
        self._leaving: set[int] = set()
        self._renewing: deque[int] = deque()
        self._next = 0  # the process that is to take over the place first in `_renewing`
        self._num_stops = 0

    def run(self) -> None:
        with Forks.blocking(*_SIGNALS) as self._forks:
            places = range(self.shared.num_servers)
            self._posts = [*(_Post(partial(self.serve, place)) for place in places), _Post(self.attend)]
            while not self._is_over():
                self._fill()
                self._renew()
                if (caught := signal.sigtimedwait(_SIGNALS, TICK_SECONDS)) is not None:
                    self._heed(caught.si_signo)
                self._reap()

    @property
    def _servers(self) -> list[_Post]:
        return self._posts[:-1]

    def _is_over(self) -> bool:
        """Whether all have ended that were told to; the attendant is told last."""
        if not self._num_stops:
            return False
        attendant = self._posts[-1]
        if not any(post.pid for post in self._servers) and not self._leaving and attendant.pid:
            os.kill(attendant.pid, signal.SIGTERM)
            self._leaving.add(attendant.pid)
            attendant.pid = 0
        return not self._leaving and not any(post.pid for post in self._posts)

    def _fill(self) -> None:
        for post in self._posts:
            if not post.pid and not self._num_stops and time.monotonic() - post.since > SHORT_LIVED_SECONDS:
                post.pid, post.since = self._forks.fork(post.work), time.monotonic()

    def _renew(self) -> None:
        """Goes on with a restart: starts what takes over next, or lets it take over once it is up."""
        if not self._renewing or self._num_stops or self._leaving:
            return
        place = self._renewing[0]
        post = self._posts[place]
        if not self._next:
            self._next = self._forks.fork(post.work)
        elif self.shared.up(place) == self._next:
            former, post.pid, self._next = post.pid, self._next, 0
            post.since = time.monotonic()
            if former:
                os.kill(former, signal.SIGHUP)
                self._leaving.add(former)
            self._renewing.popleft()

    def _heed(self, number: int) -> None:
        if number in (signal.SIGTERM, signal.SIGINT):
            self._num_stops += 1
            self.stop_listening()
            running = [*(post.pid for post in self._servers), self._next, *self._leaving]
            for pid in filter(None, running):
                os.kill(pid, signal.SIGTERM)
            if self._next:
                self._leaving.add(self._next)
            self._next = 0
        elif number == signal.SIGHUP and not self._renewing:
            _log.info("restarting one server after the other")
            self._renewing.extend(range(self.shared.num_servers))

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            self._ended(pid, os.waitstatus_to_exitcode(status))

    def _ended(self, pid: int, code: int) -> None:
        for place in range(self.shared.num_servers):
            if self.shared.up(place) == pid:
                self.shared.tell_up(place, 0)
        mark_process_dead(pid)  # type: ignore[no-untyped-call]
        if pid in self._leaving:
            self._leaving.discard(pid)
        elif pid == self._next:
            self._next = 0
            self._renewing.clear()
            _log.error("the new server ended with code %d; the others stay as they are", code)
        for post in self._posts:
            if post.pid == pid:
                post.pid = 0
                if not self._num_stops:
                    _log.warning("a server process ended with code %d; another takes its place", code)
