"""Limits the rate of requests of an API key. Each server process counts by itself and grants the full rate."""

from __future__ import annotations

import time
from collections.abc import Callable

from colmlm.api.errors import TooManyRequests
from colmlm.kb.access.records import ApiKeyRecord

Clock = Callable[[], float]


class TokenBucket:
    """A token bucket: it holds up to `per_minute` tokens and refills evenly at that rate. For one thread."""

    def __init__(self, per_minute: int, clock: Clock = time.monotonic) -> None:
        self.per_minute = per_minute
        self._clock = clock
        self._tokens, self._filled_at = float(per_minute), clock()

    def take(self) -> float:
        """Takes a token and gives 0, or gives the seconds until there is one."""
        now, rate = self._clock(), self.per_minute / 60
        self._tokens = min(self.per_minute, self._tokens + (now - self._filled_at) * rate)
        self._filled_at = now
        if self._tokens < 1:
            return (1 - self._tokens) / rate
        self._tokens -= 1
        return 0.0


class RateLimits:
    """A token bucket for each API key, at the key's own rate or at `default` (None: no limit).

    For the event loop only.
    """

    def __init__(self, default: int | None, clock: Clock = time.monotonic) -> None:
        self._default, self._clock = default, clock
        self._buckets: dict[int, TokenBucket] = {}

    def check(self, key: ApiKeyRecord) -> None:
        """Counts a request of this key. Raises `TooManyRequests`."""
        per_minute = key.rate_limit or self._default
        if per_minute is None:
            return
        bucket = self._buckets.get(key.key_id)
        if bucket is None or bucket.per_minute != per_minute:
            bucket = self._buckets[key.key_id] = TokenBucket(per_minute, self._clock)
        if wait := bucket.take():
            raise TooManyRequests(per_minute, wait)
