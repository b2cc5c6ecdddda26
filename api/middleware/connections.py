"""Connections: limits those whose requests are incomplete, and drains a server without breaking off requests."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, ClassVar

import msgspec
import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from colmlm.api.wire import Problem

_log = logging.getLogger(__name__)


class Drain:
    """The state of a shutdown: whether it has begun, and how many requests still run.

    A server that `hands_over` to the process that takes its place refuses nothing: it answers what comes on the
    connections that are open, asks to close them, and ends without them.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.num_running = 0
        self.hands_over = False
        self._until: float | None = None
        self._awaiting: set[asyncio.Event] = set()

    @property
    def has_begun(self) -> bool:
        """Tell whether new requests are refused."""
        return self._until is not None and not self.hands_over

    def begin(self, *, hands_over: bool = False) -> None:
        self._until, self.hands_over = time.monotonic() + self.seconds, hands_over
        for begun in self._awaiting:
            begun.set()
        _log.info("draining", extra={"requests_running": self.num_running, "seconds": self.seconds})

    async def begins_within(self, seconds: float) -> bool:
        """Wait up to `seconds` for the shutdown to begin, and tell whether it has begun."""
        if self._until is not None or seconds <= 0:
            return self._until is not None
        begun = asyncio.Event()
        self._awaiting.add(begun)
        try:
            with suppress(TimeoutError):
                await asyncio.wait_for(begun.wait(), seconds)
        finally:
            self._awaiting.discard(begun)
        return self._until is not None

    def is_over(self, num_connections: int = 0) -> bool:
        """Tell whether to stop now: nothing is left to answer, or the drain's time is up."""
        if self._until is None:
            return False
        left = self.num_running + (num_connections if self.hands_over else 0)
        return left == 0 or time.monotonic() >= self._until


class DrainingServer(uvicorn.Server):
    """A uvicorn server that drains first and closes its socket last. A second signal ends it at once.

    `on_up` is called when it answers. By SIGHUP it leaves its socket to another process that has it, too.
    """

    def __init__(
        self, config: uvicorn.Config, drain: Drain, on_up: Callable[[], object] | None = None
    ) -> None:
        super().__init__(config)
        self.drain, self.on_up = drain, on_up

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.drain.has_begun:
            self.should_exit = self.force_exit = True
        else:
            self.drain.begin()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.on_up is not None and self.started:
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._hand_over)
            self.on_up()

    def _hand_over(self) -> None:
        if not self.drain.has_begun:
            self.drain.begin(hands_over=True)
            for listening in self.servers:
                listening.close()

    async def on_tick(self, counter: int) -> bool:
        return await super().on_tick(counter) or self.drain.is_over(len(self.server_state.connections))


# Limits what an incomplete request may hold: bytes and seconds of its head, seconds of its body, connections.

Report = Callable[[int, float], object]  # is told the status of a refusal, and after how many seconds it came

_MEDIA_TYPE = b"application/problem+json"
# What chunks may add to a body, in bytes for each of its bytes: a chunk of one byte has six bytes around it.
_CHUNK_OVERHEAD = 8

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivalLimits:
    """Limits on requests that are not complete, and on answers that are not read.

    A body has to bring `body_bytes` in each `body_seconds`, or its end. Beyond `most` connections with an incomplete
    request one is closed: the oldest whose body nobody waits for, else the oldest. A client that was refused has
    `linger_seconds` to read why. What it goes on sending is thrown away, as are the requests that follow `queued` ones
    which wait for an answer before theirs. An answer of which nothing is read for `answer_seconds` is broken off.
    """

    head_bytes: int = 64 * 1024
    head_seconds: float = 10.0
    body_bytes: int = 10 * 1024
    body_seconds: float = 20.0
    linger_seconds: float = 2.0
    most: int = 512
    queued: int = 16
    answer_seconds: float = 60.0


@dataclass(frozen=True, slots=True)
class UnfinishedRequests:
    """The connections of one server whose request is not complete, with their limits.

    The first is the one that has waited longest since it began a head or a body, or since it last sent enough in time.
    """

    limits: ArrivalLimits
    report: Report
    connections: dict[LimitedProtocol, None] = field(default_factory=dict)

    def add(self, connection: LimitedProtocol) -> None:
        """Add a connection as the newest, and close one of the others where there are too many."""
        self.connections.pop(connection, None)
        self.connections[connection] = None
        if len(self.connections) > self.limits.most:
            others = list(self.connections)[:-1]
            next((other for other in others if not other.brings_body()), others[0]).evict()


def limited_protocol(
    limits: ArrivalLimits | None = None, report: Report = lambda *_: None
) -> type[asyncio.Protocol]:
    """Make the protocol class of one server, whose connections share the limit on their number."""

    class OfOneServer(LimitedProtocol):
        unfinished = UnfinishedRequests(limits or ArrivalLimits(), report)

    return OfOneServer


class LimitedProtocol(HttpToolsProtocol):
    """uvicorn's protocol with limits on what has not arrived yet. One timer runs while a head or body is awaited."""

    unfinished: ClassVar[UnfinishedRequests]

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
        self._answered: RequestResponseCycle | None = None  # the request that runs; `cycle` is the newest
        self._reading: asyncio.TimerHandle | None = None  # runs while the client has an answer to read

    # What the transport calls

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._begin_wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_wait()
        self._mark_disconnected()
        super().connection_lost(exc)
        self._stop_watching()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.transport.is_closing():
            self._stop_watching()

    def data_received(self, data: bytes) -> None:
        while data and not (self._is_refused or self.transport.is_closing()):
            room = self.limits.head_bytes - (self._num_fed if self._stage == "head" else 0)
            self._parse_piece(data[:room])
            data = data[room:]

    # What the parser calls

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= self.limits.queued:
            self._end_queue()
        if self._is_refused:
            return
        self._stage, self._is_open = "head", True
        self._num_begun += 1
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        if not self._is_refused:
            self._stage = "body"
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if not self._is_refused:
            self._num_body += len(body)
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._is_refused:
            self._stage, self._is_open = "", False
            super().on_message_complete()

    # What uvicorn calls

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answered = cycle
        super()._start_asgi_task(cycle, app)

    def send_400_response(self, msg: str) -> None:
        self._end_wait()
        if not self._is_refused:
            super().send_400_response(msg)
            self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            self._watch()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._watch()

    # Limits

    def _parse_piece(self, piece: bytes) -> None:
        """Parse a received piece, then apply the limits to the head or body that is awaited now."""
        stage, was_open, self._num_begun, before = self._stage, self._is_open, 0, self._num_body
        super().data_received(piece)
        if self._is_refused or self.transport.is_closing():
            return
        if not self._stage and self.cycle.response_complete:
            self._stage = "head"  # bytes between two requests, such as line ends
        if self._stage == stage and not self._num_begun:
            self._num_fed += len(piece)
        else:  # of a piece that another message ends in, where it ends is not known
            is_whole = self._stage == "head" and self._num_begun == 1 and not was_open
            self._num_fed = len(piece) if is_whole else 0
            self._num_body, self._num_body_before, self._was_paused = self._num_body - before, 0, False
        self._was_paused |= self._is_paused()
        self._check_length()
        if not self._stage:
            self._end_wait()
        elif (self._stage != stage or self._num_begun or self._timer is None) and not self._is_refused:
            self._begin_wait()

    def _check_length(self) -> None:
        most = self.limits.head_bytes
        if self._stage == "head" and self._num_fed >= most:
            self._refuse(431, "HeadTooLarge", f"The head of this request is longer than {most} bytes.")
        elif self._stage == "body" and self._num_fed > most + (1 + _CHUNK_OVERHEAD) * self._num_body:
            self._refuse(
                431, "HeadTooLarge", f"The chunk extensions and trailers are longer than {most} bytes."
            )

    def _begin_wait(self) -> None:
        """Start the timer of the head or of the body's next period, and add this connection to the unfinished ones."""
        if self._timer is not None:
            self._timer.cancel()
        self._since = self.loop.time()
        seconds = self.limits.head_seconds if self._stage == "head" else self.limits.body_seconds
        self._timer = self.loop.call_later(seconds, self._expire)
        self.unfinished.add(self)

    def _end_wait(self) -> None:
        """Stop the timer, and remove this connection from the unfinished ones."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.unfinished.connections.pop(self, None)

    def _expire(self) -> None:
        if self._stage == "body":
            self._end_period()
        elif self.cycle is not None and not self.cycle.response_complete:
            self._begin_wait()  # it waits for an answer, so its next request has time
        elif self._num_fed or self._is_open:
            seconds = f"{self.limits.head_seconds:g} s"
            self._refuse(408, "RequestTooSlow", f"The head of this request was not complete after {seconds}.")
        else:  # no request was begun, so that nobody waits for an answer
            self._end_wait()
            self.transport.close()
            self._watch()

    def _end_period(self) -> None:
        """Refuse a body that brought too little, unless it was this server that did not read it."""
        fewest, seconds = self.limits.body_bytes, self.limits.body_seconds
        came = self._num_body - self._num_body_before
        is_paused = self._is_paused()
        is_read = not (self._was_paused or is_paused)
        if self.cycle.response_complete or (is_read and came < fewest):
            cause = f"The body of this request brought less than {fewest} bytes in {seconds:g} s."
            self._refuse(408, "RequestTooSlow", cause)
            return
        self._num_body_before, self._was_paused = self._num_body, is_paused
        self._begin_wait()

    def _is_paused(self) -> bool:
        """Say whether the client has to wait for this server before it sends more of a body."""
        return self.flow.read_paused or (self._stage == "body" and self.cycle.waiting_for_100_continue)

    def _end_queue(self) -> None:
        """Answer the requests that are queued, and none behind them."""
        self._is_refused, self.cycle.keep_alive = True, False
        self._end_wait()

    def _watch(self, before: int | None = None) -> None:
        """Abort the connection if the client reads nothing of an answer for `answer_seconds`."""
        self._stop_watching()
        if self not in self.connections:  # it is lost
            return
        left = self.transport.get_write_buffer_size()
        if left == before:
            self.transport.abort()
        else:
            self._reading = self.loop.call_later(self.limits.answer_seconds, self._watch, left)

    def _stop_watching(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def brings_body(self) -> bool:
        """Tell whether the connection awaits a body whose request has not been answered in full."""
        return self._stage == "body" and not self._is_refused and not self.cycle.response_complete

    def evict(self) -> None:
        """Close this connection in favour of a newer one."""
        most = self.limits.most
        cause = f"This server waits for {most} incomplete requests at most, and this one had to go."
        self._refuse(503, "TooManyUnfinished", cause)
        self.transport.close()
        self.unfinished.connections.pop(self, None)

    def _refuse(self, status: int, name: str, cause: str) -> None:
        """Answer with a problem document if no answer has begun, and close the connection."""
        if self._is_refused or self.transport.is_closing():
            return
        seconds = self.loop.time() - self._since
        self._is_refused, can_answer = True, self._can_answer()
        self._stop()
        self.unfinished.report(status, seconds)
        _log.info(
            "an incomplete request was refused", extra={"status": status, "cause": name, "ms": 1000 * seconds}
        )
        self._timer = self.loop.call_later(self.limits.linger_seconds, self.transport.abort)
        if not can_answer:
            self.transport.close()
            return
        self.transport.write(
            _refusal(Problem(f"urn:colmlm:{name}", "Incomplete request", status, f"{cause} {_HELP}"))
        )
        # A close would discard what has arrived unread, and the client's system then discards the answer, too.
        self.transport.write_eof()

    def _stop(self) -> None:
        """Stop the timer of a client that left. Its request ends by itself, and its response is not written."""
        if self._timer is not None:
            self._timer.cancel()
        self._mark_disconnected()

    def _mark_disconnected(self) -> None:
        """Tell the request that runs, and the newest, that the client is gone, so that neither writes."""
        for cycle in (self._answered, self.cycle):
            if cycle is not None and not cycle.response_complete:
                cycle.disconnected, cycle.waiting_for_100_continue = True, False
                cycle.message_event.set()

    def _can_answer(self) -> bool:
        """Say whether no answer to this request, or to one before it, has begun."""
        if self.cycle is None or (self._stage == "head" and self.cycle.response_complete):
            return True
        return self._stage == "body" and not self.pipeline and not self.cycle.response_started


_HELP = "Nothing was changed. Send the whole request again, on another connection."


def _refusal(problem: Problem) -> bytes:
    body = msgspec.json.encode(problem)
    head = (
        STATUS_LINE[problem.status],
        b"content-type: " + _MEDIA_TYPE + b"\r\n",
        b"content-length: %d\r\n" % len(body),
        b"cache-control: no-store\r\nconnection: close\r\n\r\n",
    )
    return b"".join((*head, body))
