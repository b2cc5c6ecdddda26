"""Limits what an incomplete request may hold: bytes and seconds of its head, seconds of its body, connections.

The limits hold before any token is known, for the API and for MCP. A refusal is a problem document with 408, 431 or
503, and closes the connection. A connection that is idle between two requests is closed by uvicorn, after 5 seconds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import msgspec
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from colmlm.api.wire.answers import Problem

Report = Callable[[int, float], object]  # is told the status of a refusal, and after how many seconds it came

_MEDIA_TYPE = b"application/problem+json"
# What chunks may add to a body, in bytes for each of its bytes: a chunk of one byte has six bytes around it.
_CHUNK_OVERHEAD = 8

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivalLimits:
    """Limits on requests that are not complete.

    A body has to bring `body_bytes` in each `body_seconds`, or its end. Beyond `most` connections with an incomplete
    request the oldest is closed. A client that was refused has `linger_seconds` to read why. What it goes on sending
    is thrown away.
    """

    head_bytes: int = 64 * 1024
    head_seconds: float = 10.0
    body_bytes: int = 10 * 1024
    body_seconds: float = 20.0
    linger_seconds: float = 2.0
    most: int = 512


@dataclass(frozen=True, slots=True)
class Unfinished:
    """The connections of one server whose request is not complete, oldest first, with their limits."""

    limits: ArrivalLimits
    report: Report
    connections: dict[LimitedProtocol, None] = field(default_factory=dict)

    def add(self, connection: LimitedProtocol) -> None:
        """Add a connection, and close the oldest where there are too many."""
        self.connections[connection] = None
        if len(self.connections) > self.limits.most:
            next(iter(self.connections)).evict()


def limited_protocol(
    limits: ArrivalLimits | None = None, report: Report = lambda *_: None
) -> type[asyncio.Protocol]:
    """Make the protocol class of one server, whose connections share the limit on their number."""

    class OfOneServer(LimitedProtocol):
        unfinished = Unfinished(limits or ArrivalLimits(), report)

    return OfOneServer


class LimitedProtocol(HttpToolsProtocol):
    """uvicorn's protocol with limits on what has not arrived yet. One timer runs while a head or body is awaited."""

    unfinished: ClassVar[Unfinished]

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.limits = self.unfinished.limits
        self._stage = "head"  # what is awaited: "head", "body" or, between two requests, nothing
        self._is_open = False  # whether a message has begun and is not complete
        self._num_begun = 0  # messages and bodies that began in the present piece
        self._num_fed = self._num_body = (
            0  # bytes of this head, or of this body with its chunk sizes and without
        )
        self._num_body_before = 0  # bytes of the body before the present period
        self._was_paused = False  # whether this server did not read in the present period
        self._is_refused = False
        self._since = 0.0
        self._timer: asyncio.TimerHandle | None = None

    # What the transport calls

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._await()

    def connection_lost(self, exc: Exception | None) -> None:
        self._finish()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        while data and not (self._is_refused or self.transport.is_closing()):
            room = self.limits.head_bytes - (self._num_fed if self._stage == "head" else 0)
            self._take(data[:room])
            data = data[room:]

    # What the parser calls

    def on_message_begin(self) -> None:
        self._stage, self._is_open = "head", True
        self._num_begun += 1
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._stage = "body"
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._num_body += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._stage, self._is_open = "", False
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._finish()
        super().send_400_response(msg)

    # Limits

    def _take(self, piece: bytes) -> None:
        """Parse a piece, then hold what is awaited now to its limits."""
        stage, was_open, self._num_begun, before = self._stage, self._is_open, 0, self._num_body
        super().data_received(piece)
        if self.transport.is_closing():
            return
        if not self._stage and self.cycle.response_complete:
            self._stage = "head"  # bytes between two requests, such as line ends
        if self._stage == stage and not self._num_begun:
            self._num_fed += len(piece)
        else:  # of a piece that another message ends in, where it ends is not known
            is_whole = self._stage == "head" and self._num_begun == 1 and not was_open
            self._num_fed = len(piece) if is_whole else 0
            self._num_body, self._num_body_before, self._was_paused = self._num_body - before, 0, False
        self._was_paused |= self.flow.read_paused
        self._check_length()
        if not self._stage:
            self._finish()
        elif (self._stage != stage or self._num_begun or self._timer is None) and not self._is_refused:
            self._await()

    def _check_length(self) -> None:
        most = self.limits.head_bytes
        if self._stage == "head" and self._num_fed >= most:
            self._refuse(431, "HeadTooLarge", f"The head of this request is longer than {most} bytes.")
        elif self._stage == "body" and self._num_fed > most + (1 + _CHUNK_OVERHEAD) * self._num_body:
            self._refuse(
                431, "HeadTooLarge", f"The chunk extensions and trailers are longer than {most} bytes."
            )

    def _await(self) -> None:
        """Begin the time that a head or a period of a body has."""
        if self._timer is not None:
            self._timer.cancel()
        self._since = self.loop.time()
        seconds = self.limits.head_seconds if self._stage == "head" else self.limits.body_seconds
        self._timer = self.loop.call_later(seconds, self._expire)
        self.unfinished.add(self)

    def _finish(self) -> None:
        """End the wait: nothing is unfinished here."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.unfinished.connections.pop(self, None)

    def _expire(self) -> None:
        if self._stage == "body":
            self._end_period()
        elif self.cycle is not None and not self.cycle.response_complete:
            self._await()  # it waits for an answer, so its next request has time
        elif self._num_fed or self._is_open:
            seconds = f"{self.limits.head_seconds:g} s"
            self._refuse(408, "RequestTooSlow", f"The head of this request was not complete after {seconds}.")
        else:  # no request was begun, so that nobody waits for an answer
            self.transport.close()

    def _end_period(self) -> None:
        """Refuse a body that brought too little, unless it was this server that did not read it."""
        fewest, seconds = self.limits.body_bytes, self.limits.body_seconds
        came = self._num_body - self._num_body_before
        is_read = not (self._was_paused or self.flow.read_paused)
        if self.cycle.response_complete or (is_read and came < fewest):
            cause = f"The body of this request brought less than {fewest} bytes in {seconds:g} s."
            self._refuse(408, "RequestTooSlow", cause)
            return
        self._num_body_before, self._was_paused = self._num_body, False
        self._await()

    def evict(self) -> None:
        """Close this connection in favour of a newer one."""
        most = self.limits.most
        cause = f"This server waits for {most} incomplete requests at most, and this one was the oldest."
        self._refuse(503, "TooManyUnfinished", cause)
        self.transport.close()
        self._finish()

    def _refuse(self, status: int, name: str, cause: str) -> None:
        """Answer where that is possible, and close the connection."""
        if self._is_refused or self.transport.is_closing():
            return
        seconds = self.loop.time() - self._since
        self._is_refused, can_answer = True, self._can_answer()
        self._stop()
        self.unfinished.report(status, seconds)
        _log.info(
            "an incomplete request was refused", extra={"status": status, "cause": name, "ms": 1000 * seconds}
        )
        if not can_answer:
            self.transport.close()
            return
        self.transport.write(
            _refusal(Problem(f"urn:colmlm:{name}", "Incomplete request", status, f"{cause} {_HELP}"))
        )
        # A close would discard what has arrived unread, and the client's system then discards the answer, too.
        self.transport.write_eof()
        self._timer = self.loop.call_later(self.limits.linger_seconds, self.transport.abort)

    def _stop(self) -> None:
        """Stop the timer, and let what runs for this client end and write nothing."""
        if self._timer is not None:
            self._timer.cancel()
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected, self.cycle.waiting_for_100_continue = True, False
            self.cycle.message_event.set()

    def _can_answer(self) -> bool:
        """Say whether no answer to this request, or to one before it, has begun."""
        if self.cycle is None or (self._stage == "head" and self.cycle.response_complete):
            return True
        return self._stage == "body" and not self.pipeline and not self.cycle.response_started


_HELP = "Nothing was done. Send the whole request again, on another connection."


def _refusal(problem: Problem) -> bytes:
    body = msgspec.json.encode(problem)
    head = (
        STATUS_LINE[problem.status],
        b"content-type: " + _MEDIA_TYPE + b"\r\n",
        b"content-length: %d\r\n" % len(body),
        b"cache-control: no-store\r\nconnection: close\r\n\r\n",
    )
    return b"".join((*head, body))
