"""Review over HTTP: the inbox, verdicts that name what they saw, and where only accepted facts answer."""

from __future__ import annotations

import pytest

from colmlm.kb.corpus.format import AnnotatedDocument, FactSpan, Parsed
from colmlm.kb.service import KnowledgeBase
from tests.api.conftest import CAPITAL, Client, body_of
from tests.api.routes.test_facts import look_up
from tests.fakes import FakeEncoder

COAST = "By the sea, Callao is the harbour."
PORT = "Which harbour is it?"


@pytest.fixture
def callao(atlas: KnowledgeBase, encoder: FakeEncoder) -> int:
    """A fact that a machine marked."""
    start = COAST.index("Callao")
    document = AnnotatedDocument("coast", COAST, (FactSpan(start, start + 6, "Callao", PORT),))
    atlas.corpora.ingest([Parsed(document)], "raw", generated=True, actor="annotator", reason="added")
    atlas.keysets.rekey(encoder)
    (fact,) = atlas.facts.find(text="Callao")
    return fact.fact_id


def test_the_inbox_lists_what_a_machine_marked_with_its_surroundings(operator: Client, callao: int) -> None:
    page = body_of(operator.get("/v1/review"))
    (item,) = page["items"]
    assert item["fact"]["fact_id"] == callao and item["fact"]["review"] == "proposed"
    assert item["around"]["text"] == COAST and page["total"] == 1 and page["next"] is None
    assert page["progress"] == {"proposed": 1, "accepted": 0, "rejected": 0, "is_exact": True}
    assert body_of(operator.get("/v1/review", params={"corpus": "atlas"}))["items"] == []
    assert body_of(operator.get("/v1/review", params={"kind": "doubted"}))["total"] == 0
    body_of(operator.get("/v1/review", params={"corpus": "nowhere"}), 404)


def test_a_verdict_counts_only_for_what_it_saw(operator: Client, callao: int) -> None:
    body = {"verdicts": [{"fact_id": callao, "verdict": "accept", "version": 1}], "reason": "read"}
    done = body_of(operator.post("/v1/review/verdicts", json=body))
    assert done["fact_ids"] == [callao] and done["before"] == [] and done["min_seq"] == done["seqs"][0]
    body["verdicts"][0]["verdict"] = "reject"  # type: ignore[index]
    late = body_of(operator.post("/v1/review/verdicts", json=body))
    assert late["seqs"] == late["fact_ids"] == []
    (one,) = late["before"]
    assert (one["review"], one["live"], one["seq"], one["actor"]) == (
        "accepted",
        True,
        done["seqs"][0],
        "the operator",
    )
    body["verdicts"][0]["review"] = "accepted"  # type: ignore[index]
    rejected = body_of(operator.post("/v1/review/verdicts", json=body))
    assert look_up(operator, PORT, rejected["min_seq"]) == []
    body_of(operator.post(f"/v1/changes/{rejected['seqs'][0]}/undo", json={"reason": "was right"}))
    assert look_up(operator, PORT) == ["Callao"]
    assert body_of(operator.get(f"/v1/facts/{callao}"))["review"] == "accepted"
    missing = {"verdicts": [{"fact_id": 998, "verdict": "accept", "version": 1}], "reason": "r"}
    body_of(operator.post("/v1/review/verdicts", json=missing), 404)


def test_an_edit_and_a_move_may_name_the_version_they_saw(operator: Client, callao: int) -> None:
    edit = {"value": "El Callao", "version": 1, "reason": "its name"}
    body_of(operator.patch(f"/v1/facts/{callao}", json=edit))
    refused = body_of(operator.patch(f"/v1/facts/{callao}", json=edit), 409)
    assert refused["about"]["fact_ids"] == [callao] and "meanwhile" in refused["title"]
    move = {"text": "harbour", "version": 1, "reason": "cut"}
    body_of(operator.post(f"/v1/facts/{callao}/move", json=move), 409)
    rows = {"facts": [{"fact_id": callao, "value": "x", "version": 1}], "reason": "r"}
    body_of(operator.patch("/v1/facts/batch", json=rows), 409)
    assert body_of(operator.get(f"/v1/facts/{callao}"))["review"] == "accepted", "an edit accepts"


def test_lookups_and_answers_leave_proposed_facts_out_where_asked(operator: Client, callao: int) -> None:
    asked = {"questions": [PORT]}
    (found,) = body_of(operator.post("/v1/lookups", json=asked))["answers"]
    assert [hit["review"] for hit in found["hits"]] == ["proposed"]
    (found,) = body_of(operator.post("/v1/lookups", json={**asked, "accepted_only": True}))["answers"]
    assert found["hits"] == []
    answer = {"question": "Which is the harbour by the sea?", "threshold": 0}
    assert body_of(operator.post("/v1/answers", json=answer))["facts"][0]["review"] == "proposed"
    without = body_of(operator.post("/v1/answers", json={**answer, "accepted_only": True}))
    assert callao not in [fact["fact_id"] for fact in without["facts"]]
    outputs = body_of(operator.get("/v1/generations"))["items"]
    traced = [body_of(operator.get(f"/v1/generations/{one['generation_id']}")) for one in outputs]
    assert sorted(one["accepted_only"] for one in traced) == [False, True]
    limit = {"accepted_only": True, "corpus": "raw", "reason": "not read yet"}
    assert body_of(operator.post("/v1/review/limits", json=limit))["kind"] == "accepted-only"
    assert look_up(operator, PORT) == [] and look_up(operator, CAPITAL) == ["Lima"]
    stats = {one["corpus"]: one for one in body_of(operator.get("/v1/corpora"))["items"]}
    assert (stats["raw"]["accepted_only"], stats["raw"]["proposed"]) == (True, 1)
    body_of(operator.post("/v1/review/limits", json={"accepted_only": True, "reason": "r"}), 422)


def test_facts_are_listed_by_their_review_with_a_total(operator: Client, callao: int) -> None:
    page = body_of(operator.get("/v1/facts", params={"review": "proposed"}))
    assert [one["fact_id"] for one in page["items"]] == [callao] and page["total"] == 1
    assert {one["review"] for one in body_of(operator.get("/v1/facts"))["items"]} == {"accepted", "proposed"}


def test_every_way_to_ask_takes_names_of_corpora(operator: Client, atlas: KnowledgeBase, callao: int) -> None:
    def values(**asked: object) -> list[str]:
        (found,) = body_of(operator.post("/v1/lookups", json={"questions": [PORT], **asked}))["answers"]
        return [hit["value"] for hit in found["hits"]]

    raw, atlas_only = {"corpora": ["raw"]}, {"corpora": ["atlas"]}
    assert (values(), values(**raw), values(**atlas_only)) == (["Callao"], ["Callao"], [])
    assert values(corpora=["atlas", "raw"], ranking="words", threshold=-1) == ["Callao"]
    body_of(operator.post("/v1/lookups", json={"questions": [PORT], "corpora": ["rwa"]}), 404)
    query = FakeEncoder().encode_questions([PORT]).astype("<f4").tobytes()
    where = {"checkpoint_id": "fake", "dim": len(query) // 4}
    for corpus, found in (("raw", 1), ("atlas", 0)):
        asked = operator.post("/v1/lookups/vectors", params={**where, "corpora": [corpus]}, content=query)
        assert len(body_of(asked)["answers"][0]["hits"]) == found
    body_of(operator.post("/v1/lookups/vectors", params={**where, "corpora": "rwa"}, content=query), 404)
    prompt = {"prompt": f"Question: {PORT} Answer:", "mode": "forced"}
    made = [body_of(operator.post("/v1/generations", json={**prompt, **of}), 201) for of in (raw, atlas_only)]
    assert [one["corpora"] for one in made] == [["raw"], ["atlas"]]
    assert [one["abstained"] for one in made] == [False, True]
    traced = body_of(operator.get(f"/v1/generations/{made[1]['generation_id']}"))
    assert traced["corpora"] == ["atlas"]
    chat = {"model": "colmlm", "messages": [{"role": "user", "content": "Which is the harbour by the sea?"}]}
    said = [body_of(operator.post("/v1/chat/completions", json={**chat, **of})) for of in (raw, atlas_only)]
    contents = [one["choices"][0]["message"]["content"] for one in said]
    assert contents[0] is not None and "Callao" in contents[0] and contents[1] is None
