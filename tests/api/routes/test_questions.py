"""Kept questions over HTTP: sets, runs, comparisons, and who may do what with them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from colmlm.kb.answers.answering import Answering
from colmlm.kb.lookup.questions import Questions
from colmlm.kb.questions.asking import ByAnswers
from colmlm.kb.service import KnowledgeBase
from tests.api.conftest import CAPITAL, LAKE, Client, body_of
from tests.fakes import FakeEncoder, NearReader

Headers = dict[str, str]
KEPT = {
    "questions": [{"question": CAPITAL, "expected": ["Lima"]}, {"question": "Who rules?"}],
    "corpus": "atlas",
}


@pytest.fixture
def as_reader(new_token: Callable[[str], str]) -> Headers:
    return {"Authorization": f"Bearer {new_token('reader')}"}


@pytest.fixture
def asker(atlas: KnowledgeBase, encoder: FakeEncoder) -> ByAnswers:
    return ByAnswers(Answering(atlas, Questions(atlas, [encoder]), NearReader()))


def test_a_set_is_kept_shown_edited_and_dropped(operator: Client, as_reader: Headers) -> None:
    kept = body_of(operator.post("/v1/questions/lands", json=KEPT))
    assert (kept["name"], kept["corpus"], kept["num_questions"], kept["actor"]) == (
        "lands", "atlas", 2, "the operator",
    )  # fmt: skip
    assert (
        body_of(operator.get("/v1/questions", headers=as_reader))["items"]
        == [kept]
        == [body_of(operator.get("/v1/questions/lands", headers=as_reader))]
    )
    page = body_of(operator.get("/v1/questions/lands/items?limit=1", headers=as_reader))
    (first,) = page["items"]
    assert (first["question"], first["expected"]) == (CAPITAL, ["Lima"])
    (second,) = body_of(operator.get(f"/v1/questions/lands/items?cursor={page['next']}", headers=as_reader))[
        "items"
    ]
    body = {"question": LAKE, "expected": ["Titicaca"]}
    body_of(operator.put(f"/v1/questions/lands/items/{second['question_id']}", json=body))
    assert body_of(operator.get("/v1/questions/lands/items", headers=as_reader))["items"][1]["expected"] == [
        "Titicaca"
    ]
    ids = {"question_ids": [first["question_id"]]}
    assert body_of(operator.request("DELETE", "/v1/questions/lands/items", json=ids))["num_questions"] == 2
    assert body_of(operator.request("DELETE", "/v1/questions/lands/items", json=ids), 404)["type"].endswith(
        "QuestionNotFound"
    )
    assert body_of(operator.delete("/v1/questions/lands"))["num_questions"] == 1
    body_of(operator.get("/v1/questions/lands", headers=as_reader), 404)


def test_a_question_is_taken_from_an_output(operator: Client) -> None:
    output = body_of(operator.post("/v1/answers", json={"question": CAPITAL}))["generation_id"]
    body_of(operator.post("/v1/questions/seen/outputs", json={"generation_id": output}))
    (kept,) = body_of(operator.get("/v1/questions/seen/items"))["items"]
    assert (kept["question"], kept["expected"], len(kept["fact_ids"])) == (CAPITAL, ["Lima"], 1)
    body_of(operator.post("/v1/questions/seen/outputs", json={"generation_id": 998}), 404)


def test_runs_are_listed_and_compared(
    operator: Client, as_reader: Headers, atlas: KnowledgeBase, asker: ByAnswers, fact_id: int
) -> None:
    body_of(operator.post("/v1/questions/lands", json=KEPT))
    body_of(operator.get("/v1/questions/lands/comparison", headers=as_reader), 422)
    before = atlas.questions.run("lands", asker, actor="ann")
    atlas.facts.edit(fact_id, "Cusco", actor="ann", reason="r")
    after = atlas.questions.run("lands", asker, actor="ann")
    runs = body_of(operator.get("/v1/questions/lands/runs?limit=1", headers=as_reader))
    assert [run["run_id"] for run in runs["items"]] == [after.run_id] and runs["items"][0]["right"] == 1
    older = body_of(operator.get(f"/v1/questions/lands/runs?cursor={runs['next']}", headers=as_reader))
    assert [run["run_id"] for run in older["items"]] == [before.run_id] and older["next"] is None
    items = body_of(operator.get(f"/v1/questions/lands/runs/{before.run_id}/items?limit=1"))
    assert items["items"][0]["value"] == "Lima"
    more = body_of(operator.get(f"/v1/questions/lands/runs/{before.run_id}/items?cursor={items['next']}"))
    assert [one["outcome"] for one in more["items"]] == ["right"] and more["next"] is None
    masked = body_of(operator.get(f"/v1/questions/lands/runs/{before.run_id}/items", headers=as_reader))[
        "items"
    ]
    assert "Lima" not in str(masked)
    found = body_of(operator.get("/v1/questions/lands/comparison"))
    (changed,) = found["items"]
    assert (changed["before"]["value"], changed["after"]["value"]) == ("Lima", "Cusco")
    assert found["changes"] == {"update": 1} and changed["seqs"] == [atlas.log.head_seq()]
    turned = f"/v1/questions/lands/comparison?before={after.run_id}&after={before.run_id}"
    assert body_of(operator.get(turned))["before"]["run_id"] == after.run_id
    body_of(operator.get("/v1/questions/lands/runs/998", headers=as_reader), 404)


def test_a_set_is_asked_by_a_job(operator: Client, as_reader: Headers) -> None:
    job = body_of(operator.post("/v1/jobs/ask-questions", json={"question_set": "lands"}), 202)
    assert (job["kind"], job["arguments"]["question_set"]) == ("ask-questions", "lands")
    body_of(operator.post("/v1/jobs/ask-questions", headers=as_reader, json={"question_set": "lands"}), 403)
    both = {"question_set": "lands", "mode": "paper", "ranking": "words"}
    body_of(operator.post("/v1/jobs/ask-questions", json=both), 422)


def test_what_is_no_set_is_refused(operator: Client, as_reader: Headers) -> None:
    body_of(operator.post("/v1/questions/lands", headers=as_reader, json=KEPT), 403)
    body_of(operator.post("/v1/questions/a%20b", json=KEPT), 422)
    body_of(operator.post("/v1/questions/lands", json={"questions": [{"question": " "}]}), 422)
    body_of(operator.post("/v1/questions/lands", json={"questions": [{"question": ""}]}), 400)
    body_of(operator.post("/v1/questions/lands", json={"questions": [], "corpus": "nowhere"}), 404)
    body_of(operator.get("/v1/questions/a%00b", headers=as_reader), 404)
