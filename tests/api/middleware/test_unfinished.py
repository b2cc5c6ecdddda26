"""A request that is not complete holds few bytes and seconds, whoever sends it, and keeps no other from its answer."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import psutil
import pytest

from colmlm.api.middleware.connections import ArrivalLimits
from tests.api.serving import served

PATIENCE_SECONDS = 30.0
LONG = 3600.0
HOLDS = b"X-Secret: "
START = b"GET / HTTP/1.1\r\nHost: here\r\n"
WHOLE = START + b"\r\n"
POST = b"POST / HTTP/1.1\r\nHost: here\r\n"
LONG_GET = b"GET /long HTTP/1.1\r\nHost: here\r\n"
ANSWERS = {"/early": b"0", "/long": b"y" * 50_000_000}
SMALL = ArrivalLimits(
    head_seconds=0.3, body_seconds=0.3, linger_seconds=0.3, most=4, queued=4, answer_seconds=0.3
)
UNHURRIED = ArrivalLimits(head_seconds=LONG, body_seconds=LONG, most=4)


class Counting:
    """An application that reads a body and answers with its length.

    It reads that of `/later` late and that of `/early` not at all, and its answer to `/long` is long.
    """

    def __init__(self) -> None:
        self.left: list[int] = []
        self.go_on = threading.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] in ANSWERS:
            await self._answer(send, ANSWERS[scope["path"]])
            return
        size, message = 0, await self._first(scope, receive)
        while message["type"] == "http.request":
            size += len(message["body"])
            if not message["more_body"]:
                break
            message = await receive()
        else:
            self.left.append(size)
            return
        await self._answer(send, str(size).encode())

    async def _answer(self, send: Any, body: bytes) -> None:
        length = (b"content-length", b"%d" % len(body))
        await send({"type": "http.response.start", "status": 200, "headers": [length]})
        await send({"type": "http.response.body", "body": body})

    async def _first(self, scope: Any, receive: Any) -> Any:
        if scope["path"] == "/later":
            while not self.go_on.is_set():
                await asyncio.sleep(0.01)
        return await receive()


@contextmanager
def connected(address: str) -> Iterator[socket.socket]:
    port = int(address.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS) as connection:
        yield connection


def to_the_end(connection: socket.socket) -> bytes:
    got = b""
    while block := connection.recv(1 << 16):
        got += block
    return got


def statuses(got: bytes) -> list[int]:
    return [int(part[:3]) for part in got.split(b"HTTP/1.1 ")[1:]]


def answer(connection: socket.socket, body: bytes = b"0") -> None:
    """Read one answer of the application, to its end."""
    got = b""
    while not got.endswith(b"\r\n\r\n" + body):
        block = connection.recv(1 << 16)
        assert block, got
        got += block
    assert statuses(got) == [200]


ENDLESS = {
    "one header": b"X-A: " + b"a" * 400_000,
    "many headers": b"X-A: b\r\n" * 50_000,
    "one name": b"a" * 400_000,
    "a little too long": b"X-A: " + b"a" * 70_000 + b"\r\n\r\n",
    "trailers": b"Transfer-Encoding: chunked\r\n\r\n0\r\n" + b"X-A: b\r\n" * 50_000,
    "one trailer": b"Transfer-Encoding: chunked\r\n\r\n0\r\nX-A: " + b"a" * 400_000,
    "a chunk extension": b"Transfer-Encoding: chunked\r\n\r\n1;" + b"a" * 400_000,
}


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("name", ENDLESS)
def test_a_head_that_is_too_long_is_refused_and_nobody_is_asked_to_read_it(name: str, again: bool) -> None:
    reported: list[int] = []
    app = Counting()
    with (
        served(app, limits=UNHURRIED, report=lambda status, _: reported.append(status)) as address,
        connected(address) as connection,
    ):
        if again:
            connection.sendall(WHOLE)
            answer(connection)
        connection.sendall(POST + ENDLESS[name])
        got = to_the_end(connection)
    assert statuses(got) == reported == [431]
    problem = json.loads(got.partition(b"\r\n\r\n")[2])
    assert problem["type"] == "urn:colmlm:HeadTooLarge" and "Nothing was changed" in problem["detail"]


def test_an_endless_start_line_is_refused() -> None:
    with served(Counting(), limits=UNHURRIED) as address, connected(address) as connection:
        connection.sendall(b"GET /" + b"a" * 400_000)
        assert statuses(to_the_end(connection)) == [431]


def test_what_is_just_short_enough_is_answered() -> None:
    body = b"y" * 1_000_000
    with served(Counting(), limits=UNHURRIED) as address, connected(address) as connection:
        connection.sendall(
            POST + b"X-A: " + b"a" * 60_000 + b"\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        )
        answer(connection, b"1000000")
        chunks = b"1\r\nz\r\n" * 100_000
        connection.sendall(POST + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\nX-Sum: 1\r\n\r\n")
        answer(connection, b"100000")
        connection.sendall(WHOLE * UNHURRIED.queued + START + b"Connection: close\r\n\r\n")
        assert statuses(to_the_end(connection)) == [200] * (UNHURRIED.queued + 1)


@pytest.mark.parametrize("rest", [b"", POST + b"Content-Length: 3\r\n\r\nabc", b"no request\r\n\r\n"])
def test_requests_that_nobody_reads_the_answers_of_are_queued_up_to_a_number(rest: bytes) -> None:
    app = Counting()
    with served(app, limits=UNHURRIED) as address, connected(address) as connection:
        later = b"GET /later HTTP/1.1\r\nHost: here\r\n\r\n"
        connection.sendall(later * (1 + UNHURRIED.queued) + rest + later * 100)
        app.go_on.set()
        got = to_the_end(connection)
    assert statuses(got) == [200] * (1 + UNHURRIED.queued)
    assert got.count(b"\r\n\r\n0") == len(statuses(got)) and got.count(b"connection: close") == 1


def is_held(connection: socket.socket) -> bool:
    """Say whether the server, which is in this process, still has its end of a connection."""
    return any(end.raddr == connection.getsockname() for end in psutil.Process().net_connections("tcp"))


UNREAD = {
    "kept alive": LONG_GET + b"\r\n",
    "to be closed": LONG_GET + b"Connection: close\r\n\r\n",
    "another answer waits": (LONG_GET + b"\r\n") * 2,
    "too many": (LONG_GET + b"\r\n") * 50,
    "an unfinished head": LONG_GET + b"\r\n" + START,
    "no request": LONG_GET + b"\r\n" + b"no request\r\n\r\n",
}


@pytest.mark.parametrize("name", UNREAD)
def test_a_client_that_does_not_read_is_not_held(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with served(Counting(), limits=SMALL) as address, connected(address) as connection:
        connection.sendall(UNREAD[name])
        assert connection.recv(1) == b"H"
        until = time.monotonic() + PATIENCE_SECONDS
        while is_held(connection):
            assert time.monotonic() < until, "the connection is held"
            time.sleep(0.05)
    assert "Exception" not in capsys.readouterr().err


def test_a_client_that_reads_slowly_gets_the_whole_answer() -> None:
    limits = ArrivalLimits(answer_seconds=1.0)
    with served(Counting(), limits=limits) as address, connected(address) as connection:
        connection.sendall(LONG_GET + b"Connection: close\r\n\r\n")
        got = 0
        while block := connection.recv(2_500_000):
            got += len(block)
            time.sleep(0.05)
    assert got > len(ANSWERS["/long"])


def test_a_head_that_does_not_end_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "colmlm.api")
    with served(Counting(), limits=SMALL) as address, connected(address) as connection:
        connection.sendall(START + HOLDS + b"colmlm")
        got = to_the_end(connection)
    assert statuses(got) == [408] and b"connection: close" in got
    (record,) = [one for one in caplog.records if one.name == "colmlm.api.middleware.connections"]
    assert (record.__dict__["status"], record.__dict__["cause"]) == (408, "RequestTooSlow")
    assert "Secret" not in str(record.__dict__)


@pytest.mark.parametrize("sent", [b"", b"\r\n"])
def test_a_connection_without_a_request_is_closed_without_an_answer(sent: bytes) -> None:
    with served(Counting(), limits=SMALL) as address, connected(address) as connection:
        connection.sendall(sent)
        assert statuses(to_the_end(connection)) in ([], [408])  # a line end may begin a request
    with served(Counting(), limits=SMALL) as address, connected(address) as connection:
        connection.sendall(WHOLE)
        answer(connection)
        connection.sendall(sent or b"\r\n")
        assert to_the_end(connection) == b""


def test_a_second_head_that_does_not_end_is_refused() -> None:
    with served(Counting(), limits=SMALL) as address, connected(address) as connection:
        connection.sendall(WHOLE + b"GET")
        assert statuses(to_the_end(connection)) == [200, 408]


def test_a_body_that_does_not_come_is_refused_and_the_application_is_told() -> None:
    app = Counting()
    with served(app, limits=SMALL) as address, connected(address) as connection:
        connection.sendall(POST + b"Content-Length: 100\r\n\r\nabc")
        assert statuses(to_the_end(connection)) == [408]
    assert app.left == [3]


def test_a_body_that_comes_fast_enough_is_read_to_its_end() -> None:
    limits = ArrivalLimits(body_seconds=0.3, body_bytes=100)
    with served(Counting(), limits=limits) as address, connected(address) as connection:
        connection.sendall(POST + b"Content-Length: 20000\r\n\r\n")
        for _ in range(20):
            connection.sendall(b"y" * 1000)
            time.sleep(0.05)
        answer(connection, b"20000")


def test_a_body_that_the_server_does_not_read_yet_is_not_too_slow() -> None:
    app, body = Counting(), b"y" * 30_000_000
    with served(app, limits=SMALL) as address, connected(address) as connection:
        head = b"POST /later HTTP/1.1\r\nHost: here\r\nContent-Length: %d\r\n\r\n" % len(body)
        sending = threading.Thread(target=connection.sendall, args=(head + body,))
        sending.start()
        time.sleep(4 * SMALL.body_seconds)
        app.go_on.set()
        answer(connection, b"30000000")
        sending.join()


def test_a_body_that_the_server_does_not_ask_for_yet_is_not_too_slow() -> None:
    app = Counting()
    with served(app, limits=SMALL) as address, connected(address) as connection:
        head = b"POST /later HTTP/1.1\r\nHost: here\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n"
        connection.sendall(head)
        time.sleep(4 * SMALL.body_seconds)
        app.go_on.set()
        assert connection.recv(1 << 16) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(b"abc")
        answer(connection, b"3")


CROWD = {
    "nothing": b"",
    "heads": START,
    "bodies of answered requests": b"POST /early HTTP/1.1\r\nHost: here\r\nContent-Length: 100\r\n\r\n",
}


@pytest.mark.parametrize("name", CROWD)
def test_a_body_that_comes_outlasts_a_crowd_that_brings_none(name: str) -> None:
    with served(Counting(), limits=UNHURRIED) as address, connected(address) as upload, ExitStack() as crowd:
        upload.sendall(POST + b"Content-Length: 6\r\n\r\nabc")
        for _ in range(3 * UNHURRIED.most):
            idle = crowd.enter_context(connected(address))
            idle.sendall(CROWD[name])
            if b"POST" in CROWD[name]:
                answer(idle)
            with connected(address) as newcomer:
                newcomer.sendall(WHOLE)
                answer(newcomer)
        upload.sendall(b"def")
        answer(upload, b"6")


def test_the_oldest_of_too_many_is_closed_and_the_next_is_answered() -> None:
    with served(Counting(), limits=UNHURRIED) as address:
        waiting = []
        for _ in range(UNHURRIED.most):
            connection = socket.create_connection(
                ("127.0.0.1", int(address.rpartition(":")[2])), PATIENCE_SECONDS
            )
            connection.sendall(START)
            waiting.append(connection)
        with connected(address) as connection:
            connection.sendall(WHOLE)
            answer(connection)
        assert statuses(to_the_end(waiting[0])) == [503]
        waiting[-1].sendall(b"\r\n")
        answer(waiting[-1])
        for connection in waiting:
            connection.close()
