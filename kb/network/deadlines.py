"""Requests that end at one moment, however slowly the other side answers.

A client's own time limits are for each read. Who sends one byte before each of them ends would hold a request for ever.
"""

from __future__ import annotations

import math
import ssl
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import httpcore2
import httpx2

_PIECE = 16 * 1024  # bytes that are written before the time is looked at again
_IDLE_SECONDS = 5.0  # for which a connection is kept open


@dataclass(slots=True)
class Deadline:
    """The moment at which what goes over a transport ends; `begin` sets it."""

    end: float = math.inf

    def begin(self, seconds: float) -> None:
        """Lets what begins now end in so many seconds."""
        self.end = time.monotonic() + seconds

    def within(self, limit: float | None, over: type[httpcore2.TimeoutException]) -> float:
        """Gives the seconds that one step may take: up to its own limit. Raises `over` where no time is left."""
        left = self.end - time.monotonic()
        if left <= 0:
            raise over("the time is over")
        return left if limit is None else min(limit, left)


class DeadlineTransport(httpx2.HTTPTransport):
    """A transport of httpx2 whose connections keep a deadline in all that they do."""

    def __init__(self, deadline: Deadline, trusted: ssl.SSLContext | bool = True) -> None:
        context = httpx2.create_ssl_context(verify=trusted, trust_env=False)
        super().__init__(verify=context)
        self._pool = httpcore2.ConnectionPool(
            ssl_context=context, keepalive_expiry=_IDLE_SECONDS, network_backend=_Backend(deadline)
        )


class _Backend(httpcore2.SyncBackend):
    def __init__(self, deadline: Deadline) -> None:
        self._deadline = deadline

    def connect_tcp(
        self, host: str, port: int, timeout: float | None = None, local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.NetworkStream:  # fmt: skip
        within = self._deadline.within(timeout, httpcore2.ConnectTimeout)
        stream = super().connect_tcp(host, port, within, local_address, socket_options)
        return _Stream(stream, self._deadline)


class _Stream(httpcore2.NetworkStream):
    def __init__(self, stream: httpcore2.NetworkStream, deadline: Deadline) -> None:
        self._stream, self._deadline = stream, deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, self._deadline.within(timeout, httpcore2.ReadTimeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        for start in range(0, len(buffer), _PIECE):
            within = self._deadline.within(timeout, httpcore2.WriteTimeout)
            self._stream.write(buffer[start : start + _PIECE], within)

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.NetworkStream:
        within = self._deadline.within(timeout, httpcore2.ConnectTimeout)
        return _Stream(self._stream.start_tls(ssl_context, server_hostname, within), self._deadline)

    def close(self) -> None:
        self._stream.close()

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
