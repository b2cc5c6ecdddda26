"""Limits the rate of requests of a token: in this process, or in all that share its port."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from colmlm.api.errors import TooManyRequests
from colmlm.kb.access.records import TokenRecord

Clock = Callable[[], float]
Take = Callable[
    [int, int], float
]  # takes a permit of a token, by id and rate, or gives the seconds until there is one


def taken(permits: float, elapsed: float, per_minute: int) -> tuple[float, float]:
    """Takes one of `permits` that were counted `elapsed` seconds ago and refill evenly up to `per_minute`.

    Gives those left, and 0 or the seconds until there is one.
    """
    rate = per_minute / 60
    permits = min(per_minute, permits + elapsed * rate)
    return (permits, (1 - permits) / rate) if permits < 1 else (permits - 1, 0.0)


class Bucket:
    """A bucket of permits: it holds up to `per_minute` and refills evenly at that rate. For one thread."""

    def __init__(self, per_minute: int, clock: Clock = time.monotonic) -> None:
        self.per_minute = per_minute
        self._clock = clock
        self._permits, self._filled_at = float(per_minute), clock()

    def take(self) -> float:
        """Takes a permit and gives 0, or gives the seconds until there is one."""
        now = self._clock()
        self._permits, wait = taken(self._permits, now - self._filled_at, self.per_minute)
        self._filled_at = now
        return wait


def own_rates(clock: Clock = time.monotonic) -> Take:
    """Gives buckets of this process alone, one for each token."""
    buckets: dict[int, Bucket] = {}

    def take(token_id: int, per_minute: int) -> float:
        bucket = buckets.get(token_id)
        if bucket is None or bucket.per_minute != per_minute:
            bucket = buckets[token_id] = Bucket(per_minute, clock)
        return bucket.take()

    return take


class RateLimits:
    """Limits each token to its own rate or to `default` (None: no limit)."""

    def __init__(self, default: int | None, take: Take) -> None:
        self._default, self._take = default, take
        self._taking = threading.Lock()

    def check(self, token: TokenRecord) -> None:
        """Counts a request of this token. Raises `TooManyRequests`."""
        per_minute = token.rate_limit or self._default
        if per_minute is None:
            return
        with self._taking:
            wait = self._take(token.key_id, per_minute)
        if wait:
            raise TooManyRequests(f"ask {per_minute} times a minute", wait, "have an admin raise its limit")
