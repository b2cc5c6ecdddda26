"""Debian's PostgreSQL as operators run it: behind TLS, and in pairs of a primary and a standby."""

from __future__ import annotations

import getpass
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import psycopg

from tests.servers import DEBIANS

PATIENCE = 60.0


@dataclass(frozen=True, slots=True)
class DebianServer:
    """A server whose socket is in a folder and whose data is in another in that.

    As PostgreSQL refuses to run as root, the package's own user runs it there.
    """

    folder: Path
    port: int = 5432

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def user(self) -> str:
        return "postgres" if os.geteuid() == 0 else getpass.getuser()

    def create(self, *options: str) -> None:
        """Makes an empty server with these lines at the end of its configuration."""
        self._own_folder()
        self._run(
            "initdb", "-D", self.data, "--auth=trust", "--username=postgres", "--encoding=UTF8", "--no-sync"
        )
        with (self.data / "postgresql.conf").open("a") as conf:
            conf.writelines(
                f"{option}\n" for option in ("listen_addresses = ''", f"port = {self.port}", *options)
            )

    def follow(self, primary: DebianServer) -> None:
        """Makes this a standby of a running primary, whatever it was before."""
        shutil.rmtree(self.data, ignore_errors=True)
        self._own_folder()
        where = f"host={primary.folder} user=postgres application_name=standby"
        self._run(
            "pg_basebackup", "-D", self.data, "-d", where, "-R", "-X", "stream", "-c", "fast", "--no-sync"
        )

    def start(self) -> None:
        self._run(
            "pg_ctl", "start", "-w", "-D", self.data, "-l", self.data / "log", "-o", f"-k {self.folder}"
        )

    def promote(self) -> None:
        self._run("pg_ctl", "promote", "-w", "-D", self.data)

    def kill(self) -> None:
        """Kills the server with all its processes, as a machine that goes down does."""
        with suppress(OSError, psutil.NoSuchProcess):
            parent = psutil.Process(int((self.data / "postmaster.pid").read_text().split()[0]))
            processes = [parent, *parent.children(recursive=True)]
            for process in processes:
                with suppress(psutil.NoSuchProcess):
                    process.send_signal(signal.SIGKILL)
            psutil.wait_procs(processes, timeout=PATIENCE)

    def set(self, **settings: str) -> None:
        """Sets these in the running server."""
        for name, value in settings.items():
            self.execute(f"ALTER SYSTEM SET {name} = '{value}'")
        self.execute("SELECT pg_reload_conf()")

    def execute(self, statement: str, base: str = "postgres") -> list[tuple[object, ...]]:
        where = f"host={self.folder} port={self.port} user=postgres dbname={base}"
        with psycopg.connect(where, autocommit=True) as connection:
            done = connection.execute(statement.encode())
            return done.fetchall() if done.description else []

    def _own_folder(self) -> None:
        for folder in (self.folder, self.data):
            folder.mkdir(mode=0o700, exist_ok=True)
            os.chown(folder, pwd.getpwnam(self.user).pw_uid, -1)
        self.folder.chmod(0o755)

    def _run(self, program: str, *arguments: object) -> None:
        as_user = ["setpriv", f"--reuid={self.user}", "--clear-groups"] if os.geteuid() == 0 else []
        command = [*as_user, str(DEBIANS / program), *map(str, arguments)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/")


@contextmanager
def debian_folder() -> Iterator[Path]:
    """Gives a folder that the server's user may enter, which is removed at the end."""
    with tempfile.TemporaryDirectory(prefix="colmlm-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@dataclass(slots=True)
class ReplicatedPair:
    """A primary and its standby. An edit is acknowledged once the standby shows it (`remote_apply`)."""

    primary: DebianServer
    standby: DebianServer

    @property
    def url(self) -> str:
        """The URL of a base on whichever of both is the primary."""
        hosts = f"{self.primary.folder},{self.standby.folder}"
        return f"postgresql+psycopg://postgres@/colmlm?host={hosts}&target_session_attrs=primary"

    @property
    def standby_url(self) -> str:
        return f"postgresql+psycopg://postgres@/colmlm?host={self.standby.folder}"

    def replicate(self) -> None:
        """Makes the standby anew, and lets commits wait for it."""
        self.standby.follow(self.primary)
        self.standby.start()
        self.primary.set(synchronous_commit="remote_apply", synchronous_standby_names="standby")
        until = time.monotonic() + PATIENCE
        state = "SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'"
        while not self.primary.execute(state):
            assert time.monotonic() < until, "the standby does not follow"
            time.sleep(0.05)

    def fail_over(self) -> None:
        """Kills the primary and promotes the standby; both change places."""
        self.primary.kill()
        self.standby.promote()
        self.primary, self.standby = self.standby, self.primary


@contextmanager
def replicated_pair() -> Iterator[ReplicatedPair]:
    """Gives a running pair with an empty database, all of which is gone at the end."""
    with debian_folder() as folder:
        pair = ReplicatedPair(DebianServer(folder / "one"), DebianServer(folder / "two"))
        try:
            pair.primary.create("fsync = off", "max_wal_senders = 5")
            pair.primary.start()
            pair.primary.execute("CREATE DATABASE colmlm")
            yield pair
        finally:
            pair.primary.kill()
            pair.standby.kill()
