"""Limits the rate of requests of a token. Each server process counts by itself and grants the full rate."""

from __future__ import annotations

import time
from collections.abc import Callable

from colmlm.api.errors import TooManyRequests
from colmlm.kb.access.records import TokenRecord

Clock = Callable[[], float]


class Bucket:
    """A bucket of permits: it holds up to `per_minute` and refills evenly at that rate. For one thread."""

    def __init__(self, per_minute: int, clock: Clock = time.monotonic) -> None:
        self.per_minute = per_minute
        self._clock = clock
        self._permits, self._filled_at = float(per_minute), clock()

    def take(self) -> float:
        """Takes a permit and gives 0, or gives the seconds until there is one."""
        now, rate = self._clock(), self.per_minute / 60
        self._permits = min(self.per_minute, self._permits + (now - self._filled_at) * rate)
        self._filled_at = now
        if self._permits < 1:
            return (1 - self._permits) / rate
        self._permits -= 1
        return 0.0


class RateLimits:
    """A bucket for each token, at the token's own rate or at `default` (None: no limit).

    For the event loop only.
    """

    def __init__(self, default: int | None, clock: Clock = time.monotonic) -> None:
        self._default, self._clock = default, clock
        self._buckets: dict[int, Bucket] = {}

    def check(self, token: TokenRecord) -> None:
        """Counts a request of this token. Raises `TooManyRequests`."""
        per_minute = token.rate_limit or self._default
        if per_minute is None:
            return
        bucket = self._buckets.get(token.key_id)
        if bucket is None or bucket.per_minute != per_minute:
            bucket = self._buckets[token.key_id] = Bucket(per_minute, self._clock)
        if wait := bucket.take():
            raise TooManyRequests(per_minute, wait)
