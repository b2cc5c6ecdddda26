"""Requests to a server elsewhere: kept-alive connections, time limits, repetition of what is safe to repeat.

A request is sent again where it cannot have been carried out (nobody was reached, or it was turned away by 429), and
one that may be carried out twice also where the answer was lost or the server not ready (502, 503, 504). Each waits a
random part of a time that doubles. An edit that is sent under a name may be repeated too, also while it is still being
carried out (409 with Retry-After). A budget that only answers fill bounds the repetitions of all threads together, so
that a server in trouble is not asked several times as much as before.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Self

import httpx2

from colmlm.api.client.errors import ServerUnreachable, refused

_NOT_READY = (502, 503, 504)
_TURNED_AWAY, _CONFLICT = 429, 409
_IDLE_SECONDS = (
    3.0  # below the 5 after which a server closes: none is lost on a connection that is being closed
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Seconds to connect and to wait for an answer, how often to try, the waits between, and the budget to repeat."""

    connect_seconds: float = 5.0
    answer_seconds: float = 60.0
    attempts: int = 4
    first_wait: float = 0.1
    longest_wait: float = 5.0
    saved: float = 10.0
    earned: float = 0.1  # by every answer


@dataclass(slots=True)
class Budget:
    """Repetitions that may still be made; every answer earns a part of one. Threads share it."""

    patience: Patience
    left: float = field(init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.left = self.patience.saved

    def earn(self) -> None:
        with self._lock:
            self.left = min(self.patience.saved, self.left + self.patience.earned)

    def spend(self) -> bool:
        """Take one repetition; whether there was one."""
        with self._lock:
            if self.left < 1:
                return False
            self.left -= 1
            return True


class Connection:
    """A server and a key for it. Threads may share it; redirects are not followed, so the key goes nowhere else."""

    def __init__(self, url: str, key: str, patience: Patience | None = None) -> None:
        self.url, self.patience = url.rstrip("/"), patience or Patience()
        self.budget = Budget(self.patience)
        try:
            self._client = httpx2.Client(
                base_url=self.url,
                headers={"Authorization": f"Bearer {key}"},
                timeout=httpx2.Timeout(self.patience.answer_seconds, connect=self.patience.connect_seconds),
                limits=httpx2.Limits(keepalive_expiry=_IDLE_SECONDS),
            )
        except (httpx2.InvalidURL, UnicodeError) as error:
            raise ServerUnreachable(self.url, str(error)) from error

    def close(self) -> None:
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def request(self, method: str, path: str, *, is_repeatable: bool, **options: Any) -> httpx2.Response:
        """The answer, of a status below 400. Raises `ServerUnreachable`, or the `KBError` that refused it."""
        wait, was_sent = self.patience.first_wait, False
        for attempt in range(1, self.patience.attempts + 1):
            last, least = attempt == self.patience.attempts, 0.0
            try:
                response = self._client.request(method, path, **options)
            except (httpx2.HTTPError, httpx2.InvalidURL) as error:
                was_sent = was_sent or not _never_sent(error)
                if last or not _is_safe(error, is_repeatable) or not self.budget.spend():
                    raise ServerUnreachable(self.url, _said(error), was_sent=was_sent) from error
            else:
                if response.status_code < 400:
                    self.budget.earn()
                    return response
                may_repeat = response.status_code == _TURNED_AWAY or (is_repeatable and _is_passing(response))
                if last or not may_repeat or not self.budget.spend():
                    raise refused(response)
                asked = response.headers.get("retry-after", "")
                least = min(self.patience.longest_wait, int(asked) if asked.isdecimal() else 0)
            time.sleep(least + random.uniform(0, wait))
            wait = min(self.patience.longest_wait, 2 * wait)
        raise AssertionError("the last attempt returns or raises")

    def lines(self, method: str, path: str, **options: Any) -> Iterator[str]:
        """The lines of a long answer as they arrive, each with its end. It is asked for once."""
        rest = b""
        try:
            with self._client.stream(method, path, **options) as response:
                if response.status_code >= 400:
                    response.read()
                    raise refused(response)
                for block in response.iter_bytes():
                    *whole, rest = (rest + block).split(b"\n")
                    yield from (f"{line.decode()}\n" for line in whole)
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise ServerUnreachable(self.url, _said(error)) from error
        if rest:
            yield rest.decode()


def _is_passing(response: httpx2.Response) -> bool:
    """Whether the same request may do better in a moment."""
    if response.status_code == _CONFLICT:
        return "retry-after" in response.headers
    return response.status_code in _NOT_READY


def _is_safe(error: Exception, is_repeatable: bool) -> bool:
    """Whether to send again after this: nothing was sent, or it may be carried out twice."""
    return _never_sent(error) or (is_repeatable and isinstance(error, httpx2.TransportError))


def _never_sent(error: Exception) -> bool:
    return isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.PoolTimeout)


def _said(error: Exception) -> str:
    return f"{type(error).__name__} {error}".strip()
