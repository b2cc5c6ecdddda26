"""Misses and feedback over HTTP: a miss is turned into a fact that answers, and who may do what."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from colmlm.kb.facts.redaction import MARK
from colmlm.kb.service import KnowledgeBase
from tests.api.conftest import CAPITAL, Client, body_of


@pytest.fixture
def operator_token(new_token: Callable[[str], str]) -> str:
    return new_token("operator")


def ask(client: Client, question: str) -> Any:
    return body_of(client.post("/v1/answers", json={"question": question}))


def test_a_miss_becomes_a_fact_that_answers(operator: Client, atlas: KnowledgeBase) -> None:
    missed = [ask(operator, "Who wrote Emma?") for _ in range(2)]
    assert all(one["answer"] is None for one in missed)
    listed = body_of(operator.get("/v1/misses"))
    (group,) = listed["items"]
    assert (group["question"], group["asked"], listed["total"]) == ("Who wrote Emma?", 2, 1)
    assert [near["fact_id"] for near in group["nearest"]], "by the query that was kept"
    shown = body_of(operator.get(f"/v1/misses/{group['group_id']}"))
    assert shown["questions"][0]["generation_id"] == missed[1]["generation_id"]
    body = {"question": "Who wrote Emma?", "value": "Jane Austen", "reason": "was missing"}
    (fact,) = body_of(operator.post("/v1/facts", json=body), 201)["fact_ids"]
    solution = {"fact_id": fact, "reason": "added for it"}
    solved = body_of(operator.post(f"/v1/misses/{group['group_id']}/solve", json=solution))
    assert solved["solved"] and [one["found"] for one in solved["asked"]] == [True]
    assert ask(operator, "Who wrote Emma?")["answer"] == "Jane Austen"
    assert body_of(operator.get("/v1/misses"))["items"] == []
    (group,) = body_of(operator.get("/v1/misses?state=solved"))["items"]
    assert (group["fact_id"], group["decision"]["kind"]) == (fact, "solve-misses")
    again = body_of(operator.post(f"/v1/misses/{group['group_id']}/solve", json=solution), 409)
    assert again["type"].endswith("MissGroupState")


def test_a_fact_that_the_questions_do_not_find_solves_nothing_unless_asked_to(
    operator: Client, fact_id: int
) -> None:
    ask(operator, "Who wrote Emma?")
    (group,) = body_of(operator.get("/v1/misses"))["items"]
    path, body = f"/v1/misses/{group['group_id']}/solve", {"fact_id": fact_id, "reason": "a try"}
    assert body_of(operator.post(path, json=body))["solved"] is False
    assert body_of(operator.post(path, json=body | {"anyway": True}))["solved"] is True
    body = {"group_ids": [group["group_id"]], "reason": "it is not"}
    assert body_of(operator.post("/v1/misses/reopen", json=body))["seq"] > 0
    assert body_of(operator.get("/v1/misses"))["total"] == 1


def test_a_reader_sees_misses_and_decides_nothing(reader: Client) -> None:
    ask(reader, "Who wrote Emma?")
    (group,) = body_of(reader.get("/v1/misses?nearest=0"))["items"]
    assert group["nearest"] == []
    body = {"group_ids": [group["group_id"]], "reason": "not ours"}
    assert reader.post("/v1/misses/dismiss", json=body).status_code == 403
    assert reader.get("/v1/misses/998").status_code == 404


def test_a_thumb_down_puts_an_output_on_the_list(
    reader: Client, operator_token: str, atlas: KnowledgeBase, fact_id: int
) -> None:
    output = ask(reader, CAPITAL)["generation_id"]
    body = {"thumb": "down", "comment": "the seat moved", "value": "Cusco", "on_behalf_of": "ann"}
    given = body_of(reader.post(f"/v1/generations/{output}/feedback", json=body), 201)
    assert (given["thumb"], given["actor"], given["on_behalf_of"]) == ("down", "the reader", "ann")
    listed = body_of(reader.get("/v1/generations?feedback=down"))["items"]
    assert [(one["generation_id"], one["down"]) for one in listed] == [(output, 1)]
    assert body_of(reader.get("/v1/generations?feedback=up"))["items"] == []
    (group,) = body_of(reader.get("/v1/misses"))["items"]
    assert (group["wrong"], group["question"]) == (1, CAPITAL)
    (shown,) = body_of(reader.get(f"/v1/generations/{output}"))["feedback"]
    assert (shown["thumb"], shown["comment"], shown["value"]) == ("down", None, None), "it may say the past"
    operator = {"Authorization": f"Bearer {operator_token}"}
    (shown,) = body_of(reader.get(f"/v1/generations/{output}", headers=operator))["feedback"]
    assert (shown["comment"], shown["value"]) == ("the seat moved", "Cusco")
    refused = reader.post(f"/v1/generations/{output}/feedback", json={"thumb": "sideways"})
    assert refused.status_code == 400


def test_a_past_value_in_a_question_is_withheld_from_readers(
    reader: Client, operator_token: str, atlas: KnowledgeBase, fact_id: int
) -> None:
    question = f"{CAPITAL} Is it Lima?"
    asked = reader.post("/v1/generations", json={"prompt": CAPITAL})
    output = body_of(asked, 201)["generation_id"]
    with atlas.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE generation SET prompt = %s WHERE id = %s", (question, output))
    body_of(reader.post(f"/v1/generations/{output}/feedback", json={"thumb": "down"}), 201)
    atlas.facts.edit(fact_id, "Cusco", actor="ann", reason="moved")
    (group,) = body_of(reader.get("/v1/misses"))["items"]
    assert "Lima" not in group["question"] and MARK in group["question"]
    operator = {"Authorization": f"Bearer {operator_token}"}
    assert "Lima" in body_of(reader.get("/v1/misses", headers=operator))["items"][0]["question"]
