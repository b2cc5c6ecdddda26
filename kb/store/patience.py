"""Patience: how long a connection waits for an answer, where its statements are limited.

The server ends such a statement in time and says so. Who hears nothing for longer than that will hear nothing at all: a
line through a proxy may be dead though the system at its other end still confirms every packet, so that no keepalive
fails.
"""

from __future__ import annotations

import math
import time
from typing import Any, TypeVar

import psycopg
from psycopg.abc import PQGen

T = TypeVar("T")

SPARE_SECONDS = 5.0  # for the way there and back, beyond the time that the server gives a statement


class PatientConnection(psycopg.Connection[Any]):
    """A connection that is closed where the server says nothing for `patience` seconds, and then raises that.

    A commit is waited for without end, as PostgreSQL itself lets it wait for a standby: breaking it off would leave
    open whether it was done.
    """

    patience: float = math.inf

    def wait(self, gen: PQGen[T], *how: Any, **named: Any) -> T:
        return super().wait(gen if math.isinf(self.patience) else self._in_time(gen), *how, **named)

    def commit(self) -> None:
        patience, self.patience = self.patience, math.inf
        try:
            super().commit()
        finally:
            self.patience = patience

    def _in_time(self, gen: PQGen[T]) -> PQGen[T]:
        """Passes on what `gen` waits for. Every tenth of a second the driver also wakes it when nothing has come."""
        end = time.monotonic() + self.patience
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if ready:
                    end = time.monotonic() + self.patience
                elif time.monotonic() > end:
                    self.close()
                    raise psycopg.OperationalError(f"the server said nothing for {self.patience:.0f} s")
                wanted = gen.send(ready)
        except StopIteration as done:
            found: T = done.value
            return found
