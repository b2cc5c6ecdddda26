"""Contradictions over HTTP: refused with the facts that answer, listed in pages, and noted as both right."""

from __future__ import annotations

from typing import Any

from colmlm.kb.service import KnowledgeBase
from tests.api.conftest import CAPITAL, Client, body_of
from tests.api.routes.test_facts import look_up

AGAINST = "/v1/facts/contradictions"


def add(client: Client, value: str, **more: Any) -> Any:
    return client.post("/v1/facts", json={"question": CAPITAL, "value": value, "reason": "r"} | more)


def test_a_second_answer_is_refused_with_the_fact_that_answers(operator: Client, fact_id: int) -> None:
    refused = body_of(add(operator, "Cusco"), 409)
    assert refused["type"] == "urn:colmlm:AnsweredAlready" and refused["about"] == {"fact_ids": [fact_id]}
    assert f'Fact {fact_id} answers this already ("Lima")' in refused["detail"]
    added = body_of(add(operator, "Cusco", anyway=True), 201)
    assert added["also_said_by"] == []
    assert look_up(operator, CAPITAL, added["min_seq"]) == ["Cusco"], "the newer one answers"
    again = body_of(add(operator, "lima", anyway=True), 201)
    assert again["also_said_by"] == [fact_id] and look_up(operator, CAPITAL, again["min_seq"]) == ["lima"]
    lake = operator.get("/v1/facts", params={"text": "Titicaca"}).json()["items"][0]["fact_id"]
    other = body_of(add(operator, "Ica", question="Which town is dry?"), 201)["fact_ids"][0]
    for method, path, body in (
        ("PATCH", f"/v1/facts/{lake}", {"question": CAPITAL}),
        ("PATCH", "/v1/facts/batch", {"facts": [{"fact_id": other, "question": CAPITAL}]}),
        ("POST", "/v1/facts/batch", {"facts": [{"question": CAPITAL, "value": "Arequipa"}]}),
        ("POST", "/v1/documents/1/facts", {"text": "country", "question": CAPITAL}),
    ):
        told = body_of(operator.request(method, path, json={**body, "reason": "r"}), 409)
        assert told["type"] == "urn:colmlm:AnsweredAlready", path
        assert operator.request(method, path, json={**body, "reason": "r", "anyway": True}).is_success


def test_contradictions_come_in_pages_with_who_answers(operator: Client, fact_id: int) -> None:
    cusco = body_of(add(operator, "Cusco", anyway=True), 201)["fact_ids"][0]
    body_of(add(operator, "Callao", anyway=True), 201)
    page = body_of(operator.get(AGAINST, params={"limit": 2, "corpus": "atlas"}))
    assert (page["total"], page["is_exact"], page["next"]) == (2, True, None)
    first = page["items"][0]
    assert (first["fact"]["fact_id"], first["other"]["fact_id"]) == (fact_id, cusco)
    assert (first["answering"], first["score"]) == (cusco, None)
    page = body_of(operator.get(AGAINST, params={"limit": 2}))
    rest = body_of(operator.get(AGAINST, params={"cursor": page["next"]}))
    assert (page["total"], len(rest["items"]), rest["next"]) == (3, 1, None)
    assert body_of(operator.get("/v1/facts/duplicates"))["items"] == []
    assert body_of(operator.get("/v1/facts/stale"))["items"] == []
    assert body_of(operator.get("/v1/facts/compared")) == {"contradictions": 3, "duplicates": 0, "stale": 0}
    body_of(operator.get(AGAINST, params={"cursor": "x"}), 422)
    body_of(operator.get(AGAINST, params={"corpus": "nowhere"}), 404)


def test_both_may_be_right(operator: Client, fact_id: int) -> None:
    cusco = body_of(add(operator, "Cusco", anyway=True), 201)["fact_ids"][0]
    body = {"fact_ids": [cusco, fact_id], "reason": "each in its time"}
    held = body_of(operator.post("/v1/facts/contradictions", json=body))
    assert (held["kind"], held["fact_ids"]) == ("both-right", [fact_id, cusco])
    assert body_of(operator.get(AGAINST))["items"] == []
    (pair,) = body_of(operator.get(AGAINST, params={"noted": True}))["items"]
    assert pair["noted_seq"] == held["seq"]
    undone = body_of(operator.post(f"/v1/changes/{held['seq']}/undo", json={"reason": "it does not"}))
    assert (undone["kind"], undone["fact_ids"]) == ("both-right", [fact_id, cusco])
    body_of(operator.post("/v1/facts/contradictions", json=body))
    body_of(operator.post("/v1/facts/contradictions", json={**body, "both_right": False}))
    assert body_of(operator.get(AGAINST))["total"] == 1
    none = body_of(operator.post("/v1/facts/contradictions", json={**body, "fact_ids": [fact_id, 999]}), 404)
    assert none["about"]["fact_ids"] == [fact_id, 999]


def test_a_dry_run_of_a_deletion_tells_who_says_the_same(
    operator: Client, atlas: KnowledgeBase, fact_id: int
) -> None:
    same = body_of(add(operator, "Lima"), 201)["fact_ids"][0]
    head = atlas.log.head_seq()
    body = {"fact_ids": [fact_id], "reason": "r", "dry_run": True}
    told = body_of(operator.request("DELETE", "/v1/facts", json=body))
    assert (told["also_said_by"], told["dry_run"], told["fact_ids"], told["seq"]) == (
        [same],
        True,
        [fact_id],
        head,
    )
    assert atlas.log.head_seq() == head and atlas.facts.show(fact_id).deleted_seq is None
    body_of(operator.request("DELETE", "/v1/facts", json={**body, "fact_ids": [999]}), 404)
    also = body_of(operator.post("/v1/facts/also-said", json={"fact_ids": [fact_id]}))
    assert also == [{"fact_id": fact_id, "by": [same]}]
    gone = body_of(operator.request("DELETE", "/v1/facts", json={"fact_ids": [fact_id], "reason": "r"}))
    assert gone["dry_run"] is False
    body_of(operator.request("DELETE", "/v1/facts", json=body), 409)
