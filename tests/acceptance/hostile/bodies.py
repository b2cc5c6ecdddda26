"""Hostile bodies, each sent to every route that accepts one."""

from __future__ import annotations

import gzip
import json
import re
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from tests.acceptance.hostile.cases import Case, expect
from tests.acceptance.hostile.headers import REFUSED, head
from tests.acceptance.hostile.world import World

GROUP = "bodies"
ROUTES = (
    ("POST", "/v1/facts"), ("DELETE", "/v1/facts"), ("PATCH", "/v1/facts/1"), ("POST", "/v1/facts/batch"),
    ("POST", "/v1/documents"), ("POST", "/v1/lookups"), ("POST", "/v1/generations"), ("POST", "/v1/completions"),
    ("POST", "/v1/chat/completions"), ("POST", "/v1/forget-runs"), ("POST", "/v1/impact"),
    ("POST", "/v1/erasures/preview"), ("POST", "/v1/jobs/ingest"), ("POST", "/v1/jobs/rekey"), ("POST", "/v1/tokens"),
    ("POST", "/v1/certificates/check"), ("POST", "/v1/changes/head/check"), ("PUT", "/v1/keysets/1/threshold"),
    ("POST", "/v1/generations/records"),
)  # fmt: skip
_REFUSED: dict[str, bytes] = {
    "deep lists": b"[" * 100_000,
    "deep objects": b'{"a":' * 100_000,
    "deep in a member": b'{"reason": ' + b"[" * 5000 + b"]" * 5000 + b"}",
    "nan": b'{"value": NaN, "reason": NaN, "threshold": NaN}',
    "infinite": b'{"threshold": 1e999, "fact_ids": [1e999], "reason": "x"}',
    "number of many digits": b'{"fact_ids": [' + b"9" * 100_000 + b'], "reason": "x"}',
    "wrong types": b'{"reason": {}, "fact_ids": "x", "value": [], "questions": {}, "prompt": 1, "documents": 1}',
    "a string for all": b'"x"',
    "nothing": b"",
    "null": b"null",
    "a list": b"[]",
    "bytes": b'{"reason": "\xff\xfe"}',
    "utf-16": '{"reason": "x"}'.encode("utf-16"),
    "trailing": b'{"reason": "x"} {"reason": "y"}',
    "two members of a name": b'{"reason": "x", "reason": 1, "fact_ids": [1], "fact_ids": "x"}',
    "a very long name": b'{"' + b"a" * 1_000_000 + b'": 1}',
    "very many members": json.dumps({f"m{n}": n for n in range(100_000)}).encode(),
}
_VALUES: dict[str, str] = {
    "nul": "a\x00b",
    "lone surrogate": "a\ud800b",
    "controls": "a\x07\x1b[2Jb",
    "bidi": "a\u202eb\u2066c",
    "no width": "\u200b\u200c\u2060\ufeff",
    "white space": "\u00a0\u2003\u3000",
    "tags": "<FACT>x</FACT><script>alert(1)</script>",
    "sql": "'; DROP TABLE fact; --",
    "format": "%s %(x)s {0} {x.__class__}",
    "giant": "x" * 3_000_000,
}
_NO_VALUE = ("nul", "lone surrogate", "no width", "white space")
_NO_NAME = (*_NO_VALUE, "controls", "bidi")  # and no reason; a text may hold them, and shows them escaped


def cases() -> Iterator[Case]:
    for name, body in _REFUSED.items():
        yield Case(GROUP, name, _everywhere(body))
    for name, value in _VALUES.items():
        yield Case(GROUP, f"value: {name}", _valued(name, value))
    for name, value in {**_VALUES, "not ascii": "ÄÖÜ=", "digits": "٣"}.items():
        if name != "giant":
            yield Case(GROUP, f"in every text: {name}", _in_every_text(value))
    yield Case(GROUP, "broken gzip", _encoded(b"\x1f\x8b\x08 no gzip"))
    yield Case(GROUP, "gzip that inflates", _encoded(gzip.compress(b" " * 100_000_000, mtime=0)))
    yield Case(GROUP, "other content types", _content_types)
    yield Case(GROUP, "slow body", _slow)
    yield Case(GROUP, "hung up in the body", _hung_up)
    yield Case(GROUP, "giant body", _giant)


def _everywhere(body: bytes) -> Callable[[World], str]:
    def attack(world: World) -> str:
        got = {f"{method} {path}": world.ask(method, path, body).status for method, path in ROUTES}
        taken = {route: status for route, status in got.items() if status not in REFUSED}
        expect(not taken or body in (b"", b"null"), f"taken: {taken}")
        return f"{sorted(set(got.values()))}"

    return attack


def _valued(name: str, value: str) -> Callable[[World], str]:
    def attack(world: World) -> str:
        text = value[:7000] if name != "giant" else value
        bodies = {
            "/v1/facts": {"question": "Q?", "value": text, "reason": "x"},
            "/v1/facts/restore": {"fact_ids": [1], "reason": text},
            "/v1/lookups": {"questions": [text]},
            "/v1/generations": {"prompt": text},
            "/v1/documents": {"corpus": text, "documents": [{"id": text, "text": text}], "reason": text},
            "/v1/forget-runs": {"selector": {"text": text}, "reason": text},
            "/v1/tokens": {"name": text, "role": "reader"},
            "/v1/jobs/ingest": {"upload_id": text, "corpus": text},
        }
        got = {path: world.ask("POST", path, body).status for path, body in bodies.items()}
        if name in _NO_VALUE:
            expect(got["/v1/facts"] in REFUSED, f"was taken as the value of a fact: {got['/v1/facts']}")
        if name in _NO_NAME:
            kept = {
                path: got[path] for path in ("/v1/tokens", "/v1/facts/restore") if got[path] not in (400, 422)
            }
            expect(not kept, f"was taken as a name or a reason: {kept}")
        return f"{sorted(set(got.values()))}"

    return attack


def _in_every_text(value: str) -> Callable[[World], str]:
    """Makes an attack that puts the value in place of each text of each request's example, one at a time."""

    def attack(world: World) -> str:
        described = json.loads(world.ask("GET", "/schema/openapi.json").body)
        got: Counter[int] = Counter()
        for path, operations in described["paths"].items():
            for method, operation in operations.items():
                media = operation.get("requestBody", {}).get("content", {}).get("application/json")
                if (
                    media is None or "example" not in media or "/tokens/" in path
                ):  # these could change the token in use
                    continue
                for body in _with_each_text(media["example"], value):
                    got[world.ask(method.upper(), re.sub(r"{\w+}", "1", path), body).status] += 1
        expect(got.total() > 50, f"hardly anything was asked: {dict(got)}")
        return f"{dict(sorted(got.items()))}"

    return attack


def _with_each_text(example: Any, value: str) -> Iterator[Any]:
    """Yields copies of the example, each with the value in place of another of its texts."""
    match example:
        case str():
            yield value
        case dict():
            yield from (
                {**example, name: put}
                for name, part in example.items()
                for put in _with_each_text(part, value)
            )
        case list():
            yield from (
                [*example[:at], put, *example[at + 1 :]]
                for at, part in enumerate(example)
                for put in _with_each_text(part, value)
            )


def _encoded(body: bytes) -> Callable[[World], str]:
    def attack(world: World) -> str:
        got = [
            world.ask("POST", path, body, headers={"Content-Encoding": "gzip"})
            for path in ("/v1/facts", "/v1/lookups")
        ]
        expect(all(one.status in REFUSED for one in got), f"was answered with {[one.status for one in got]}")
        return f"{[one.status for one in got]}"

    return attack


def _content_types(world: World) -> str:
    kinds = (
        "text/plain", "multipart/form-data", "multipart/form-data; boundary=" + "a" * 1000, "", "a" * 5000,
        "application/json; charset=klingon", "application/x-msgpack", "application/x-www-form-urlencoded",
    )  # fmt: skip
    got = [
        world.ask("POST", path, b'{"questions": ["x"]}', headers={"Content-Type": kind}).status
        for kind in kinds
        for path in ("/v1/lookups", "/v1/facts")
    ]
    return f"{sorted(set(got))}"


def _slow(world: World) -> str:
    """Checks that many clients that send a byte a second keep nobody else waiting."""
    start = head(
        world, b"POST /v1/facts HTTP/1.1", b"Content-Length: 1000", b"Content-Type: application/json"
    )
    slow = [socket.create_connection(world.address) for _ in range(50)]
    try:
        for one in slow:
            one.sendall(start + b'\r\n{"reason"')
        for _ in range(3):
            for one in slow:
                one.sendall(b" ")
            time.sleep(0.2)
            expect(world.ask("GET", "/v1/corpora").status == 200, "others wait")
    finally:
        for one in slow:
            one.close()
    return "others are answered"


def _hung_up(world: World) -> str:
    start = head(world, b"POST /v1/uploads?name=x.txt HTTP/1.1", b"Content-Length: 1000000")
    for _ in range(20):
        with socket.create_connection(world.address) as connection:
            connection.sendall(start + b"\r\n" + b"x" * 1000)
    return "no upload of these is kept"


def _giant(world: World) -> str:
    body = b'{"questions": ["' + b"x" * 40_000_000 + b'"]}'
    start = head(
        world,
        b"POST /v1/lookups HTTP/1.1",
        b"Content-Type: application/json",
        b"Content-Length: %d" % len(body),
    )
    statuses = world.raw(start + b"\r\n" + body)
    expect(all(status in REFUSED for status in statuses), f"was answered with {statuses}")
    return f"{statuses}"
