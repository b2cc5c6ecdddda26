"""Lookups and outputs of decoders elsewhere: queries as bytes, and records that are evidence."""

from __future__ import annotations

import base64
import json
from typing import Any

import msgspec
import numpy as np
import pytest

from colmlm.kb.service import KnowledgeBase
from tests.api.conftest import CAPITAL, LAKE, TEXT, Client, Connect
from tests.fakes import DIM, FakeEncoder

OCTETS = {"Content-Type": "application/octet-stream"}
OF = {"checkpoint_id": "fake", "dim": DIM}


@pytest.fixture
def decoder(app: Any, connect: Connect) -> Client:
    return connect(app, "decoder")


def test_bytes_are_answered_as_json_is(decoder: Client, encoder: FakeEncoder) -> None:
    queries = encoder.encode_questions([CAPITAL, "Unheard of?", LAKE])
    body = {"queries": queries.tolist(), "checkpoint_id": "fake", "k": 2}
    expected = decoder.post("/v1/lookups", json=body).json()
    assert [[hit["value"] for hit in a["hits"]] for a in expected["answers"]] == [["Lima"], [], ["Titicaca"]]
    sent = {"params": {**OF, "k": 2}, "content": queries.astype("<f4").tobytes()}
    as_json = decoder.post("/v1/lookups", headers=OCTETS, **sent)
    packed = decoder.post("/v1/lookups", headers={**OCTETS, "Accept": "application/msgpack"}, **sent)
    assert as_json.json() == msgspec.msgpack.decode(packed.content) == expected
    assert (as_json.headers["content-type"], packed.headers["content-type"]) == (
        "application/json",
        "application/msgpack",
    )
    halved = decoder.post(
        "/v1/lookups",
        headers=OCTETS,
        params={**OF, "dtype": "float16"},
        content=queries.astype("<f2").tobytes(),
    ).json()["answers"]
    assert [[hit["value"] for hit in a["hits"]] for a in halved] == [["Lima"], [], ["Titicaca"]]


def test_an_edit_is_read_back_and_the_past_too(
    operator: Client, encoder: FakeEncoder, atlas: KnowledgeBase, fact_id: int
) -> None:
    before, query = atlas.log.head_seq(), encoder.encode_questions([CAPITAL]).tobytes()
    seq = atlas.facts.delete([fact_id], actor="tester", reason="wrong").seq

    def ask(**params: Any) -> Any:
        return operator.post("/v1/lookups", headers=OCTETS, params={**OF, **params}, content=query)

    (now,), (then,) = ask(min_seq=seq).json()["answers"], ask(as_of=before).json()["answers"]
    assert now["hits"] == [] and now["seq"] >= seq and [hit["value"] for hit in then["hits"]] == ["Lima"]


def test_bytes_that_are_no_queries_are_refused(decoder: Client, subtests: pytest.Subtests) -> None:
    for content, params, status in (
        (b"", OF, 422),
        (bytes(4 * DIM - 1), OF, 422),
        (bytes(4 * DIM * 1025), OF, 422),
        (np.full(DIM, np.nan, "<f4").tobytes(), OF, 422),
        (bytes(4 * DIM), {**OF, "dim": DIM // 2, "checkpoint_id": "fake"}, 422),
        (bytes(4 * DIM), {"dim": DIM}, 400),
        (bytes(4 * DIM), {**OF, "dtype": "float64"}, 400),
        (bytes(4 * DIM), {**OF, "checkpoint_id": "another"}, 409),
    ):
        with subtests.test(content=content, params=params, status=status):
            answer = decoder.post("/v1/lookups", headers=OCTETS, params=params, content=content)
            assert (
                answer.status_code == status and answer.headers["content-type"] == "application/problem+json"
            )


def test_the_space_of_lookups_is_told(decoder: Client, atlas: KnowledgeBase) -> None:
    keyset, space = atlas.keysets.active(), decoder.get("/v1/lookups").json()
    assert space == {
        "keyset_id": keyset.keyset_id,
        "checkpoint_id": "fake",
        "checkpoint_name": "fake model",
        "dim": DIM,
        "threshold": keyset.threshold,
        "calibrated": keyset.calibrated,
        "head_seq": atlas.log.head_seq(),
    }


def output(fact_id: int, last: int, query: bytes | None = None, **changed: Any) -> dict[str, Any]:
    spliced = {
        "output_start": 3,
        "output_end": 7,
        "outcome": "hit",
        "fact_id": fact_id,
        "version": 1,
        "score": 0.9,
        "query": None if query is None else base64.b64encode(query).decode(),
    }
    said = {"prompt": "Where?", "output": "In Lima.", "checkpoint_id": "fake", "mode": "auto", "seq": last}
    return {**said, "splices": [{**spliced, **changed.pop("splice", {})}], **changed}


def test_what_a_decoder_elsewhere_said_is_kept_for_audits(
    decoder: Client, atlas: KnowledgeBase, encoder: FakeEncoder, fact_id: int
) -> None:
    query = encoder.encode_questions([CAPITAL]).astype("<f2").tobytes()
    seq = atlas.log.head_seq()
    atlas.facts.edit(fact_id, "Lima!", actor="ann", reason="a secret reason")
    told = decoder.post("/v1/generations/records", json=output(fact_id, seq, query))
    assert told.status_code == 201, told.text
    (splice,) = told.json()["splices"]
    assert (splice["value"], splice["source"]["title"], splice["history"]) == ("Lima", "Peru", [])
    assert TEXT[splice["source"]["start"] : splice["source"]["end"]] == "Lima"
    assert "secret" not in told.text
    (use,) = atlas.outputs.trace_fact(fact_id).uses
    assert use.generation_id == told.json()["generation_id"]
    stored = atlas.outputs.trace(use.generation_id)
    assert (stored.output, stored.seq) == ("In Lima.", seq) and stored.splices[0].history[0].actor == "ann"
    assert decoder.get(f"/v1/generations/{use.generation_id}").status_code == 403


def test_a_record_that_is_no_evidence_is_refused(
    decoder: Client, atlas: KnowledgeBase, fact_id: int, subtests: pytest.Subtests
) -> None:
    for changed, word in (
        ({"output": "In Cusco"}, "another value"),
        ({"seq": 10**6}, "does not exist yet"),
        ({"checkpoint_id": "another"}, "no keyset"),
        ({"splice": {"query": "AAAA"}}, "finite numbers"),
        ({"splice": {"query": "?"}}, "base64"),
        ({"splice": {"query": "ÄÖÜ="}}, "base64"),
        (
            {"splice": {"query": base64.b64encode(np.full(DIM, np.inf, "<f2").tobytes()).decode()}},
            "finite numbers",
        ),
        ({"splice": {"version": 9}}, "does not exist"),
        ({"splice": {"output_end": 99}}, "outside the output"),
    ):
        with subtests.test(changed=changed, word=word):
            answer = decoder.post(
                "/v1/generations/records", json=output(fact_id, atlas.log.head_seq(), **changed)
            )
            assert answer.status_code == 422 and word in json.loads(answer.text)["detail"]
            assert atlas.outputs.find() == []
