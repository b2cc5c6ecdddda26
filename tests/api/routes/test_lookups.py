from __future__ import annotations

from typing import Any

import numpy as np

from colmlm.api.app import create_app
from colmlm.api.middleware.limiters import SIZES, Limiter, LimiterSize, Tuning
from colmlm.kb.access.tokens import create_token
from colmlm.kb.service import KnowledgeBase
from tests.api.conftest import CAPITAL, LAKE, TEXT, Client, Connect
from tests.fakes import FakeEncoder


def test_questions_and_queries_are_answered_in_order(reader: Client, encoder: FakeEncoder) -> None:
    (query,) = encoder.encode_questions([CAPITAL]).tolist()
    body = {"questions": [LAKE, "Unheard of?"], "queries": [query], "checkpoint_id": "fake", "k": 2}
    answers = reader.post("/v1/lookups", json=body).json()["answers"]
    assert [[hit["value"] for hit in a["hits"]] for a in answers] == [["Titicaca"], [], ["Lima"]]
    assert [a["question"] for a in answers] == [LAKE, "Unheard of?", None]
    assert answers[1]["runner_up"] < answers[1]["threshold"]


def test_threshold_of_the_request_counts(reader: Client) -> None:
    answer = reader.post("/v1/lookups", json={"questions": ["Unheard of?"], "threshold": -1, "k": 5}).json()
    assert len(answer["answers"][0]["hits"]) == 2


def test_questions_and_texts_beside_queries_are_ranked_by_more_than_their_keys(
    reader: Client, encoder: FakeEncoder
) -> None:
    (query,) = encoder.encode_questions(["Unheard of?"]).tolist()
    body = {
        "questions": [CAPITAL],
        "queries": [query],
        "texts": [LAKE + " The great lake is"],
        "checkpoint_id": "fake",
    }
    by_key = reader.post("/v1/lookups", json=body).json()["answers"]
    assert [len(a["hits"]) for a in by_key] == [1, 0]
    read = reader.post("/v1/lookups", json={**body, "ranking": "reader"}).json()["answers"]
    assert [a["hits"][0]["value"] for a in read] == ["Lima", "Titicaca"]
    assert [a["hits"][0]["key_id"] for a in read] == [None, None] and read[0]["threshold"] == 0.5
    by_words = reader.post("/v1/lookups", json={**body, "ranking": "words", "threshold": -1}).json()[
        "answers"
    ]
    assert [a["hits"][0]["value"] for a in by_words] == ["Lima", "Titicaca"]


def test_a_ranking_that_reads_needs_a_reader(
    atlas: KnowledgeBase, encoder: FakeEncoder, connect: Connect
) -> None:
    client = connect(create_app(atlas, encoder), "reader")
    asked = {"questions": [CAPITAL], "ranking": "reader"}
    assert client.post("/v1/lookups", json=asked).status_code == 503
    assert client.post("/v1/lookups", json={**asked, "ranking": "words"}).status_code == 200


REFUSED: list[tuple[dict[str, Any], int]] = [
    ({}, 422),
    ({"questions": []}, 422),
    ({"queries": [[1.0] * 32]}, 422),
    ({"queries": [[1.0] * 31], "checkpoint_id": "fake"}, 422),
    ({"queries": [[1.0] * 32, [1.0] * 31], "checkpoint_id": "fake"}, 422),
    ({"queries": [[1e300] * 32], "checkpoint_id": "fake"}, 422),
    ({"queries": [[1.0] * 32], "checkpoint_id": "another"}, 409),
    ({"questions": ["x"], "checkpoint_id": "another"}, 409),
    ({"questions": ["x"] * 40, "queries": [[1.0] * 32] * 40, "checkpoint_id": "fake"}, 422),
    ({"questions": ["x"] * 65}, 400),
    ({"questions": ["x"], "k": 0}, 400),
    ({"questions": ["x"], "k": 101}, 400),
    ({"questions": ["x"], "k": True}, 400),
    ({"questions": ["x"], "threshold": 2}, 400),
    ({"questions": ["x"], "treshold": 0.5}, 400),
    ({"questions": [""]}, 400),
    ({"questions": ["x" * 2001]}, 400),
    ({"questions": "x"}, 400),
    ({"queries": [["a"]], "checkpoint_id": "fake"}, 400),
    ({"questions": ["x"], "min_seq": -1}, 400),
    ({"questions": ["x"], "ranking": "guess"}, 400),
    ({"questions": ["x"], "ranking": "words", "k": 2}, 422),
    ({"questions": ["x"], "ranking": "words", "texts": ["y"]}, 422),
    ({"queries": [[1.0] * 32], "checkpoint_id": "fake", "ranking": "reader"}, 422),
    ({"questions": ["x"], "min_seq": 2**63}, 400),
]


def test_lookups_that_cannot_be_answered_are_refused(reader: Client) -> None:
    for body, status in REFUSED:
        answer = reader.post("/v1/lookups", json=body)
        assert answer.status_code == status, (body, answer.text)
        assert answer.headers["content-type"] == "application/problem+json", body


def test_questions_need_an_encoder_and_queries_do_not(
    atlas: KnowledgeBase, encoder: FakeEncoder, connect: Connect
) -> None:
    reader = connect(create_app(atlas), "reader")
    refused = reader.post("/v1/lookups", json={"questions": [CAPITAL]})
    assert refused.status_code == 503 and "COLMLM_CHECKPOINT" in refused.json()["detail"]
    queries = encoder.encode_questions([CAPITAL]).tolist()
    answer = reader.post("/v1/lookups", json={"queries": queries, "checkpoint_id": "fake"})
    assert answer.json()["answers"][0]["hits"][0]["value"] == "Lima"


def test_without_an_active_keyset_there_is_nothing_to_ask(
    kb: KnowledgeBase, encoder: FakeEncoder, connect: Connect
) -> None:
    answer = connect(create_app(kb, encoder), "reader").post("/v1/lookups", json={"questions": [CAPITAL]})
    assert (answer.status_code, answer.json()["type"]) == (409, "urn:colmlm:NoActiveKeyset")


def test_keys_are_made_for_those_who_store_them_themselves(reader: Client, encoder: FakeEncoder) -> None:
    document = {"text": TEXT, "facts": [{"start": 23, "end": 27}]}
    made = reader.post("/v1/encodings", json={"questions": [CAPITAL], "documents": [document]}).json()
    assert made["checkpoint_id"] == "fake"
    np.testing.assert_allclose(made["questions"], encoder.encode_questions([CAPITAL]), atol=1e-6)
    assert [len(rows) for rows in made["documents"]] == [1]
    for span in ({"start": 27, "end": 23}, {"start": 0, "end": len(TEXT) + 1}):
        body = {"documents": [{"text": TEXT, "facts": [span]}]}
        assert reader.post("/v1/encodings", json=body).status_code == 422


def test_keys_of_many_documents_are_limited_together(reader: Client) -> None:
    def asked(num_documents: int, num_facts: int, num_chars: int, title: str = "") -> int:
        facts = [{"start": at, "end": at + 1} for at in range(num_facts)]
        document = {"text": "x" * num_chars, "title": title, "facts": facts}
        answer = reader.post("/v1/encodings", json={"documents": [document] * num_documents})
        if answer.status_code == 422:
            assert f"{num_documents * num_facts:,} facts" in answer.json()["detail"]
        return answer.status_code

    assert [asked(4, 250, 250), asked(1, 1000, 1000), asked(2, 1, 100_000)] == [200, 200, 200]
    assert [asked(5, 201, 201), asked(64, 1000, 1000), asked(2, 1, 100_001)] == [422, 422, 422]
    assert asked(20, 1, 1000, "t" * 9_500) == 422
    assert [asked(1, 1001, 1001), asked(1, 1, 200_001)] == [400, 400]


def test_keys_of_documents_take_no_place_of_questions_that_are_read(
    atlas: KnowledgeBase, encoder: FakeEncoder, connect: Connect
) -> None:
    sizes = {limiter: LimiterSize(1, 1 if limiter is Limiter.long_reads else 4) for limiter in SIZES}
    app = create_app(atlas, encoder, tuning=Tuning(limiters=sizes))
    client = connect(app, "reader")
    document = {"text": TEXT, "facts": [{"start": 23, "end": 27}]}
    with app.gate.limiters.slot(Limiter.long_reads):
        refused = client.post("/v1/encodings", json={"documents": [document]})
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert client.post("/v1/encodings", json={"questions": [CAPITAL]}).status_code == 200
    assert client.post("/v1/encodings", json={"documents": [document]}).status_code == 200


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
