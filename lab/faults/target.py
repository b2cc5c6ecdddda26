"""The second database of a round: for a restore, a migration, a sync of a folder or an import of a release."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TypedDict

from sqlalchemy import URL, Engine, NullPool, create_engine, make_url, text

from colmlm.kb.store import database
from colmlm.kb.store.embedded_server import EmbeddedServer
from colmlm.kb.store.settings import Settings
from colmlm.lab.bench.machine import kill_server

CORPUS = "faults"


class ActorAndReason(TypedDict):
    """The actor and the reason that every edit takes."""

    actor: str
    reason: str


WHO: ActorAndReason = {"actor": "faults", "reason": "faults"}


@dataclass(frozen=True, slots=True)
class CrashTarget:
    """A database, and a folder for its home and for what is restored, synced or imported into it."""

    url: str
    folder: str

    @property
    def path(self) -> Path:
        return Path(self.folder)

    @property
    def settings(self) -> Settings:
        return Settings(home=self.path / "home", database_url=self.url, actor=WHO["actor"])

    @property
    def backup(self) -> Path:
        return self.path / "base.backup"

    @property
    def sealing_keys(self) -> Path:
        """The keys of the backup's time, with which a copy has all that was not erased."""
        return self.path / "sealing.keys"

    @property
    def log(self) -> Path:
        return self.path / "changes.jsonl"

    @property
    def synced_folder(self) -> Path:
        return self.path / "followed"

    @property
    def release(self) -> Path:
        return self.path / "release"

    @property
    def later(self) -> Path:
        return self.path / "later"

    @property
    def later_migrations(self) -> Path | None:
        """The folder of a later release's migrations, where this round has one."""
        return self.later if self.later.is_dir() else None


# The embedded PostgreSQL server of the laboratory, in a folder of its own, which some rounds kill.

TEMPLATE = "faults_template"
PATIENCE = (
    300.0  # seconds after which a process or a connection counts as hung, also on a machine with much to do
)
_OTHERS = text("""
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
""")


class FolderServer:
    """An embedded server on a folder. Entering the context starts it, leaving it stops it.

    `can_be_killed` is False for a server that others use too.
    """

    can_be_killed = True

    def __init__(self, folder: Path) -> None:
        self.settings, self.count = Settings(home=folder), 0

    def __enter__(self) -> Self:
        self.settings.home.mkdir(parents=True, exist_ok=True)
        self.start()
        # Only processes are killed. The kernel keeps what they wrote, so an fsync makes no difference.
        self._execute("ALTER SYSTEM SET fsync = off")
        self._execute("SELECT pg_reload_conf()")
        self._execute(f"CREATE DATABASE {TEMPLATE}")
        engine = create_engine(self.url.set(database=TEMPLATE))
        database.migrate_database(engine)
        engine.dispose()
        return self

    def __exit__(self, *_: object) -> None:
        EmbeddedServer(self.settings.home / "postgres").stop()

    def start(self) -> None:
        """Start the server, or connect to it if it runs. A killed one recovers first."""
        engine = database.connect_database(self.settings)
        self.url: URL = engine.url
        engine.dispose()

    def make_database(self, *, migrated: bool = True) -> str:
        """Create an empty database and give its URL. Without `migrated` it has no schema either."""
        self.count += 1
        self._execute(f"CREATE DATABASE base_{self.count} TEMPLATE {TEMPLATE if migrated else 'template0'}")
        return self.url.set(database=f"base_{self.count}").render_as_string(hide_password=False)

    def drop(self, url: str) -> None:
        self._execute(f"DROP DATABASE {make_url(url).database} WITH (FORCE)")

    def kill(self) -> None:
        """Kill the server and its children by SIGKILL."""
        kill_server(self.settings.home / "postgres")

    def _execute(self, statement: str) -> None:
        engine = create_engine(self.url, isolation_level="AUTOCOMMIT", poolclass=NullPool)
        with engine.connect() as connection:
            connection.execute(text(statement))


def is_quiet(engine: Engine) -> bool:
    """Wait until nobody else is connected, since a killed child's statement may run on. False after `PATIENCE`."""
    deadline = time.monotonic() + PATIENCE
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        while connection.scalar(_OTHERS):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.002)
    return True
