"""Store: one database and the settings it is used with. Everything below the service takes a Store or a Session."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Engine
from sqlalchemy.orm import Session, sessionmaker

from colmlm.kb.store.group_commit import GroupCommit
from colmlm.kb.store.settings import Settings
from colmlm.kb.store.waits import bounded


class Store:
    """Settings, an engine, sessions on it, and edits that are committed together. Threads may share one."""

    def __init__(self, settings: Settings, engine: Engine) -> None:
        self.settings = settings
        self._use(engine)

    def _use(self, engine: Engine) -> None:
        self.engine = engine
        self.sessions = sessionmaker(engine, expire_on_commit=False)
        self.edits = GroupCommit(engine)

    @contextmanager
    def reports(self) -> Iterator[Session]:
        """Gives a session that reads much of the base, and whose statements are ended after the settings' time."""
        with self.sessions() as session:
            bounded(session, self.settings.report_timeout_seconds)
            yield session
