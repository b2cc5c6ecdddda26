"""Mending over HTTP: questions edited, spans moved, facts marked, all of it undone, and keys made at once."""

from __future__ import annotations

from colmlm.kb.service import KnowledgeBase
from tests.api.conftest import CAPITAL, LAKE, TEXT, Client, body_of
from tests.api.routes.test_facts import look_up

SEAT = "Where is the seat of Peru's government?"


def test_an_edited_question_answers_at_once_and_the_old_one_no_more(operator: Client, fact_id: int) -> None:
    body = {"question": SEAT, "reason": "clearer"}
    edit = body_of(operator.patch(f"/v1/facts/{fact_id}", json=body))
    assert edit["keyed"] and edit["min_seq"] > edit["seq"] and edit["kind"] == "update"
    assert look_up(operator, SEAT, edit["min_seq"]) == ["Lima"] and look_up(operator, CAPITAL) == []
    assert body_of(operator.get(f"/v1/facts/{fact_id}"))["question"] == SEAT
    refused = body_of(operator.patch(f"/v1/facts/{fact_id}", json={"reason": "nothing"}), 422)
    assert "neither a value nor a question" in refused["detail"]


def test_many_values_and_questions_are_one_change(operator: Client, atlas: KnowledgeBase) -> None:
    lima, lake = (fact.fact_id for fact in atlas.facts.find())
    rows = [{"fact_id": lima, "value": "Cusco"}, {"fact_id": lake, "question": SEAT}]
    edit = body_of(operator.patch("/v1/facts/batch", json={"facts": rows, "reason": "r"}))
    assert edit["fact_ids"] == [lima, lake] and edit["keyed"]
    assert look_up(operator, SEAT) == ["Titicaca"] and look_up(operator, CAPITAL) == ["Cusco"]
    again = {"facts": [rows[0], rows[0]], "reason": "r"}
    assert "twice" in body_of(operator.patch("/v1/facts/batch", json=again), 422)["detail"]


def test_a_fact_is_marked_moved_and_both_are_undone(operator: Client, atlas: KnowledgeBase) -> None:
    at = atlas.documents.find()[0].document_id
    mark = {"text": "country", "question": "What is Peru?", "reason": "was missing"}
    marked = body_of(operator.post(f"/v1/documents/{at}/facts", json=mark), 201)
    (fact,) = marked["fact_ids"]
    assert marked["keyed"] and look_up(operator, "What is Peru?", marked["min_seq"]) == ["country"]
    start = TEXT.index("a country")
    moved = body_of(
        operator.post(
            f"/v1/facts/{fact}/move", json={"start": start, "end": start + 9, "reason": "cut too short"}
        )
    )
    shown = body_of(operator.get(f"/v1/facts/{fact}"))
    assert (shown["value"], shown["source"]["start"], moved["kind"]) == ("a country", start, "move")
    assert look_up(operator, "What is Peru?", moved["min_seq"]) == ["a country"]
    body_of(operator.post(f"/v1/changes/{moved['seq']}/undo", json={"reason": "was right"}))
    assert body_of(operator.get(f"/v1/facts/{fact}"))["value"] == "country"
    refused = body_of(operator.post(f"/v1/changes/{marked['seq']}/undo", json={"reason": "no"}), 409)
    assert refused["about"]["fact_ids"] == [fact] and "a later change" in refused["detail"]


def test_a_span_moves_with_a_question_in_one_change(
    operator: Client, atlas: KnowledgeBase, fact_id: int
) -> None:
    head = atlas.log.changes()[-1].seq
    body = {"text": "country", "question": SEAT, "version": 1, "reason": "asked otherwise"}
    moved = body_of(operator.post(f"/v1/facts/{fact_id}/move", json=body))
    assert (moved["kind"], moved["seq"], moved["keyed"]) == ("move", head + 1, True)
    assert look_up(operator, SEAT, moved["min_seq"]) == ["country"]
    body_of(operator.post(f"/v1/changes/{moved['seq']}/undo", json={"reason": "was right"}))
    fact = body_of(operator.get(f"/v1/facts/{fact_id}"))
    assert (fact["value"], fact["question"]) == ("Lima", CAPITAL)


def test_what_is_no_span_is_refused_with_its_cause(operator: Client, atlas: KnowledgeBase) -> None:
    at = atlas.documents.find()[0].document_id
    path = f"/v1/documents/{at}/facts"
    twice = body_of(operator.post(path, json={"text": "Peru", "reason": "r"}), 422)
    assert f"begins at 0, {TEXT.rindex('Peru')}." in twice["detail"]
    over = {"start": TEXT.index("Lima") - 3, "end": TEXT.index("Lima") + 4, "reason": "r"}
    taken = body_of(operator.post(path, json=over), 409)
    assert taken["about"]["fact_ids"] == [atlas.facts.find(text="Lima")[0].fact_id]
    body_of(operator.post("/v1/documents/999/facts", json={"text": "Peru", "reason": "r"}), 404)
    body_of(operator.post("/v1/changes/999/undo", json={"reason": "r"}), 404)


def test_an_undone_delete_is_found_again(operator: Client, fact_id: int) -> None:
    body = {"fact_ids": [fact_id], "reason": "r"}
    gone = body_of(operator.request("DELETE", "/v1/facts", json=body))
    assert look_up(operator, CAPITAL, gone["min_seq"]) == []
    back = body_of(operator.post(f"/v1/changes/{gone['seq']}/undo", json={"reason": "r"}))
    assert back["kind"] == "restore" and look_up(operator, CAPITAL, back["min_seq"]) == ["Lima"]
    assert look_up(operator, LAKE) == ["Titicaca"]
