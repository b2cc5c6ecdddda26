"""Erasure over HTTP: by one key, or asked for with one and approved with another."""

from __future__ import annotations

import pytest
from sqlalchemy.orm import Session

from colmlm.api.middleware.gate import GatedApp
from colmlm.kb.access.tokens import create_token
from colmlm.kb.service import KnowledgeBase
from tests.api.conftest import Client, Connect

WHY = {"reason": "request of the person"}


def test_an_erasure_is_previewed_and_reports_how_far_it_got(
    app: GatedApp, connect: Connect, atlas: KnowledgeBase, fact_id: int
) -> None:
    admin = connect(app, "admin")
    head = atlas.log.head_seq()
    preview = admin.post("/v1/erasures/preview", json={"fact_ids": [fact_id]}).json()
    assert (preview["num_keys"], len(preview["documents"]), atlas.log.head_seq()) == (1, 1, head)
    done = admin.post("/v1/erasures", json={"fact_ids": [fact_id], **WHY}).json()
    assert done["request"] is None and done["report"]["erased"]["seq"] == head + 1
    assert done["report"]["level"] >= 1
    text = admin.get(f"/v1/documents/{preview['documents'][0]}").json()["text"]
    assert "Lima" not in text and "Titicaca" in text
    assert admin.get(f"/v1/facts/{fact_id}").json()["erased_seq"] == head + 1
    again = admin.post("/v1/erasures", json={"fact_ids": [fact_id], **WHY})
    assert (again.status_code, again.json()["report"]["erased"]["seq"]) == (200, None)
    assert atlas.log.head_seq() == head + 1


def second_key(kb: KnowledgeBase) -> str:
    with Session(kb.engine) as session, session.begin():
        return create_token(session, "another admin", "admin")


@pytest.mark.usefixtures("two_tokens")
def test_where_two_keys_are_needed_one_only_asks(
    app: GatedApp, connect: Connect, atlas: KnowledgeBase, fact_id: int
) -> None:
    admin: Client = connect(app, "admin")
    asked = [admin.post("/v1/erasures", json={"fact_ids": [f], **WHY}).json() for f in (fact_id, fact_id + 1)]
    first, second = (f"/v1/erasures/{answer['request']['erasure_request_id']}" for answer in asked)
    assert asked[0]["report"] is None and len(atlas.facts.find()) == 2
    assert admin.post(f"{first}/approve").json()["type"] == "urn:colmlm:SamePerson"
    assert admin.post(f"{second}/withdraw").json()["state"] == "withdrawn"
    other = {"Authorization": f"Bearer {second_key(atlas)}"}
    approved = admin.post(f"{first}/approve", headers=other).json()
    assert approved["request"]["state"] == "approved" and approved["report"]["erased"]["fact_ids"] == [
        fact_id
    ]
    assert admin.post(f"{second}/approve", headers=other).status_code == 409
    states = [request["state"] for request in admin.get("/v1/erasures").json()["items"]]
    assert states == ["approved", "withdrawn"] and len(atlas.facts.find()) == 1


def test_a_person_is_found_by_who_may_audit_and_erased_by_who_may_erase(
    app: GatedApp, connect: Connect, atlas: KnowledgeBase
) -> None:
    atlas.facts.add("Who won?", "Maria Keller", actor="tester", reason="asked by Maria Keller")
    asked = {"name": "Maria Keller"}
    assert connect(app, "reader").post("/v1/persons/find", json=asked).status_code == 403
    scoped = {"Authorization": f"Bearer {scoped_auditor(atlas)}"}
    auditor = connect(app, "auditor")
    refused = auditor.post("/v1/persons/find", json=asked, headers=scoped)
    assert refused.status_code == 403, refused.text
    found = auditor.post("/v1/persons/find", json=asked).json()
    assert {place["treatment"] for place in found["report"]["sure"]} == {"erase", "blank"}
    plan, admin = {"plan": found["plan"]}, connect(app, "admin")
    assert connect(app, "operator").post("/v1/erasures", json={**plan, **WHY}).status_code == 403
    assert admin.post("/v1/erasures", json={**plan, "fact_ids": [1], **WHY}).status_code == 422
    assert admin.post("/v1/erasures/preview", json=plan).json()["places"] == {"change.reason": 1}
    done = admin.post("/v1/erasures", json={**plan, **WHY}).json()["report"]["erased"]
    assert done["places"] == {"change.reason": 1} and len(done["fact_ids"]) == 1
    assert admin.post("/v1/erasures", json={**plan, **WHY}).json()["type"] == "urn:colmlm:PlanStale"


def scoped_auditor(kb: KnowledgeBase) -> str:
    return kb.access.create("an auditor of atlas", "auditor", actor="tester", corpora=["atlas"])[0]
