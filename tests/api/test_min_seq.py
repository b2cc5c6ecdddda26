"""Whatever looks up can be told to wait for an edit, and says alike where it does not come."""

from __future__ import annotations

import json
from typing import Any

import pytest

from colmlm.api.schema.openapi import operations
from colmlm.kb.service import KnowledgeBase
from tests.api.conftest import CAPITAL, Client
from tests.fakes import DIM, FakeEncoder
from tests.gates import index_held_up

OF = {"model": "fake"}
MESSAGES = [{"role": "user", "content": CAPITAL}]

# By operation: the path, and the body that is asked with beside `min_seq`.
ASKED: dict[str, tuple[str, dict[str, Any]]] = {
    "look_up": ("lookups", {"questions": [CAPITAL]}),
    "generate": ("generations", {"prompt": CAPITAL}),
    "complete": ("completions", {**OF, "prompt": CAPITAL}),
    "chat": ("chat/completions", {**OF, "messages": MESSAGES}),
    "respond": ("responses", {**OF, "input": CAPITAL}),
}


def ask(client: Client, encoder: FakeEncoder, name: str, min_seq: int, **fields: Any) -> Any:
    if name == "look_up_vectors":
        params = {"checkpoint_id": "fake", "dim": DIM, "min_seq": min_seq}
        queries = encoder.encode_questions([CAPITAL])
        return client.post("/v1/lookups/vectors", params=params, content=queries.tobytes())
    path, body = ASKED[name]
    return client.post(f"/v1/{path}", json={**body, **fields, "min_seq": min_seq})


def test_these_are_all_routes_that_take_one(description: dict[str, Any]) -> None:
    schemas = description["components"]["schemas"]
    found = set()
    for _, _, operation in operations(description):
        bodies = operation.get("requestBody", {}).get("content", {}).values()
        named = [media["schema"].get("$ref", "").rpartition("/")[2] for media in bodies]
        if any("min_seq" in schemas.get(name, {}).get("properties", {}) for name in named) or any(
            parameter["name"] == "min_seq" for parameter in operation.get("parameters", ())
        ):
            found.add(operation["operationId"])
    assert found == {*ASKED, "look_up_vectors"}


STREAMED = [
    (name, {"stream": stream})
    for name in ("generate", "complete", "chat", "respond")
    for stream in (False, True)
]


EACH: list[tuple[str, dict[str, Any]]] = [("look_up", {}), ("look_up_vectors", {}), *STREAMED]


def told(answer: Any) -> tuple[int, str]:
    """The status, and what kind of refusal it is, in either shape."""
    said = json.loads(answer.text)
    return answer.status_code, said["error"]["code"] if "error" in said else said["type"]


def test_a_change_that_nobody_made_is_not_waited_for(
    reader: Client, atlas: KnowledgeBase, encoder: FakeEncoder, subtests: pytest.Subtests
) -> None:
    for name, fields in EACH:
        with subtests.test(name=name, fields=fields):
            seen = ask(reader, encoder, name, atlas.log.head_seq(), **fields)
            assert seen.status_code < 300, seen.text
            stored = len(atlas.outputs.find())
            refused = ask(reader, encoder, name, atlas.log.head_seq() + 1, **fields)
            assert told(refused) in ((404, "no_such_change"), (404, "urn:colmlm:NoSuchChange"))
            assert len(atlas.outputs.find()) == stored, "nothing was decoded"


def test_a_change_that_the_index_does_not_reach_in_time_is_not_now(
    reader: Client, atlas: KnowledgeBase, encoder: FakeEncoder, subtests: pytest.Subtests
) -> None:
    atlas.lookups.catch_up()
    seq = atlas.facts.add("Q?", "A", actor="tester", reason="test").seq
    with index_held_up(atlas):
        for name, fields in EACH:
            with subtests.test(name=name, fields=fields):
                behind = ask(reader, encoder, name, seq, **fields)
                assert told(behind) in ((503, "index_behind"), (503, "urn:colmlm:IndexBehind"))
                assert behind.headers["retry-after"] == "1" and atlas.outputs.find() == []
