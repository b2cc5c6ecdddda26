"""Supervisor: forks the server processes, replaces one that ends, and restarts or drains them by signals.

SIGTERM and SIGINT drain all, a second one ends them at once. SIGHUP replaces one after the other: the next is up before
the former is told to leave, and takes over its socket, which the supervisor holds, so that no connection is refused.

What a process loads before it forks is shared by all until it is written to. A fork copies the forking thread alone,
so the supervisor has no other: it starts no thread and computes nothing that would.
"""

from __future__ import annotations

import fcntl
import logging
import mmap
import os
import signal
import struct
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from prometheus_client.multiprocess import mark_process_dead

from colmlm.api.middleware.limiters import Clock, take_permit

TICK_SECONDS = 0.05
SHORT_LIVED_SECONDS = 1.0  # one that ends sooner is replaced only after such a pause
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Task:
    """A task that one process at a time does: its work, and the id (0: none) and start of that process."""

    work: Callable[[], None]
    pid: int = 0
    since: float = 0.0


class Supervisor:
    """Run `serve(place)` in a process for each place, and `attend` in one more, until it is told to end."""

    def __init__(
        self,
        shared: SharedState,
        serve: Callable[[int], None],
        attend: Callable[[], None],
        stop_listening: Callable[[], None],
    ) -> None:
        """Keep the work. `stop_listening` closes this process's sockets, so that an ended server leaves none open."""
        self.shared, self.serve, self.attend, self.stop_listening = shared, serve, attend, stop_listening
        self._leaving: set[int] = set()
        self._renewing: deque[int] = deque()
        self._next = 0  # the process that is to take over the place first in `_renewing`
        self._num_stops = 0

    def run(self) -> None:
        with Forks.blocking(*_SIGNALS) as self._forks:
            places = range(self.shared.num_servers)
            self._tasks = [*(_Task(partial(self.serve, place)) for place in places), _Task(self.attend)]
            while not self._is_over():
                self._start_missing()
                self._continue_restart()
                if (caught := signal.sigtimedwait(_SIGNALS, TICK_SECONDS)) is not None:
                    self._handle_signal(caught.si_signo)
                self._reap()

    @property
    def _servers(self) -> list[_Task]:
        return self._tasks[:-1]

    def _is_over(self) -> bool:
        """Say whether all processes have ended after a stop. Once the servers have, it tells the attendant to end."""
        if not self._num_stops:
            return False
        attendant = self._tasks[-1]
        if not any(task.pid for task in self._servers) and not self._leaving and attendant.pid:
            os.kill(attendant.pid, signal.SIGTERM)
            self._leaving.add(attendant.pid)
            attendant.pid = 0
        return not self._leaving and not any(task.pid for task in self._tasks)

    def _start_missing(self) -> None:
        for task in self._tasks:
            if not task.pid and not self._num_stops and time.monotonic() - task.since > SHORT_LIVED_SECONDS:
                task.pid, task.since = self._forks.fork(task.work), time.monotonic()

    def _continue_restart(self) -> None:
        """Continue a restart of all servers: start the next successor, or let it take over once it is up."""
        if not self._renewing or self._num_stops or self._leaving:
            return
        place = self._renewing[0]
        task = self._tasks[place]
        if not self._next:
            self._next = self._forks.fork(task.work)
        elif self.shared.process_at(place) == self._next:
            former, task.pid, self._next = task.pid, self._next, 0
            task.since = time.monotonic()
            if former:
                os.kill(former, signal.SIGHUP)
                self._leaving.add(former)
            self._renewing.popleft()

    def _handle_signal(self, number: int) -> None:
        if number in (signal.SIGTERM, signal.SIGINT):
            self._num_stops += 1
            self.stop_listening()
            running = [*(task.pid for task in self._servers), self._next, *self._leaving]
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
            self._handle_exit(pid, os.waitstatus_to_exitcode(status))

    def _handle_exit(self, pid: int, code: int) -> None:
        for place in range(self.shared.num_servers):
            if self.shared.process_at(place) == pid:
                self.shared.set_process_at(place, 0)
        mark_process_dead(pid)  # type: ignore[no-untyped-call]
        if pid in self._leaving:
            self._leaving.discard(pid)
        elif pid == self._next:
            self._next = 0
            self._renewing.clear()
            _log.error("the new server ended with code %d; the others stay as they are", code)
        for task in self._tasks:
            if task.pid == pid:
                task.pid = 0
                if not self._num_stops:
                    _log.warning("a server process ended with code %d; another takes its place", code)


# Forks processes that end with the one that forked them, and that a terminal's signals do not reach.

_log_forking = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Forks:
    """Forks child processes, which unblock the signals that the parent keeps `blocked`.

    Each child has the reading end of a pipe whose writing end the parent alone has, so a child also notices a parent
    that was killed.
    """

    blocked: frozenset[signal.Signals]
    reads: int
    writes: int

    @classmethod
    @contextmanager
    def blocking(cls, *blocked: signal.Signals) -> Iterator[Forks]:
        """Block these signals in this process within the context, so that they stay pending until it waits for them."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
        reads, writes = os.pipe()
        try:
            yield cls(frozenset(blocked), reads, writes)
        finally:
            os.close(writes)
            os.close(reads)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def fork(self, work: Callable[[], None]) -> int:
        """Run `work` in a child and give its process id. The child runs nothing else, not even at its exit."""
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
            _log_forking.exception("a server process failed")
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


# What the server processes of one supervisor share in memory: which of them are up, rate limits, and metrics'
# files.
#
# It is a file without a name, mapped by all of them. Its lock is the system's, which frees it when its holder
# dies.

_CELL = struct.Struct("<q")
_BUCKET = struct.Struct("<qqdd")  # the token's id and one, its rate, its permits, and when they were counted
_BUCKETS, _NEAR = (
    4096,
    16,
)  # a token's bucket is one of sixteen; where all are others', the one used longest ago goes


class SharedState:
    """Memory shared by server processes, made before any fork. One thread of each uses it, but for `counted_since`."""

    def __init__(self, num_servers: int, metrics_folder: Path) -> None:
        self.num_servers, self.metrics_folder = num_servers, metrics_folder
        self._rates_at = _CELL.size * (1 + num_servers)
        size = self._rates_at + _BUCKET.size * _BUCKETS
        with tempfile.TemporaryFile() as file:
            file.truncate(size)
            self._memory = mmap.mmap(file.fileno(), size)
            self._file = os.dup(file.fileno())  # open as long as the process lives

    def set_process_at(self, place: int, pid: int) -> None:
        """Store the id of the process that serves at this place; 0 if none does."""
        _CELL.pack_into(self._memory, _CELL.size * (1 + place), pid)

    def process_at(self, place: int) -> int:
        """Give the id of the process that serves at this place; 0 if none does."""
        pid: int = _CELL.unpack_from(self._memory, _CELL.size * (1 + place))[0]
        return pid

    def are_all_up(self) -> bool:
        return all(self.process_at(place) for place in range(self.num_servers))

    def counted_since(self, head: int) -> int:
        """Give the change after which metrics count changes: the `head` of the first call in any process."""
        with self._file_lock():
            if not (since := _CELL.unpack_from(self._memory, 0)[0]):
                since = head + 1
                _CELL.pack_into(self._memory, 0, since)
        return int(since) - 1

    def permit_taker(self, clock: Clock = time.monotonic) -> Callable[[int, int], float]:
        """Give a function that takes a permit of a token at its rate. It gives 0, or the seconds until there is one."""

        def take(token_id: int, per_minute: int) -> float:
            with self._file_lock():
                at = self._bucket(token_id)
                named, rate, permits, since = _BUCKET.unpack_from(self._memory, at)
                now = clock()
                if (named, rate) != (token_id + 1, per_minute):
                    permits, since = float(per_minute), now
                permits, wait = take_permit(permits, now - since, per_minute)
                _BUCKET.pack_into(self._memory, at, token_id + 1, per_minute, permits, now)
                return wait

        return take

    def _bucket(self, token_id: int) -> int:
        places = [self._rates_at + _BUCKET.size * ((token_id + n) % _BUCKETS) for n in range(_NEAR)]
        found = [(_BUCKET.unpack_from(self._memory, at), at) for at in places]
        own = next((at for (named, *_), at in found if named == token_id + 1), None)
        return min(found, key=lambda one: one[0][3])[1] if own is None else own

    @contextmanager
    def _file_lock(self) -> Iterator[None]:
        fcntl.lockf(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN)
