"""How often a key may ask. Buckets live in this process: with several, each grants the full rate."""

from __future__ import annotations

import time
from collections.abc import Callable

from colmlm.api.errors import TooManyRequests
from colmlm.kb.access.api_keys import ApiKeyRecord

Clock = Callable[[], float]


class TokenBucket:
    """Grants `per_minute` at once, then as many a minute, evenly. For one thread."""

    def __init__(self, per_minute: int, clock: Clock = time.monotonic) -> None:
        self.per_minute = per_minute
        self._clock = clock
        self._tokens, self._filled_at = float(per_minute), clock()

    def take(self) -> float:
        """Take one and give 0, or give the seconds until there is one."""
        now, rate = self._clock(), self.per_minute / 60
        self._tokens = min(self.per_minute, self._tokens + (now - self._filled_at) * rate)
        self._filled_at = now
        if self._tokens < 1:
            return (1 - self._tokens) / rate
        self._tokens -= 1
        return 0.0


class RateLimits:
    """A bucket for each key that has a rate, its own or `default` (None: no limit). Asked on the event loop only."""

    def __init__(self, default: int | None, clock: Clock = time.monotonic) -> None:
        self._default, self._clock = default, clock
        self._buckets: dict[int, TokenBucket] = {}

    def check(self, key: ApiKeyRecord) -> None:
        """Count a request. Raises `TooManyRequests`."""
        per_minute = key.rate_limit or self._default
        if per_minute is None:
            return
        bucket = self._buckets.get(key.key_id)
        if bucket is None or bucket.per_minute != per_minute:
            bucket = self._buckets[key.key_id] = TokenBucket(per_minute, self._clock)
        if wait := bucket.take():
            raise TooManyRequests(per_minute, wait)
