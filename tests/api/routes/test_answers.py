"""Answers over HTTP: the words of a document with their place, or null."""

from __future__ import annotations

from dataclasses import replace

from colmlm.api.app import create_app
from colmlm.kb.answers.calibrations import AnswerCalibrations
from colmlm.kb.answers.records import Answer, AnswerShares, MeasuredAnswers
from colmlm.kb.service import KnowledgeBase
from tests.api.conftest import CAPITAL, TEXT, Client, Connect
from tests.fakes import FakeEncoder, NearReader
from tests.kb.corpora import document, ingest


def test_a_question_is_answered_with_its_place(reader: Client, fact_id: int) -> None:
    said = reader.post("/v1/answers", json={"question": CAPITAL}).json()
    assert set(said) == set(Answer.__dataclass_fields__)
    assert said["answer"] == "Lima" and said["facts"] == [
        {
            "fact_id": fact_id,
            "version": 1,
            "value": "Lima",
            "review": "accepted",
            "entered_by": None,
            "entered_seq": None,
        }
    ]
    assert TEXT[said["source"]["start"] : said["source"]["end"]] == "Lima"
    assert said["source"]["external_id"] == "peru" and said["nearest"][0]["source"]["title"] == "Peru"


def test_what_nothing_answers_is_null_and_not_an_error(reader: Client) -> None:
    response = reader.post("/v1/answers", json={"question": "Unheard of?", "nearest": 0})
    assert response.status_code == 200
    assert response.json()["answer"] is None and response.json()["nearest"] == []


def test_each_answer_is_stored_as_an_output(reader: Client, fact_id: int) -> None:
    asked = [reader.post("/v1/answers", json={"question": one}).json() for one in (CAPITAL, "Unheard of?")]
    listed = reader.get("/v1/generations").json()["items"]
    assert [one["generation_id"] for one in asked] == [one["generation_id"] for one in listed[::-1]]
    assert [(one["mode"], one["abstained"], one["uncited"], one["num_hits"]) for one in listed] == [
        ("read", True, False, 0),
        ("read", False, False, 1),
    ]
    trace = reader.get(f"/v1/generations/{asked[0]['generation_id']}").json()
    assert trace["quotes"] == asked[0]["source"] and trace["output"] == "Lima"
    (splice,) = trace["splices"]
    assert (splice["fact_id"], splice["part_start"], splice["score"]) == (fact_id, None, asked[0]["score"])
    used = reader.get(f"/v1/facts/{fact_id}/trace").json()["uses"]
    assert [one["generation_id"] for one in used] == [asked[0]["generation_id"]]


def test_a_server_that_keeps_no_answers_says_so(
    atlas: KnowledgeBase, encoder: FakeEncoder, connect: Connect
) -> None:
    atlas.settings = replace(atlas.settings, keep_answers=False)
    client = connect(create_app(atlas, encoder, reader=NearReader()), "reader")
    said = client.post("/v1/answers", json={"question": CAPITAL}).json()
    assert (said["answer"], said["generation_id"]) == ("Lima", None)
    assert client.get("/v1/generations").json()["items"] == []


def test_a_deleted_fact_is_not_said_nor_shown(reader: Client, atlas: KnowledgeBase, fact_id: int) -> None:
    atlas.facts.delete([fact_id], actor="tester", reason="test")
    response = reader.post("/v1/answers", json={"question": CAPITAL})
    said = response.json()
    assert said["answer"] is None and said["withheld"] and "Lima" not in response.text


def test_only_documents_of_the_named_corpora_answer(reader: Client, atlas: KnowledgeBase) -> None:
    more = document("other", "The capital of Peru is ", ("Cusco", CAPITAL), ".")
    ingest(atlas, more, corpus="rumours")
    (corpus,) = {one.corpus for one in atlas.corpora.all()} - {"rumours"}
    for corpora, answer in (([corpus], "Lima"), (["rumours"], "Cusco")):
        said = reader.post("/v1/answers", json={"question": CAPITAL, "corpora": corpora}).json()
        sources = [said["source"], *(passage["source"] for passage in said["nearest"])]
        assert said["answer"] == answer and {source["corpus"] for source in sources} == set(corpora)
    refused = reader.post("/v1/answers", json={"question": CAPITAL, "corpora": [corpus, "none"]})
    assert refused.status_code == 404 and "'none'" in refused.json()["detail"]


def test_the_papers_mode_takes_the_nearest_fact(reader: Client) -> None:
    said = reader.post("/v1/answers", json={"question": CAPITAL, "mode": "paper"}).json()
    assert said["answer"] == "Lima" and said["nearest"] == []


def test_questions_that_are_none_are_refused_by_name(reader: Client) -> None:
    for body, status in (
        ({"question": ""}, 400),
        ({"question": " "}, 422),
        ({"question": "x" * 2001}, 400),
        ({"question": "What\0?"}, 422),
        ({"question": CAPITAL, "threshold": -0.5}, 422),
        ({"question": CAPITAL, "mode": "guess"}, 400),
        ({}, 400),
    ):
        assert reader.post("/v1/answers", json=body).status_code == status, body


def test_a_server_without_a_reader_says_so(
    atlas: KnowledgeBase, encoder: FakeEncoder, connect: Connect
) -> None:
    response = connect(create_app(atlas, encoder), "reader").post("/v1/answers", json={"question": CAPITAL})
    assert response.status_code == 503 and "reader" in response.json()["detail"]


def test_the_threshold_is_read_and_taken_back(operator: Client, atlas: KnowledgeBase) -> None:
    shipped = operator.get("/v1/answers/threshold").json()
    assert (shipped["calibrated"], shipped["threshold"], shipped["calibration"]) == (False, 0.5, None)
    here = AnswerShares(0.9999, 0.5, 0.1, 0.02, 0.01)
    AnswerCalibrations(atlas, NearReader().digest, 0.5).store_measured(
        MeasuredAnswers(here, here, 0.05, 0.04, 0.03, 100, 90),
        given=100, corpora=(), seconds=1.0, actor="tester", reason="test",
    )  # fmt: skip
    assert operator.post("/v1/answers", json={"question": CAPITAL}).json()["answer"] is None
    standing = operator.get("/v1/answers/threshold").json()
    assert standing["calibrated"] and standing["calibration"]["measured"]["here"]["threshold"] == 0.9999
    taken = operator.request("DELETE", "/v1/answers/threshold", json={"reason": "test"})
    assert taken.status_code == 200 and taken.json() == shipped
    assert operator.post("/v1/answers", json={"question": CAPITAL}).json()["answer"] == "Lima"
