"""A lookup of vectors is answered alike by the short way and by the way of all other requests."""

from __future__ import annotations

import json
from typing import Any

import pytest

from colmlm.kb.service import KnowledgeBase
from tests.api.conftest import CAPITAL, LAKE, Client
from tests.api.routes.test_lookups import REFUSED
from tests.fakes import FakeEncoder

SHORT, LONG = "application/json", "application/json; charset=utf-8"
OWN = {"x-request-id", "content-length", "date"}  # of one response


def both(client: Client, body: Any, **headers: str) -> list[tuple[int, Any, dict[str, str]]]:
    """Gives status, body and headers of the same request by either way."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    told = []
    for kind in (SHORT, LONG):
        answer = client.post("/v1/lookups", content=content, headers={"Content-Type": kind, **headers})
        said = answer.json()
        for name in ("instance", "request_id"):
            said.pop(name, None)
        told.append((answer.status_code, said, {k: v for k, v in answer.headers.items() if k not in OWN}))
    return told


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"k": 2, "threshold": -1},
        {"threshold": 1},
        {"accepted_only": True},
        {"min_seq": 1},
        {"ranking": "key"},
    ],
    ids=str,
)
def test_either_way_gives_the_same_answers(
    reader: Client, encoder: FakeEncoder, options: dict[str, Any]
) -> None:
    queries = encoder.encode_questions([CAPITAL, LAKE, "Unheard of?"]).tolist()
    short, long = both(reader, {"queries": queries, "checkpoint_id": "fake", **options})
    assert short == long and short[0] == 200 and len(short[1]["answers"]) == 3


@pytest.mark.parametrize("body", [body for body, _ in REFUSED], ids=lambda body: str(body)[:60])
def test_either_way_refuses_alike(reader: Client, body: dict[str, Any]) -> None:
    short, long = both(reader, body)
    assert short == long and short[0] >= 400


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b"null", b'{"queries": [[NaN]]}'])
def test_what_is_no_request_is_refused_alike(reader: Client, content: bytes) -> None:
    short, long = both(reader, content)
    assert short == long and short[0] == 400


def test_a_deleted_fact_and_another_token_are_told_alike(
    atlas: KnowledgeBase, encoder: FakeEncoder, reader: Client
) -> None:
    body = {"queries": encoder.encode_questions([CAPITAL]).tolist(), "checkpoint_id": "fake"}
    atlas.facts.delete([1], actor="tester", reason="test")
    short, long = both(reader, body)
    assert short == long and not short[1]["answers"][0]["hits"]
    stranger = both(reader, body, Authorization="Bearer colmlm_of_nobody")
    assert [status for status, _, _ in stranger] == [401, 401]
