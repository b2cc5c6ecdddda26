"""Large responses to reads are compressed, and nothing that could tell a secret by its length."""

from __future__ import annotations

import gzip
from typing import Any

import httpx
import pyarrow
import pytest

from colmlm.api.middleware.gate import LEAST_BYTES, GatedApp
from colmlm.kb.corpus.format import AnnotatedDocument, Parsed
from colmlm.kb.service import KnowledgeBase
from tests.api.conftest import ORIGIN, Client, Connect
from tests.api.serving import served

TEXT = "The stones of the old harbour were counted once, and their number was lost again. " * 600


@pytest.fixture
def large(atlas: KnowledgeBase) -> str:
    """The path of a document of 50 kB."""
    long = AnnotatedDocument("long", TEXT, ())
    atlas.corpora.ingest([Parsed(long)], "atlas", actor="tester", reason="a large answer")
    (document,) = (one for one in atlas.documents.find(corpus="atlas") if one.external_id == "long")
    return f"/v1/documents/{document.document_id}"


def raw(address: str, token: str, path: str, accepted: str, **options: Any) -> tuple[httpx.Response, bytes]:
    """Gives a response with its bytes as they were sent."""
    headers = {"Authorization": f"Bearer {token}", "Accept-Encoding": accepted, **options}
    with httpx.stream("GET", address + path, headers=headers, timeout=60) as answer:
        return answer, b"".join(answer.iter_raw())


def test_a_large_answer_is_compressed_as_the_client_accepts(
    app: GatedApp, new_token: Any, large: str
) -> None:
    token = new_token("reader")
    with served(app) as address:
        plain, whole = raw(address, token, large, "identity")
        assert "content-encoding" not in plain.headers
        for accepted, codec in (
            ("gzip, deflate", "gzip"),
            ("gzip, zstd", "zstd"),
            ("gzip;q=1.0, zstd;q=0", "gzip"),
            ("GZIP;q=0.5", "gzip"),
        ):
            answer, sent = raw(address, token, large, accepted)
            assert answer.headers["content-encoding"] == codec and "Accept-Encoding" in answer.headers["vary"]
            assert int(answer.headers["content-length"]) == len(sent) < len(whole) / 4
            assert (gzip.decompress(sent) if codec == "gzip" else unpacked(sent)) == whole
        for accepted in ("br", "gzip;q=0, zstd;q=0.0", ""):
            assert "content-encoding" not in raw(address, token, large, accepted)[0].headers


def unpacked(sent: bytes) -> bytes:
    with pyarrow.CompressedInputStream(pyarrow.BufferReader(sent), "zstd") as stream:
        return bytes(stream.read())


def test_a_small_answer_and_a_stream_are_sent_as_they_are(app: GatedApp, new_token: Any) -> None:
    token = new_token("admin")
    with served(app) as address:
        for path in (
            "/v1/corpora",
            "/v1/corpora/atlas/export?live_only=true",
            "/v1/changes/events",
            "/healthz",
        ):
            answer, sent = raw(address, token, path, "gzip, zstd")
            assert answer.status_code == 200 and "content-encoding" not in answer.headers, path
            assert len(sent) < LEAST_BYTES or "content-length" not in answer.headers


def test_what_is_asked_with_a_cookie_or_sent_is_not_compressed(
    app: GatedApp, connect: Connect, large: str
) -> None:
    """A browser sends the cookie wherever a page leads it, and a POST has its body in its response."""
    client: Client = connect(app, "reader")
    body = {"queries": [[0.1] * 32] * 64, "checkpoint_id": "fake", "threshold": -1, "k": 2}
    answer = client.post("/v1/lookups", json=body, headers={"Accept-Encoding": "gzip"})
    assert answer.status_code == 200 and len(answer.content) > LEAST_BYTES
    assert "content-encoding" not in answer.headers
    secret = client.headers.pop("Authorization").removeprefix("Bearer ")
    client.post("/session", data={"key": secret, "back": "/"}, headers={"Origin": ORIGIN})
    described = client.get(large, headers={"Accept-Encoding": "gzip"})
    assert described.status_code == 200
    assert len(described.content) > LEAST_BYTES and "content-encoding" not in described.headers


def test_a_head_says_how_long_the_compressed_answer_is(app: GatedApp, new_token: Any, large: str) -> None:
    token = new_token("reader")
    with served(app) as address:
        answer, sent = raw(address, token, large, "gzip")
        headers = {"Authorization": f"Bearer {token}", "Accept-Encoding": "gzip"}
        head = httpx.head(address + large, headers=headers, timeout=60)
        assert head.headers["content-length"] == str(len(sent)) == answer.headers["content-length"]
        assert head.headers["content-encoding"] == "gzip" and head.content == b""
