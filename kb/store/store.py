"""Store: one database and the settings it is used with. Everything below the service takes a Store or a Session."""

from __future__ import annotations

from sqlalchemy import Engine
from sqlalchemy.orm import sessionmaker

from colmlm.kb.store.settings import Settings


class Store:
    """Settings, an engine, and sessions on it. Threads may share one."""

    def __init__(self, settings: Settings, engine: Engine) -> None:
        self.settings = settings
        self.engine = engine
        self.sessions = sessionmaker(engine, expire_on_commit=False)
