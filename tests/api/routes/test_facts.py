"""Facts over HTTP: every edit is one change, and what it did can be read back at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from colmlm.api.app import create_app
from colmlm.api.middleware.limiters import Tuning
from colmlm.kb.corpus.format import AnnotatedDocument, FactSpan, Parsed
from colmlm.kb.service import KnowledgeBase
from tests.api.conftest import CAPITAL, TEXT, Client, Connect
from tests.fakes import FakeEncoder


def look_up(client: Client, question: str, min_seq: int | None = None) -> list[str]:
    answer = client.post("/v1/lookups", json={"questions": [question], "min_seq": min_seq})
    assert answer.status_code == 200, answer.text
    return [hit["value"] for hit in answer.json()["answers"][0]["hits"]]


def delete(client: Client, **body: Any) -> Any:
    return client.request("DELETE", "/v1/facts", json=body)


def test_facts_are_listed_by_page_by_text_and_by_state(operator: Client, fact_id: int) -> None:
    page = operator.get("/v1/facts", params={"limit": 1}).json()
    (first,) = page["items"]
    rest = operator.get("/v1/facts", params={"limit": 1, "cursor": page["next"]}).json()
    assert [first["value"], rest["items"][0]["value"]] == ["Lima", "Titicaca"] and rest["next"] is None
    assert first["source"]["title"] == "Peru" and first["question"] == CAPITAL

    def values(**params: Any) -> list[str]:
        return [fact["value"] for fact in operator.get("/v1/facts", params=params).json()["items"]]

    assert values(text="LIMA", corpus="atlas") == ["Lima"]
    assert values(text="%") == values(state="deleted") == []
    assert values(document_id=first["source"]["document_id"]) == ["Lima", "Titicaca"]
    assert first.pop("found") == []
    assert operator.get(f"/v1/facts/{first['fact_id']}").json() == first
    delete(operator, fact_ids=[fact_id], reason="test")
    assert (values(), values(state="deleted"), values(state="all")) == (
        ["Titicaca"],
        ["Lima"],
        ["Lima", "Titicaca"],
    )


def test_facts_are_searched_counted_and_sorted(
    operator: Client, new_token: Callable[[str], str], fact_id: int
) -> None:
    as_reader = {"Authorization": f"Bearer {new_token('reader')}"}

    def search(**params: Any) -> Any:
        return operator.get("/v1/facts", params=params).json()

    of_title = search(text="Peru", limit=1)
    assert (of_title["total"], of_title["is_exact"], len(of_title["items"])) == (2, True, 1)
    assert "title" in [found["place"] for found in of_title["items"][0]["found"]]
    rest = search(text="Peru", cursor=of_title["next"])
    assert len(rest["items"]) == 1 and rest["next"] is None
    assert [fact["value"] for fact in search(sort="newest")["items"]] == ["Titicaca", "Lima"]
    assert search(text="im", literally=True)["total"] == 1 and search(text="im")["total"] == 0
    assert search(near=CAPITAL)["items"][0]["fact_id"] == fact_id
    assert search(near=CAPITAL, text="Lima")["status"] == 422
    operator.patch(f"/v1/facts/{fact_id}", json={"value": "Cusco", "reason": "test"})
    assert [fact["value"] for fact in search(kind="update")["items"]] == ["Cusco"]
    assert search(since="2000-01-01")["total"] == 2 and search(until="2000-01-01")["total"] == 0
    assert search(since="yesterday")["status"] == 422
    for params in ({"state": "erased"}, {"actor": "ann"}, {"kind": "update"}, {"since": "2000-01-01"}):
        assert operator.get("/v1/facts", params=params, headers=as_reader).status_code == 403


def test_a_batch_is_one_change_or_none(operator: Client, fact_id: int) -> None:
    head = operator.get("/v1/changes").json()["head_seq"]
    facts = [{"question": f"Q{n}?", "value": f"A{n}"} for n in range(3)]
    added = operator.post("/v1/facts/batch", json={"facts": facts, "reason": "new"}).json()
    assert added["keyed"] and added["seq"] == head + 1 and len(added["fact_ids"]) == 3
    assert [look_up(operator, f"Q{n}?", added["min_seq"]) for n in range(3)] == [["A0"], ["A1"], ["A2"]]
    first, second, _ = added["fact_ids"]
    values = [{"fact_id": first, "value": "B0"}, {"fact_id": second, "value": "B1"}]
    body = {"facts": values, "reason": "corrected"}
    assert operator.patch("/v1/facts/batch", json=body).json()["fact_ids"] == [first, second]
    assert look_up(operator, "Q0?") + look_up(operator, "Q1?") == ["B0", "B1"]
    delete(operator, fact_ids=[second], reason="test")
    values[0]["value"] = "C0"
    assert operator.patch("/v1/facts/batch", json=body).json()["about"] == {"fact_ids": [second]}
    assert look_up(operator, "Q0?") == ["B0"]
    body["facts"] = [values[0], values[0]]
    assert operator.patch("/v1/facts/batch", json=body).status_code == 422


def test_many_facts_are_read_in_their_order_all_or_none(
    operator: Client, fact_id: int, new_token: Callable[[str], str]
) -> None:
    other = operator.post(
        "/v1/facts", json={"question": "Who wrote the report?", "value": "Ana", "reason": "new"}
    ).json()["fact_ids"][0]
    body = {"fact_ids": [other, fact_id]}
    found = operator.post("/v1/facts/read", json=body).json()
    assert found == [operator.get(f"/v1/facts/{known}").json() for known in body["fact_ids"]]
    assert operator.post("/v1/facts/read", json={"fact_ids": [other, 7777, 8888]}).json()["about"] == {
        "fact_ids": [7777, 8888]
    }
    assert delete(operator, fact_ids=[other], reason="test").status_code == 200
    as_reader = {"Authorization": f"Bearer {new_token('reader')}"}
    shown = operator.post("/v1/facts/read", json=body, headers=as_reader).json()
    assert [fact["withheld"] for fact in shown] == [True, False]


def test_edits_take_effect_for_lookups_that_ask_for_them(operator: Client, fact_id: int) -> None:
    assert look_up(operator, CAPITAL) == ["Lima"]
    updated = operator.patch(f"/v1/facts/{fact_id}", json={"value": "Cusco", "reason": "test"}).json()
    assert look_up(operator, CAPITAL, updated["min_seq"]) == ["Cusco"]
    deleted = delete(operator, fact_ids=[fact_id, fact_id], reason="test").json()
    assert deleted["fact_ids"] == [fact_id] and deleted["seq"] == updated["seq"] + 1
    assert look_up(operator, CAPITAL, deleted["min_seq"]) == []
    assert [f["fact_id"] for f in operator.get("/v1/facts", params={"state": "deleted"}).json()["items"]] == [
        fact_id
    ]
    restored = operator.post("/v1/facts/restore", json={"fact_ids": [fact_id], "reason": "test"}).json()
    assert look_up(operator, CAPITAL, restored["min_seq"]) == ["Cusco"]


def test_first_fact_of_an_empty_base_is_found(
    kb: KnowledgeBase, encoder: FakeEncoder, connect: Connect
) -> None:
    operator = connect(create_app(kb, encoder), "operator")
    edit = operator.post("/v1/facts", json={"question": "Q?", "value": "A", "reason": "new"}).json()
    assert edit["keyed"] and look_up(operator, "Q?") == ["A"]


def test_insert_leaves_a_backlog_to_a_rekey(
    atlas: KnowledgeBase, encoder: FakeEncoder, connect: Connect
) -> None:
    text = "One and two."
    spans = (FactSpan(0, 3, "One", "1?"), FactSpan(8, 11, "two", "2?"))
    atlas.corpora.ingest(
        [Parsed(AnnotatedDocument("numbers", text, spans))], "more", actor="tester", reason="backlog"
    )
    calls = list(encoder.calls)
    operator = connect(create_app(atlas, encoder, tuning=Tuning(keyed_at_once=2)), "operator")
    edit = operator.post("/v1/facts", json={"question": "Q?", "value": "A", "reason": "new"}).json()
    assert edit["keyed"] and encoder.calls == calls, "no document was encoded"
    assert look_up(operator, "Q?", edit["min_seq"]) == ["A"] and look_up(operator, "1?") == []


def test_more_than_a_request_should_key_is_left_to_a_rekey(
    atlas: KnowledgeBase, encoder: FakeEncoder, connect: Connect
) -> None:
    operator = connect(create_app(atlas, encoder, tuning=Tuning(keyed_at_once=2)), "operator")
    facts = [{"question": f"Q{n}?", "value": f"A{n}"} for n in range(3)]
    added = operator.post("/v1/facts/batch", json={"facts": facts, "reason": "new"}).json()
    assert not added["keyed"] and look_up(operator, "Q1?") == []


def test_without_an_encoder_an_insert_is_stored_and_says_it_is_not_keyed(
    atlas: KnowledgeBase, connect: Connect
) -> None:
    operator = connect(create_app(atlas), "operator")
    edit = operator.post("/v1/facts", json={"question": "Q?", "value": "A", "reason": "new"}).json()
    assert not edit["keyed"] and edit["min_seq"] == edit["seq"]
    assert operator.get(f"/v1/facts/{edit['fact_ids'][0]}").json()["value"] == "A"


def test_actor_is_the_keys_name_whoever_is_named(operator: Client, fact_id: int) -> None:
    before = operator.get("/v1/changes").json()["head_seq"]
    said: list[dict[str, str]] = [{}, {"on_behalf_of": "ana"}, {"actor": "admin"}, {"actor": "the operator"}]
    for number, named in enumerate(said):
        verb = "restore" if number % 2 else "delete"
        body = {"fact_ids": [fact_id], "reason": verb, **named}
        if verb == "delete":
            assert delete(operator, **body).status_code == 200
        else:
            assert operator.post("/v1/facts/restore", json=body).status_code == 200
    log = operator.get("/v1/changes", params={"principal": "the operator"}).json()["items"]
    assert [(c["actor"], c["on_behalf_of"]) for c in log if c["seq"] > before] == [
        ("the operator", None), ("the operator", "ana"), ("the operator", "admin"), ("the operator", None),
    ]  # fmt: skip
    (key_id,) = {c["principal"]["key_id"] for c in log}
    principal = {"kind": "key", "name": "the operator", "key_id": key_id, "job_id": None, "corpora": None}
    assert log[-1]["principal"] == principal
    assert operator.get("/v1/changes", params={"actor": "admin"}).json()["items"] == []
    assert operator.get("/v1/changes").json()["head_seq"] == log[-1]["seq"]


def test_edit_of_an_unknown_fact_does_nothing(operator: Client, fact_id: int) -> None:
    head = operator.get("/v1/changes").json()["head_seq"]
    for unknown in (999, 2**63 - 1):
        answer = delete(operator, fact_ids=[fact_id, unknown], reason="test")
        assert (answer.status_code, answer.json()["about"]["fact_ids"]) == (404, [unknown])
    assert operator.get("/v1/changes").json()["head_seq"] == head


def test_edits_of_facts_in_the_wrong_state_conflict(operator: Client, fact_id: int) -> None:
    body = {"fact_ids": [fact_id], "reason": "test"}
    assert operator.post("/v1/facts/restore", json=body).status_code == 409
    assert delete(operator, **body).status_code == 200
    assert delete(operator, **body).status_code == 409
    assert operator.patch(f"/v1/facts/{fact_id}", json={"value": "x", "reason": "test"}).status_code == 409


def test_trace_of_a_fact_names_its_source_and_history(operator: Client, fact_id: int) -> None:
    operator.patch(f"/v1/facts/{fact_id}", json={"value": "Cusco", "reason": "test"})
    trace = operator.get(f"/v1/facts/{fact_id}/trace").json()
    assert [v["value"] for v in trace["versions"]] == ["Lima", "Cusco"]
    assert "update" in [c["kind"] for c in trace["history"]]
    source = trace["fact"]["source"]
    document = operator.get(f"/v1/documents/{source['document_id']}").json()
    about = document["document"]
    assert document["text"] == TEXT and about["licence"] == "CC-BY-4.0" and about["corpus"] == "atlas"
    assert document["text"][source["start"] : source["end"]] == "Lima"


def test_health_says_what_is_missing(
    reader: Client, kb: KnowledgeBase, connect: Connect, encoder: FakeEncoder
) -> None:
    healthy = reader.get("/health")
    assert (healthy.status_code, healthy.json()["missing"]) == (200, [])
    assert healthy.json()["index_seq"] == healthy.json()["head_seq"]
    assert healthy.json()["active_keyset"] == msgspec.to_builtins(kb.keysets.active())
    kb.facts.add("Who?", "Ann", actor="tester", reason="test")
    assert [reader.get("/health").json()["index_lag"] for _ in range(2)] == [1, 0]
    other = connect(create_app(kb, FakeEncoder(salt="other")), "operator").get("/health")
    assert other.status_code == 503
    assert other.json()["missing"] == ["generator", "checkpoint of the active keyset"]


def test_health_of_an_empty_base_is_no_failure(kb: KnowledgeBase, connect: Connect) -> None:
    answer = connect(create_app(kb), "reader").get("/health")
    assert (answer.status_code, answer.json()["missing"]) == (503, ["active keyset", "encoder", "generator"])
