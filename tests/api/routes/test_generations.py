from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from colmlm.api.app import create_app
from colmlm.api.middleware.gate import GatedApp
from colmlm.api.middleware.limiters import SIZES, Limiter, LimiterSize, Tuning
from colmlm.api.routes.responses import check_client
from colmlm.kb.evidence.generation import GenerationRequest
from colmlm.kb.evidence.records import OutputTrace
from colmlm.kb.service import KnowledgeBase
from tests.api.conftest import CAPITAL, TEXT, Client, Connect
from tests.api.generator import BEFORE, LookupGenerator
from tests.api.serving import served
from tests.fakes import FakeEncoder

SLOTS = SIZES[Limiter.decoding].slots


def events(text: str) -> list[tuple[str, Any]]:
    blocks = [
        dict(line.split(": ", 1) for line in block.splitlines()) for block in text.strip().split("\r\n\r\n")
    ]
    return [(block["event"], json.loads(block["data"])) for block in blocks if "event" in block]


DECODED = {"prompt": CAPITAL, "ranking": "key"}  # whoever says what facts are found by wants it decoded


def test_output_names_the_fact_behind_each_span(reader: Client, fact_id: int) -> None:
    answer = reader.post("/v1/generations", json=DECODED)
    trace = answer.json()
    assert answer.status_code == 201 and trace["output"] == f"{BEFORE}Lima."
    (splice,) = trace["splices"]
    assert trace["output"][splice["output_start"] : splice["output_end"]] == splice["value"] == "Lima"
    assert (splice["fact_id"], splice["live"], splice["source"]["title"]) == (fact_id, True, "Peru")
    assert reader.get(f"/v1/generations/{trace['generation_id']}").json() == trace
    (listed,) = reader.get("/v1/generations").json()["items"]
    assert (listed["generation_id"], listed["num_hits"]) == (trace["generation_id"], 1)


def test_auditors_learn_who_asked_for_an_output(operator: Client, reader: Client, fact_id: int) -> None:
    by_reader = reader.post("/v1/generations", json=DECODED).json()["generation_id"]
    asked = reader.post("/v1/answers", json={"question": CAPITAL}).json()["generation_id"]
    made = operator.post("/v1/generations", json=DECODED).json()
    by_operator, told = made["generation_id"], made["principal"]["name"]
    items = operator.get("/v1/generations").json()["items"]
    who = {item["generation_id"]: item["principal"] for item in items}
    named = [who[one]["name"] for one in (by_reader, asked, by_operator)]
    assert named == ["the reader", "the reader", told] and told == "the operator"
    assert operator.get(f"/v1/generations/{asked}").json()["principal"] == who[asked]
    found = operator.get("/v1/generations", params={"principal": "the reader"}).json()["items"]
    assert [item["generation_id"] for item in found] == [asked, by_reader]
    shown = {
        item["generation_id"]: item.get("principal") for item in reader.get("/v1/generations").json()["items"]
    }
    assert shown == who | {by_operator: None}, "but for its own it is not told who asked"
    assert reader.get(f"/v1/generations/{by_operator}").json().get("principal") is None
    assert reader.get("/v1/generations", params={"principal": "the reader"}).status_code == 403


def test_what_a_corrected_fact_said_is_not_told_with_a_new_output(
    operator: Client, reader: Client, fact_id: int
) -> None:
    said = {"value": "Cusco", "reason": "moved"}
    edit = operator.patch(f"/v1/facts/{fact_id}", json=said).json()
    asked = DECODED | {"min_seq": edit["min_seq"]}
    for client, document_says in ((operator, "Lima"), (reader, "████")):
        (splice,) = client.post("/v1/generations", json=asked).json()["splices"]
        assert (splice["value"], splice["document_says"]) == ("Cusco", document_says)
        (_, streamed) = events(client.post("/v1/generations", json=asked | {"stream": True}).text)[-1]
        assert streamed["splices"][0]["document_says"] == document_says


def test_deleted_fact_is_spliced_no_more_and_the_old_output_says_so(operator: Client, fact_id: int) -> None:
    before = operator.post("/v1/generations", json=DECODED).json()
    edit = operator.request("DELETE", "/v1/facts", json={"fact_ids": [fact_id], "reason": "wrong"}).json()
    after = operator.post("/v1/generations", json=DECODED | {"min_seq": edit["min_seq"]}).json()
    assert "Lima" not in after["output"] and [s["outcome"] for s in after["splices"]] == ["no_match"]
    (splice,) = operator.get(f"/v1/generations/{before['generation_id']}").json()["splices"]
    assert not splice["live"] and splice["value"] == "Lima"
    assert [c["reason"] for c in splice["history"]][-1] == "wrong"
    uses = operator.get(f"/v1/facts/{fact_id}/trace").json()["uses"]
    assert [use["generation_id"] for use in uses] == [before["generation_id"]]


def test_stream_gives_the_pieces_and_then_the_stored_trace(reader: Client) -> None:
    answer = reader.post("/v1/generations", json={"prompt": CAPITAL, "stream": True})
    assert answer.status_code == 201
    assert answer.headers["content-type"].startswith("text/event-stream")
    *parts, (last, trace) = events(answer.text)
    assert last == "trace"
    assert "".join(data["text"] for name, data in parts if name == "piece") == trace["output"]
    assert reader.get(f"/v1/generations/{trace['generation_id']}").json() == trace


def test_stream_tells_each_splice_when_its_value_is_there(reader: Client, fact_id: int) -> None:
    answer = reader.post("/v1/generations", json=DECODED | {"stream": True})
    parts = events(answer.text)
    assert [name for name, _ in parts] == ["piece", "piece", "splice", "piece", "finish", "trace"]
    splice, shown = parts[2][1], "".join(data["text"] for _, data in parts[:2])
    assert shown[splice["output_start"] :] == splice["value"] == "Lima" and splice["fact_id"] == fact_id
    assert splice["output_end"] == len(shown) and splice["score"] > 0.99
    document = splice["document"]
    assert (document["title"], document["start"], document["end"]) == (
        "Peru",
        TEXT.index("Lima"),
        TEXT.index("Lima") + 4,
    )
    missed = reader.post("/v1/generations", json=DECODED | {"prompt": "Unheard of?", "stream": True})
    assert [name for name, _ in events(missed.text)] == [
        "piece",
        "piece",
        "no_match",
        "piece",
        "finish",
        "trace",
    ]


def test_a_question_is_answered_as_ask_does(operator: Client, fact_id: int) -> None:
    asked = {"prompt": CAPITAL}
    answer = operator.post("/v1/answers", json={"question": CAPITAL}).json()
    trace = operator.post("/v1/generations", json=asked).json()
    assert (trace["output"], trace["mode"], trace["prompt"]) == (answer["answer"], "read", CAPITAL)
    assert [splice["fact_id"] for splice in trace["splices"]] == [fact_id]
    *_, (last, streamed) = parts = events(
        operator.post("/v1/generations", json={**asked, "stream": True}).text
    )
    assert [name for name, _ in parts] == ["piece", "splice", "finish", "trace"] and last == "trace"
    assert parts[1][1]["value"] == parts[0][1]["text"] == streamed["output"] == "Lima"
    edit = operator.request("DELETE", "/v1/facts", json={"fact_ids": [fact_id], "reason": "wrong"}).json()
    after = operator.post("/v1/generations", json={**asked, "min_seq": edit["min_seq"]}).json()
    assert (after["output"], [s["outcome"] for s in after["splices"]]) == ("", ["abstained"])


def test_a_question_that_nothing_answers_is_a_result_of_its_own(reader: Client) -> None:
    asked = {"prompt": "Question: Unheard of? Answer:"}
    trace = reader.post("/v1/generations", json=asked).json()
    assert (trace["output"], trace["abstained"]) == ("", True)
    streamed = events(reader.post("/v1/generations", json={**asked, "stream": True}).text)
    assert [name for name, _ in streamed] == ["no_match", "finish", "trace"]
    going_on = reader.post("/v1/generations", json={**asked, "on_miss": "continue"}).json()
    assert going_on["output"] and not going_on["abstained"]
    assert reader.post("/v1/generations", json={**asked, "on_miss": "guess"}).status_code == 400


def test_an_output_names_what_its_facts_were_found_by(reader: Client) -> None:
    for ranking in ("key", "words", "reader"):
        trace = reader.post("/v1/generations", json={"prompt": CAPITAL, "ranking": ranking}).json()
        (listed, *_) = reader.get("/v1/generations").json()["items"]
        assert trace["ranking"] == listed["ranking"] == ranking
    assert reader.post("/v1/generations", json={"prompt": CAPITAL, "ranking": "guess"}).status_code == 400


def test_what_refuses_a_generation_has_its_status_also_as_a_stream(reader: Client) -> None:
    for stream in (False, True):
        answer = reader.post("/v1/generations", json={"prompt": CAPITAL, "min_seq": 10_000, "stream": stream})
        assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")


def test_every_field_reaches_the_generator(
    atlas: KnowledgeBase, encoder: FakeEncoder, connect: Connect
) -> None:
    asked: list[GenerationRequest] = []

    class Listening(LookupGenerator):
        def generate(self, request: GenerationRequest) -> OutputTrace:
            asked.append(request)
            return LookupGenerator.generate(self, request)

    reader = connect(create_app(atlas, encoder, Listening(atlas, encoder)), "reader")
    body = {
        "prompt": "x",
        "mode": "off",
        "max_tokens": 5,
        "temperature": 0.5,
        "top_p": 0.9,
        "repetition_penalty": 1.1,
        "stop": ["\n"],
        "seed": 7,
        "threshold": 0.3,
        "min_seq": 1,
        "on_miss": "abstain",
        "ranking": "reader",
    }
    assert reader.post("/v1/generations", json=body).status_code == 201
    assert reader.post("/v1/generations", json={"prompt": "x"}).status_code == 201
    assert asked == [GenerationRequest(**{**body, "stop": ("\n",)}), GenerationRequest(prompt="x")]  # type: ignore[arg-type]


class Failing(LookupGenerator):
    """Breaks after its first piece."""

    def stream(self, request: GenerationRequest) -> Iterator[str | OutputTrace]:
        yield "half"
        raise RuntimeError("a secret of the inside")


def failing(atlas: KnowledgeBase, encoder: FakeEncoder) -> GatedApp:
    return create_app(atlas, encoder, Failing(atlas, encoder))


def test_failure_on_the_way_ends_the_stream_with_a_problem(
    atlas: KnowledgeBase, encoder: FakeEncoder, connect: Connect
) -> None:
    reader = connect(failing(atlas, encoder), "reader")
    for _ in range(SLOTS + 1):  # each gives its slot back
        answer = reader.post("/v1/generations", json={"prompt": "x", "stream": True})
        (_, half), (name, problem) = events(answer.text)
        assert (half["text"], name, problem["status"]) == ("half", "error", 500)
        assert "secret" not in answer.text


def test_no_traceback_leaves_the_server(atlas: KnowledgeBase, encoder: FakeEncoder, connect: Connect) -> None:
    answer = connect(failing(atlas, encoder), "reader").post("/v1/generations", json={"prompt": "x"})
    assert answer.status_code == 500 and answer.headers["content-type"] == "application/problem+json"
    assert "secret" not in answer.text and "Traceback" not in answer.text


class Endless(LookupGenerator):
    """Has always one more piece to say, unless lookups are off."""

    def stream(self, request: GenerationRequest) -> Iterator[str | OutputTrace]:
        while request.mode != "off":
            yield "on and "
            time.sleep(0.01)
        yield from LookupGenerator.stream(self, request)


def test_client_that_leaves_gives_its_slot_back(
    atlas: KnowledgeBase, encoder: FakeEncoder, new_token: Callable[[str], str]
) -> None:
    app = create_app(atlas, encoder, Endless(atlas, encoder))
    headers = {"Authorization": f"Bearer {new_token('reader')}"}
    with served(app) as address, httpx.Client(base_url=address, headers=headers) as client:
        for _ in range(SLOTS):
            with client.stream("POST", "/v1/generations", json={"prompt": "x", "stream": True}) as answer:
                assert answer.status_code == 201
                next(answer.iter_bytes())
        statuses = []
        while statuses[-1:] != [201] and len(statuses) < 50:
            statuses.append(client.post("/v1/generations", json={"prompt": "x", "mode": "off"}).status_code)
            time.sleep(0.1)
        assert statuses[-1] == 201


class Waiting(Endless):
    """Decodes without end, and looks after each token whether anybody waits for it."""

    def generate(self, request: GenerationRequest) -> OutputTrace:
        while request.mode != "off":
            check_client()
            time.sleep(0.01)
        return LookupGenerator.generate(self, request)


def test_client_that_leaves_before_the_answer_gives_its_place_back(
    atlas: KnowledgeBase, encoder: FakeEncoder, new_token: Callable[[str], str]
) -> None:
    few = Tuning(limiters={**SIZES, Limiter.decoding: LimiterSize(2, 2)})
    app = create_app(atlas, encoder, Waiting(atlas, encoder), tuning=few)
    headers = {"Authorization": f"Bearer {new_token('reader')}"}
    limiters = app.gate.limiters
    with served(app) as address, httpx.Client(base_url=address, headers=headers) as client:
        for _ in range(3):
            with pytest.raises(httpx.ReadTimeout):
                client.post("/v1/generations", json={"prompt": "x"}, timeout=0.5)
            while limiters.slots_taken()[Limiter.decoding]:
                time.sleep(0.01)
        answer = client.post("/v1/generations", json={"prompt": "x", "mode": "off"}, timeout=20)
        assert answer.status_code == 201


def test_too_many_at_once_are_told_to_come_back(app: GatedApp, reader: Client) -> None:
    with ExitStack() as taken:
        for _ in range(SLOTS):
            taken.enter_context(app.gate.limiters.slot(Limiter.decoding))
        for stream in (False, True):
            answer = reader.post("/v1/generations", json={"prompt": "x", "stream": stream})
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
            assert "slots for decoding" in answer.json()["detail"]
    assert reader.post("/v1/generations", json={"prompt": "x"}).status_code == 201


def test_without_a_generator_there_is_a_remedy(
    atlas: KnowledgeBase, encoder: FakeEncoder, connect: Connect
) -> None:
    answer = connect(create_app(atlas, encoder), "reader").post("/v1/generations", json={"prompt": "x"})
    assert answer.status_code == 503 and "COLMLM_CHECKPOINT" in answer.json()["detail"]


def test_fields_out_of_range_are_named(reader: Client) -> None:
    refused: list[dict[str, Any]] = [
        {},
        {"prompt": ""},
        {"prompt": ""},
        {"prompt": "x", "mode": "always"},
        {"prompt": "x", "max_tokens": 0},
        {"prompt": "x", "max_tokens": 513},
        {"prompt": "x", "temperature": -1},
        {"prompt": "x", "top_p": 0},
        {"prompt": "x", "stop": ["x"] * 9},
        {"prompt": "x", "stop": [""]},
        {"prompt": "x", "seed": -1},
        {"prompt": "x", "unknown": 1},
    ]
    for body in refused:
        problem = reader.post("/v1/generations", json=body).json()
        assert problem["status"] == 400 and problem["errors"], body


def test_a_trace_is_told_in_the_terms_of_prov_where_it_is_asked_for(
    operator: Client, new_token: Callable[[str], str], atlas: KnowledgeBase, fact_id: int
) -> None:
    output = operator.post("/v1/generations", json={"prompt": CAPITAL}).json()["generation_id"]
    profile = 'application/ld+json; profile="http://www.w3.org/ns/prov#"'
    for path in (f"/v1/generations/{output}", f"/v1/facts/{fact_id}/trace"):
        told = operator.get(path, headers={"Accept": profile})
        assert told.headers["content-type"] == "application/ld+json" and "ns/prov#" in told.headers["link"]
        assert {"@context", "@graph"} == set(told.json())
        plain = operator.get(path, headers={"Accept": "application/provenance+json"})
        assert plain.headers["content-type"] == "application/provenance+json" and "entity" in plain.json()
        assert "@graph" not in operator.get(path).json()
    assert operator.get(
        f"/v1/generations/{output}", headers={"Accept": profile}
    ).json() == atlas.outputs.provenance(output, "prov")
    atlas.facts.edit(fact_id, "Cusco", actor="ana", reason="test")
    assert "Lima" in operator.get(f"/v1/facts/{fact_id}/trace", headers={"Accept": profile}).text
    readers = {"Accept": profile, "Authorization": f"Bearer {new_token('reader')}"}
    assert "Lima" not in operator.get(f"/v1/facts/{fact_id}/trace", headers=readers).text  # it is past
