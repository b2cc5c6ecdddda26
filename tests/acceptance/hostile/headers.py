"""Hostile request headers, written to the socket byte by byte."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tests.acceptance.hostile.cases import Case, expect
from tests.acceptance.hostile.world import World

GROUP = "headers"
REFUSED = range(400, 500)

_HOSTS = {
    "foreign": b"evil.example",
    "suffix": b"localhost.evil.example",
    "user": b"x@localhost",
    "user and password": b"localhost:x@evil.example",
    "port of letters": b"localhost:abc",
    "port too large": b"localhost:99999",
    "open bracket": b"[::1",
    "empty": b"",
    "path": b"localhost/../x",
    "query": b"localhost?x",
    "fragment": b"localhost#x",
    "two words": b"localhost evil.example",
    "comma": b"localhost, evil.example",
    "bytes": b"\xff\xfe",
    "very long": b"a" * 30_000,
}
_AUTHORIZATIONS = {
    "no token": b"Bearer",
    "blank token": b"Bearer    ",
    "basic": b"Basic YWRtaW46YWRtaW4=",
    "two tokens": b"Bearer a b",
    "bytes": b"Bearer \xff\xfe\x80",
    "very long": b"Bearer " + b"a" * 30_000,
    "quote": b"Bearer ' OR 1=1 --",
    "star": b"Bearer *",
    "list": b"Bearer a, Bearer b",
}
_REQUEST_IDS = {
    "very long": b"a" * 10_000,
    "bytes": b"\xff\xfe",
    "json": b'{"a": "\\u0000"}',
    "quote": b"'; DROP TABLE change; --",
    "escape": b"\x1b[2J",
    "format": b"%s%n{0}",
    "bidi": "\u202eabc".encode(),
}
_FRAMES = {
    "both lengths": b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\nGET / HTTP/1.1\r\n\r\n",
    "two lengths": b"Content-Length: 2\r\nContent-Length: 5\r\n\r\n{}...",
    "list of lengths": b"Content-Length: 2, 5\r\n\r\n{}...",
    "negative length": b"Content-Length: -1\r\n\r\n{}",
    "signed length": b"Content-Length: +2\r\n\r\n{}",
    "hexadecimal length": b"Content-Length: 0x2\r\n\r\n{}",
    "huge length": b"Content-Length: 99999999999999999999\r\n\r\n{}",
    "large length": b"Content-Length: 9999999999999\r\n\r\n{}",
    "short body": b"Content-Length: 100\r\n\r\n{}",
    "unknown coding": b"Transfer-Encoding: xchunked\r\n\r\n{}",
    "coding twice": b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
    "coding not last": b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "chunk of a huge size": b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n{}\r\n",
    "chunk of no size": b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n{}\r\n",
    "chunk that is cut": b"Transfer-Encoding: chunked\r\n\r\n5\r\n{}",
    "chunk extension": b"Transfer-Encoding: chunked\r\n\r\n2;" + b"a" * 20_000 + b"\r\n{}\r\n0\r\n\r\n",
    "folded header": b"X-A: b\r\n c\r\nContent-Length: 2\r\n\r\n{}",
    "no colon": b"XA\r\nContent-Length: 2\r\n\r\n{}",
    "blank before the colon": b"Content-Length : 2\r\n\r\n{}",
    "empty name": b": x\r\nContent-Length: 2\r\n\r\n{}",
    "nul": b"X-A: a\x00b\r\nContent-Length: 2\r\n\r\n{}",
    "very many": b"".join(b"X-%d: a\r\n" % n for n in range(5000)) + b"Content-Length: 2\r\n\r\n{}",
    "giant": b"X-A: " + b"a" * 300_000 + b"\r\nContent-Length: 2\r\n\r\n{}",
    "bare line feeds": b"X-A: b\nContent-Length: 2\n\n{}",
    "continue": b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n{}",
    "unknown expectation": b"Expect: 200-ok\r\nContent-Length: 2\r\n\r\n{}",
    "upgrade": b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\nContent-Length: 2\r\n\r\n{}",
}
_STARTS = {
    "trace": b"TRACE /v1/corpora HTTP/1.1",
    "connect": b"CONNECT evil.example:443 HTTP/1.1",
    "propfind": b"PROPFIND /v1/corpora HTTP/1.1",
    "lower case": b"get /v1/corpora HTTP/1.1",
    "long method": b"A" * 10_000 + b" / HTTP/1.1",
    "no version": b"GET /v1/corpora",
    "later version": b"GET /v1/corpora HTTP/9.9",
    "no path": b"GET  HTTP/1.1",
    "whole address": b"GET http://evil.example/v1/corpora HTTP/1.1",
    "two slashes": b"GET //evil.example/v1/corpora HTTP/1.1",
    "dots": b"GET /v1/../../../etc/passwd HTTP/1.1",
    "dots of the static files": b"GET /console/static/..%2f..%2f__init__.py HTTP/1.1",
    "nul": b"GET /v1/corpora/%00 HTTP/1.1",
    "bytes": b"GET /v1/corpora/%ff%fe HTTP/1.1",
    "surrogate": b"GET /v1/corpora/%ed%a0%80 HTTP/1.1",
    "huge number": b"GET /v1/facts/" + b"9" * 5000 + b" HTTP/1.1",
    "negative number": b"GET /v1/facts/-1 HTTP/1.1",
    "number of another script": b"GET /v1/facts/%D9%A3 HTTP/1.1",
    "huge limit": b"GET /v1/facts?limit=1e999&cursor=%00 HTTP/1.1",
    "nul in the query": b"GET /v1/facts?corpus=%00&text=%ed%a0%80 HTTP/1.1",
    "very many parameters": b"GET /v1/facts?" + b"a=b&" * 10_000 + b" HTTP/1.1",
    "bad cursor": b"GET /v1/facts?cursor=eyJhIjoxfQ HTTP/1.1",
    "bad event": b"GET /v1/changes/events?after=99999999999999999999 HTTP/1.1",
    "http/2": b"PRI * HTTP/2.0\r\n\r\nSM",
    "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "nothing": b"",
}


def cases() -> Iterator[Case]:
    for name, host in _HOSTS.items():
        yield Case(GROUP, f"host: {name}", _host(host))
    yield Case(GROUP, "host: twice", _two_hosts)
    yield Case(GROUP, "host: none", _no_host)
    for name, value in _AUTHORIZATIONS.items():
        yield Case(GROUP, f"authorization: {name}", _authorization(value))
    yield Case(GROUP, "authorization: twice", _two_authorizations)
    for name, value in _REQUEST_IDS.items():
        yield Case(GROUP, f"request id: {name}", _request_id(value))
    for name, frame in _FRAMES.items():
        yield Case(GROUP, f"frame: {name}", _frame(frame))
    yield Case(GROUP, "hung up after the head", _hung_up)
    for name, start in _STARTS.items():
        yield Case(GROUP, f"start: {name}", _start(start))


def head(world: World, start: bytes, *lines: bytes, host: bytes | None = b"127.0.0.1") -> bytes:
    """Makes the start of a request with a token, to which more header lines may be added."""
    of_host = [] if host is None else [b"Host: " + host]
    known = [b"Authorization: Bearer " + world.tokens["admin"].encode(), b"Connection: close"]
    return b"\r\n".join((start, *of_host, *known, *lines, b""))


def sent(
    world: World, start: bytes, *lines: bytes, host: bytes | None = b"127.0.0.1", body: bytes = b""
) -> list[int]:
    return world.raw(head(world, start, *lines, host=host) + b"\r\n" + body)


def _refused(statuses: list[int]) -> str:
    expect(all(status in REFUSED for status in statuses), f"was answered with {statuses}")
    return f"{statuses}"


def _host(host: bytes) -> Callable[[World], str]:
    return lambda world: _refused(sent(world, b"GET /v1/corpora HTTP/1.1", host=host))


def _two_hosts(world: World) -> str:
    """Sends both orders, since one parser may use the first host and another the last."""
    start, other = b"GET /v1/corpora HTTP/1.1", b"Host: evil.example"
    first = sent(world, start, other)
    last = sent(world, start, b"Host: 127.0.0.1", host=b"evil.example")
    return _refused(first) + _refused(last)


def _no_host(world: World) -> str:
    return _refused(sent(world, b"GET /v1/corpora HTTP/1.1", host=None))


def _authorization(value: bytes) -> Callable[[World], str]:
    line = b"GET /v1/corpora HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nAuthorization: "
    return lambda world: _refused(world.raw(line + value + b"\r\n\r\n"))


def _two_authorizations(world: World) -> str:
    statuses = sent(world, b"GET /v1/corpora HTTP/1.1", b"Authorization: Bearer x")
    return f"{statuses}"


def _request_id(value: bytes) -> Callable[[World], str]:
    def attack(world: World) -> str:
        body = b'{"fact_ids": [1], "reason": "x"}'
        lines = (
            b"X-Request-ID: " + value,
            b"Content-Type: application/json",
            b"Content-Length: %d" % len(body),
        )
        return f"{sent(world, b'POST /v1/facts/restore HTTP/1.1', *lines, body=body)}"

    return attack


def _frame(frame: bytes) -> Callable[[World], str]:
    start, kind = b"POST /v1/lookups HTTP/1.1", b"Content-Type: application/json"
    return lambda world: f"{world.raw(head(world, start, kind) + frame)}"


def _hung_up(world: World) -> str:
    """Checks that clients that stop sending or disconnect are not logged as errors."""
    for start in (
        b"GET /v1/corpora HTTP/1.1",
        b"POST /v1/facts HTTP/1.1\r\nContent-Length: 9",
        b"GET /v1/nothing HTTP/1.1",
    ):
        world.raw(head(world, start) + b"\r\n", half_close=True)
    return "no answer is owed"


def _start(start: bytes) -> Callable[[World], str]:
    return lambda world: f"{sent(world, start)}"
