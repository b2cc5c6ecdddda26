"""Hostile connections: requests that never end, that come slowly, or that are many, each without a valid token."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress

from colmlm.api.middleware.connections import ArrivalLimits
from colmlm.api.middleware.limiters import SIZES, Limiter
from tests.acceptance.hostile.cases import Case, expect
from tests.acceptance.hostile.world import RAW_SECONDS, World, Wrong

GROUP = "connections"
LIMITS = ArrivalLimits()
TOO_MUCH = 40_000_000  # bytes of a head
MOST_MB = 100  # of the server's memory, for heads that are refused; whole, four of them took 400
PATIENCE_SECONDS = 90.0
_START = b"GET /v1/corpora HTTP/1.1\r\nHost: 127.0.0.1\r\n"
_POST = b"POST /v1/facts HTTP/1.1\r\nHost: 127.0.0.1\r\n"
_CHUNKED = _POST + b"Transfer-Encoding: chunked\r\n\r\n"
_ENDLESS = {
    "one header": (_START + b"X-A: ", b"a" * 65_536),
    "many headers": (_START, b"X-A: b\r\n" * 8192),
    "the name of a header": (_START, b"a" * 65_536),
    "the start line": (b"GET /", b"a" * 65_536),
    "the method": (b"", b"A" * 65_536),
    "trailers": (_CHUNKED + b"0\r\n", b"X-A: b\r\n" * 8192),
    "a chunk extension": (_CHUNKED + b"1;", b"a" * 65_536),
}
_UNFINISHED = {
    "a head that is not finished": (_START, b"", 408),
    "a slow head": (_START, b"X-A: b\r\n", 408),
    "a slow line": (_START + b"X-A: ", b"a", 408),
    "nothing": (b"", b"", None),
    "line ends": (b"", b"\r\n", 408),
    "a body that is not finished": (_CHUNKED, b"", 401),
    "a slow body": (_POST + b"Content-Length: 100000\r\n\r\n", b"x", 401),
}


def cases() -> Iterator[Case]:
    for name, (start, block) in _ENDLESS.items():
        yield Case(GROUP, f"endless: {name}", _endless(start, block))
    for name, (start, drop, status) in _UNFINISHED.items():
        yield Case(GROUP, f"unfinished: {name}", _unfinished(start, drop, status))
    yield Case(GROUP, "unfinished: a body with a token", _body_with_token)
    yield Case(GROUP, "many half-open", _half_open)
    yield Case(GROUP, "queued: requests whose answers nobody reads", _queued)
    yield Case(GROUP, "all streams for one token", _streams)


def _endless(start: bytes, block: bytes) -> Callable[[World], str]:
    """Make an attack of four clients that send one head without an end, beside one that asks for /healthz."""

    def attack(world: World) -> str:
        before, told = world.memory_mb(), list[bytes]()
        clients = [threading.Thread(target=_send, args=(world, start, block, told)) for _ in range(4)]
        for client in clients:
            client.start()
        worst = _while(world, lambda: any(client.is_alive() for client in clients))
        for client in clients:
            client.join()
        statuses = Counter(got[9:12].decode() for got in told)
        expect(
            set(statuses) <= {"400", "401", "431"} and len(told) == 4, f"were answered with {dict(statuses)}"
        )
        grown = world.memory_mb() - before
        expect(grown < MOST_MB, f"the server took {grown} MB more")
        return f"{dict(statuses)}, /healthz after {worst:.2f} s at most, {grown} MB"

    return attack


def _send(world: World, start: bytes, block: bytes, told: list[bytes]) -> None:
    with socket.create_connection(world.address, timeout=PATIENCE_SECONDS) as connection:
        try:
            connection.sendall(start)
            for _ in range(TOO_MUCH // len(block)):
                connection.sendall(block)
        except ConnectionError:
            pass  # it is read what was answered before
        try:
            told.append(connection.recv(1 << 16))
        except ConnectionError:
            told.append(b"HTTP/1.1 431 ")  # reset after the answer


def _while(world: World, goes_on: Callable[[], bool]) -> float:
    """Ask for /healthz until something ends, and give the longest time that an answer took."""
    worst, until = 0.0, time.monotonic() + PATIENCE_SECONDS
    while goes_on():
        expect(time.monotonic() < until, "it does not end")
        began = time.monotonic()
        expect(world.ask("GET", "/healthz").status == 200, "/healthz fails")
        worst = max(worst, time.monotonic() - began)
        time.sleep(0.05)
    return worst


def _unfinished(start: bytes, drop: bytes, status: int | None) -> Callable[[World], str]:
    """Make an attack of twenty clients that send a byte now and then, until the server has closed them all."""

    def attack(world: World) -> str:
        with ExitStack() as stack:
            clients = [_Slow(stack.enter_context(_connected(world)), start) for _ in range(20)]
            worst = _while(world, lambda: _num_open(clients, drop) > 0)
        statuses = Counter(client.got[9:12].decode() for client in clients if client.got)
        expect(set(statuses) <= {str(status)}, f"were answered with {dict(statuses)}")
        return f"{dict(statuses)}, /healthz after {worst:.2f} s at most"

    return attack


def _connected(world: World) -> socket.socket:
    return socket.create_connection(world.address, timeout=PATIENCE_SECONDS)


class _Slow:
    """A client that sends something each time it is asked, until its connection is closed."""

    def __init__(self, connection: socket.socket, start: bytes) -> None:
        self.got, self._connection, self._is_open = b"", connection, True
        connection.sendall(start)
        connection.setblocking(False)

    def goes_on(self, drop: bytes) -> bool:
        try:
            if self._is_open and drop:
                self._connection.send(drop)
            while self._is_open and (block := self._connection.recv(1 << 16)):
                self.got += block
            self._is_open = False
        except BlockingIOError:
            pass
        except ConnectionError:
            self._is_open = False
        return self._is_open


def _num_open(clients: list[_Slow], drop: bytes = b"") -> int:
    return sum(client.goes_on(drop) for client in clients)


def _body_with_token(world: World) -> str:
    """Send a body slowly with a valid token, which nobody has answered yet when its time is over."""
    token = b"Authorization: Bearer " + world.tokens["admin"].encode()
    kind = b"\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n"
    return _unfinished(_POST + token + kind, b" ", 408)(world)


def _half_open(world: World) -> str:
    """Open more connections than the server waits for: the oldest go, and each newcomer is answered."""
    many = LIMITS.most + 200
    with ExitStack() as stack:
        clients = []
        for number in range(many):
            clients.append(_Slow(stack.enter_context(_connected(world)), _START))
            if number % 100 == 0:
                expect(
                    world.ask("GET", "/v1/corpora").status == 200, f"{number} half-open ones keep others out"
                )
        worst = _while(world, lambda: _num_open(clients) > 0)
    statuses = Counter(client.got[9:12].decode() for client in clients)
    expect(set(statuses) == {"408", "503"}, f"were answered with {dict(statuses)}")
    return f"{dict(statuses)}, /healthz after {worst:.2f} s at most"


def _queued(world: World) -> str:
    """Send a megabyte of short requests on each of twenty connections, and read no answer."""
    before, requests = world.memory_mb(), b"GET / HTTP/1.1\r\n\r\n" * 60_000
    with ExitStack() as stack:
        clients = [stack.enter_context(_connected(world)) for _ in range(20)]
        senders = [threading.Thread(target=_push, args=(client, requests)) for client in clients]
        for sender in senders:
            sender.start()
        worst = _while(world, lambda: any(sender.is_alive() for sender in senders))
        grown = world.memory_mb() - before
    expect(grown < MOST_MB, f"the server took {grown} MB more")
    return f"/healthz after {worst:.2f} s at most, {grown} MB"


def _push(client: socket.socket, block: bytes) -> None:
    """Send what the server takes within a few seconds."""
    client.settimeout(RAW_SECONDS)
    with suppress(OSError):
        client.sendall(block)


def _streams(world: World) -> str:
    """Take every stream that one token may have, and ask with another."""
    share = SIZES[Limiter.feeds].slots_of_one or 0
    with ExitStack() as stack:
        statuses = [_stream(world, stack, "operator") for _ in range(SIZES[Limiter.feeds].slots)]
        expect(statuses.count(200) == share and set(statuses) == {200, 429}, f"{Counter(statuses)}")
        expect(_stream(world, stack, "admin") == 200, "another token gets no stream")
    return f"{share} of {len(statuses)}, and one for another token"


def _stream(world: World, stack: ExitStack, role: str) -> int:
    connection = http.client.HTTPConnection(*world.address, timeout=PATIENCE_SECONDS)
    stack.callback(connection.close)
    connection.request("GET", "/v1/changes/events", headers={"Authorization": f"Bearer {world.tokens[role]}"})
    answer = connection.getresponse()
    stack.callback(answer.close)
    if answer.status not in (200, 429):
        raise Wrong(f"{answer.status} for a stream")
    return answer.status
