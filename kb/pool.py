"""A connection pool that can be asked how many callers wait for it."""

from __future__ import annotations

import threading
from typing import Any

from sqlalchemy import QueuePool
from sqlalchemy.pool import PoolProxiedConnection


class WatchedPool(QueuePool):
    """SQLAlchemy's pool, which counts its connections and not its callers.

    `num_waiting` are the callers that asked and have no connection yet: because none is free, or because theirs is
    being opened or tried.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.num_waiting = 0
        self._counting = threading.Lock()

    def connect(self) -> PoolProxiedConnection:
        self._count(1)
        try:
            return super().connect()
        finally:
            self._count(-1)

    def _count(self, step: int) -> None:
        with self._counting:
            self.num_waiting += step
