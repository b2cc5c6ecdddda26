"""A connection pool that also counts the callers that wait for a connection."""

from __future__ import annotations

import threading
from typing import Any

from sqlalchemy import QueuePool
from sqlalchemy.pool import ConnectionPoolEntry, PoolProxiedConnection


class WatchedPool(QueuePool):
    """SQLAlchemy's pool, which counts its connections but not its callers.

    `num_waiting` is the number of callers without a connection yet, because none is free or theirs is being opened or
    tested. A connection in use when the pool is disposed of is closed when it is returned.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.num_waiting = 0
        self._counting = threading.Lock()
        self._is_disposed = False

    def connect(self) -> PoolProxiedConnection:
        self._count(1)
        try:
            return super().connect()
        finally:
            self._count(-1)

    def dispose(self) -> None:
        self._is_disposed = True
        super().dispose()

    def _do_return_conn(self, record: ConnectionPoolEntry) -> None:
        super()._do_return_conn(record)
        if (
            self._is_disposed
        ):  # no caller takes it again, and SQLAlchemy would leave it to the garbage collector
            super().dispose()

    def _count(self, step: int) -> None:
        with self._counting:
            self.num_waiting += step
