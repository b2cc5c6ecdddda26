"""Cursors: every list is given whole, page by page, and a cursor serves its own list only."""

from __future__ import annotations

import base64
import json

from colmlm.api.routes.parameters import place_of
from colmlm.api.wire import cursor
from tests.api.conftest import Client
from tests.refusals import raises_code

LISTS = (
    "corpora",
    "documents",
    "facts",
    "generations",
    "attributions",
    "forget-runs",
    "keysets",
    "changes",
)


def test_every_list_is_given_whole_by_pages_of_one(operator: Client) -> None:
    for question in ("What is the capital of Peru?", "What is the capital of Peru?", "?"):
        operator.post("/v1/generations", json={"prompt": question})
    for _ in range(2):
        body = {"selector": {"text": "Lima"}, "reason": "test"}
        assert operator.post("/v1/forget-runs", json=body).status_code == 201
    for name in LISTS:
        whole = operator.get(f"/v1/{name}").json()
        assert whole["next"] is None and whole["items"], name
        pieces, params = [], {"limit": 1}
        while True:
            page = operator.get(f"/v1/{name}", params=params).json()
            pieces += page["items"]
            assert len(page["items"]) == 1, name
            if page["next"] is None:
                break
            params["cursor"] = page["next"]
        assert pieces == whole["items"], name


def test_a_cursor_serves_its_own_list_only() -> None:
    given = cursor("facts", (7,))
    assert place_of(given, "facts") == (7,) and place_of(None, "facts") == (0,)
    forged = [base64.urlsafe_b64encode(json.dumps(said).encode()).decode().rstrip("=")
              for said in (["facts"], ["facts", -1], ["facts", 2**63], ["facts", True], ["facts", "1"], 7)]  # fmt: skip
    for wrong in (cursor("changes", (7,)), cursor("facts", (7, 1)), "é", "a", "%", "[" * 100, *forged):
        with raises_code("InvalidCursor"):
            place_of(wrong, "facts")
