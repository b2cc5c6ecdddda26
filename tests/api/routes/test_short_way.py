"""A lookup of vectors is answered alike by the short way and by the way of all other requests."""

from __future__ import annotations

import json
from typing import Any

import pytest

from colmlm.api.app import create_app
from colmlm.api.door.lanes import Tuning
from colmlm.api.routes.short_way import MAX_BYTES
from colmlm.kb.access.tokens import create_token
from colmlm.kb.service import KnowledgeBase
from tests.api.conftest import CAPITAL, LAKE, Client, Connect
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


def test_either_way_gives_the_same_answers(
    reader: Client, encoder: FakeEncoder, subtests: pytest.Subtests
) -> None:
    queries = encoder.encode_questions([CAPITAL, LAKE, "Unheard of?"]).tolist()
    for options in (
        {},
        {"k": 2, "threshold": -1},
        {"threshold": 1},
        {"accepted_only": True},
        {"min_seq": 1},
        {"ranking": "key"},
    ):
        with subtests.test(options=options):
            short, long = both(reader, {"queries": queries, "checkpoint_id": "fake", **options})
            assert short == long and short[0] == 200 and len(short[1]["answers"]) == 3


def test_either_way_refuses_alike(reader: Client, subtests: pytest.Subtests) -> None:
    for body, _ in REFUSED:
        with subtests.test(body=body):
            short, long = both(reader, body)
            assert short == long and short[0] >= 400


def test_what_is_no_request_is_refused_alike(reader: Client, subtests: pytest.Subtests) -> None:
    for content in (b"", b"{", b"[]", b"\xff", b"null", b'{"queries": [[NaN]]}'):
        with subtests.test(content=content):
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


def test_a_long_body_and_one_of_unknown_length_are_answered_alike(
    reader: Client, encoder: FakeEncoder
) -> None:
    body = json.dumps(
        {"queries": encoder.encode_questions([CAPITAL]).tolist(), "checkpoint_id": "fake"}
    ).encode()
    short, *others = (
        reader.post("/v1/lookups", content=content, headers={"Content-Type": SHORT})
        for content in (body, body + b" " * MAX_BYTES, iter([body[:9], body[9:]]))
    )
    assert short.status_code == 200 and short.json()["answers"][0]["hits"]
    assert all(other.json() == short.json() for other in others)


def test_a_secret_that_nobody_has_makes_no_lookup(
    atlas: KnowledgeBase, encoder: FakeEncoder, reader: Client
) -> None:
    def lookups() -> list[str]:
        told = reader.get("/metrics").text.splitlines()
        return [line for line in told if line.startswith("colmlm_lookup_seconds_count")]

    body = {"queries": encoder.encode_questions([CAPITAL]).tolist(), "checkpoint_id": "fake"}
    before = lookups()
    reader.post("/v1/lookups", json=body, headers={"Authorization": "Bearer colmlm_of_nobody"})
    assert lookups() == before != []
    assert reader.post("/v1/lookups", json=body).status_code == 200
    assert lookups() != before


def test_a_rate_counts_each_lookup_once_also_one_that_is_refused(
    atlas: KnowledgeBase, encoder: FakeEncoder, connect: Connect
) -> None:
    with atlas.sessions.begin() as session:
        hasty = create_token(session, "hasty", "decoder", rate_limit=3)
    client = connect(create_app(atlas, encoder, tuning=Tuning(clock=lambda: 0.0)))
    query = encoder.encode_questions([CAPITAL]).tolist()
    statuses = [
        client.post(
            "/v1/lookups",
            json={"queries": query, "checkpoint_id": checkpoint_id},
            headers={"Authorization": f"Bearer {hasty}"},
        ).status_code
        for checkpoint_id in ("fake", "another", "fake", "fake", "fake")
    ]
    assert statuses == [200, 409, 200, 429, 429]
