"""Corpora and documents over HTTP: taken in, listed, exported, replaced and deleted."""

from __future__ import annotations

import json
from typing import Any

from colmlm.api.middleware.gate import GatedApp
from tests.api.conftest import CAPITAL, TEXT, Client, Connect

NEW = "Chile's capital is Santiago."
DOCUMENT = {
    "id": "chile",
    "text": NEW,
    "facts": [{"start": 19, "end": 27, "value": "Santiago", "question": "What is the capital of Chile?"}],
}


def look_up(client: Client, question: str) -> list[str]:
    answer = client.post("/v1/lookups", json={"questions": [question]}).json()["answers"][0]
    return [hit["value"] for hit in answer["hits"]]


def ingest(client: Client, *documents: Any) -> Any:
    body = {"corpus": "atlas", "documents": documents, "reason": "test"}
    answer = client.post("/v1/documents", json=body)
    assert answer.status_code == 201, answer.text
    return answer.json()


def test_a_document_is_taken_in_found_replaced_and_refused(operator: Client) -> None:
    taken = ingest(
        operator, DOCUMENT, {**DOCUMENT, "id": "wrong", "facts": [{**DOCUMENT["facts"][0], "start": 18}]}
    )  # type: ignore[index]
    assert (taken["documents"], taken["facts"], taken["keyed"]) == (2, 1, True)
    assert taken["refusals"][0]["document"] == "wrong"
    assert ingest(operator, DOCUMENT)["unchanged"] == 1
    moved = {**DOCUMENT, "text": "x" + NEW, "facts": []}
    assert ingest(operator, moved)["replaced"] == 1
    current = operator.get("/v1/documents", params={"corpus": "atlas"}).json()["items"]
    assert [d["external_id"] for d in current] == ["peru", "wrong", "chile"]
    (old,) = operator.get("/v1/documents", params={"replaced": True}).json()["items"]
    assert operator.get(f"/v1/documents/{old['document_id']}").json()["text"] == NEW


def test_a_documents_facts_stand_where_they_say(operator: Client) -> None:
    (peru,) = operator.get("/v1/documents").json()["items"]
    assert (peru["characters"], peru["live_facts"]) == (len(TEXT), 2)
    facts = operator.get(f"/v1/documents/{peru['document_id']}/facts").json()["items"]
    assert [TEXT[f["source"]["start"] : f["source"]["end"]] for f in facts] == ["Lima", "Titicaca"]


def test_deleting_a_corpus_says_how_much_before_and_after(operator: Client) -> None:
    def delete(path: str, **body: Any) -> Any:
        return operator.request("DELETE", path, json={"reason": "withdrawn", **body}).json()

    asked = delete("/v1/corpora/atlas", dry_run=True)
    assert asked == {"dry_run": True, "documents": 1, "facts": 2, "seq": None}
    assert look_up(operator, CAPITAL) == ["Lima"]
    (peru,) = operator.get("/v1/documents").json()["items"]
    gone = delete(f"/v1/documents/{peru['document_id']}")
    assert gone["facts"] == 2 and gone["seq"] and look_up(operator, CAPITAL) == []
    assert delete("/v1/corpora/atlas") == {"dry_run": False, "documents": 1, "facts": 0, "seq": None}
    stats = operator.get("/v1/corpora/atlas").json()
    assert (stats["facts"], stats["deleted"]) == (0, 2)


def test_an_export_can_be_taken_in_again(app: GatedApp, connect: Connect) -> None:
    admin = connect(app, "admin")
    answer = admin.get("/v1/corpora/atlas/export")
    assert answer.headers["content-type"].startswith("application/jsonl")
    (line,) = answer.text.splitlines()
    document = json.loads(line)
    assert document["text"] == TEXT and [f["value"] for f in document["facts"]] == ["Lima", "Titicaca"]
    assert ingest(admin, document)["unchanged"] == 1
    counted = admin.get("/v1/stats").json()
    assert (counted["facts"], counted["to_review"]) == (2, 0)
