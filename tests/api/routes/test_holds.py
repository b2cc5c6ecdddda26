"""Holds and retention rules over HTTP: by the rights of each role, with one token or with two."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy.orm import Session

from colmlm.api.middleware.gate import GatedApp
from colmlm.kb.access.tokens import create_token
from colmlm.kb.removal.holds import Retention
from colmlm.kb.service import KnowledgeBase
from tests.api.conftest import Connect
from tests.kb.corpora import CHILE, ingest

WHY = {"reason": "case 12"}


@pytest.fixture
def by_two(kb: KnowledgeBase) -> None:
    """Makes holds need two tokens; to be used before the app is made."""
    kb.settings = replace(kb.settings, hold_needs_two="both")


def test_an_operator_holds_a_fact_and_an_admin_cannot_erase_it_until_it_is_released(
    app: GatedApp, connect: Connect, atlas: KnowledgeBase, fact_id: int
) -> None:
    operator, admin, reader = (connect(app, role) for role in ("operator", "admin", "reader"))
    hold = operator.post("/v1/holds", json={"fact_ids": [fact_id], **WHY}).json()
    assert (hold["hold_id"], hold["state"], hold["fact_ids"]) == (1, "standing", [fact_id])
    document = admin.get(f"/v1/facts/{fact_id}").json()["source"]["document_id"]
    for named in ({"fact_id": fact_id}, {"document_id": document}, {"standing": True}, {}):
        assert admin.get("/v1/holds", params=named).json()["items"] == [hold], named
    assert admin.get("/v1/holds", params={"fact_id": 999}).json()["items"] == []

    refused = admin.post("/v1/erasures", json={"fact_ids": [fact_id], **WHY})
    assert refused.status_code == 409 and refused.json()["type"] == "urn:colmlm:HoldStands"
    assert "hold 1" in refused.json()["detail"] and "colmlm hold release 1" in refused.json()["detail"]
    assert admin.request("DELETE", "/v1/corpora/atlas", json=WHY).json()["type"] == "urn:colmlm:HoldStands"
    for path in ("/v1/holds", "/v1/holds/1"):
        assert reader.get(path).status_code == 403
    assert reader.post("/v1/holds/1/release", json=WHY).status_code == 403
    assert operator.post("/v1/holds/9/release", json=WHY).status_code == 404
    assert operator.post("/v1/holds", json=WHY).status_code == 422
    assert operator.post("/v1/holds/1/withdraw").json()["type"] == "urn:colmlm:HoldState"

    released = operator.post("/v1/holds/1/release", json={"reason": "case closed"}).json()
    assert (released["state"], released["release_reason"]) == ("released", "case closed")
    assert admin.post("/v1/erasures", json={"fact_ids": [fact_id], **WHY}).status_code == 200
    assert atlas.log.verify().ok


@pytest.mark.usefixtures("by_two")
def test_where_two_tokens_are_needed_another_approves_and_releases(
    app: GatedApp, connect: Connect, atlas: KnowledgeBase
) -> None:
    operator = connect(app, "operator")
    with Session(atlas.engine) as session, session.begin():
        other = {"Authorization": f"Bearer {create_token(session, 'another', 'operator')}"}
    assert operator.post("/v1/holds", json={"corpora": ["atlas"], **WHY}).json()["state"] == "asked"
    assert operator.post("/v1/holds/1/approve").json()["type"] == "urn:colmlm:SamePerson"
    assert operator.post("/v1/holds/1/approve", headers=other).json()["state"] == "standing"
    assert operator.post("/v1/holds/1/release", json=WHY).json()["state"] == "release-asked"
    assert operator.post("/v1/holds/1/release", json=WHY).json()["type"] == "urn:colmlm:SamePerson"
    assert operator.post("/v1/holds/1/withdraw", headers=other).json()["state"] == "standing"
    operator.post("/v1/holds/1/release", json=WHY)
    done = operator.post("/v1/holds/1/release", json=WHY, headers=other).json()
    assert (done["state"], done["release_approved_by"]) == ("released", "another")


def test_a_rule_is_set_by_an_admin_tried_before_and_ended(
    app: GatedApp, connect: Connect, atlas: KnowledgeBase
) -> None:
    admin, auditor = connect(app, "admin"), connect(app, "auditor")
    path = "/v1/corpora/atlas/retention"
    assert auditor.get(path).json()["rule"] is None
    tried = auditor.get(path, params={"days": 3, "now": "2099-01-01T00:00:00Z"}).json()
    assert (tried["num_due"], tried["documents"][0]["external_id"]) == (1, "peru")
    terms = {"days": 30, "action": "erase", "counts_from": "date"}
    assert auditor.put(path, json={**terms, **WHY}).status_code == 403
    rule = admin.put(path, json={**terms, **WHY}).json()
    assert rule == {"corpus": "atlas", **terms, "seq": atlas.log.head_seq()}
    assert auditor.get("/v1/retention-rules").json()["items"] == [rule]
    plan = auditor.get(path).json()
    assert plan["rule"] == rule and plan["num_due"] == 0 and plan["next_at"] is not None
    assert admin.put(path, json={**terms, "days": 0, **WHY}).status_code == 400
    assert admin.get("/v1/corpora/none/retention").status_code == 404
    assert admin.request("DELETE", path, json=WHY).json() == rule
    assert admin.request("DELETE", path, json=WHY).json()["type"] == "urn:colmlm:RetentionRuleNotFound"


def test_a_token_of_some_corpora_sees_the_rules_of_these_alone_and_no_holds(
    app: GatedApp, connect: Connect, atlas: KnowledgeBase, fact_id: int
) -> None:
    ingest(atlas, CHILE, corpus="payroll")
    for corpus in ("atlas", "payroll"):
        Retention(atlas).set_rule(
            corpus, days=30, action="delete", counts_from="seen", actor="ann", reason="policy 7"
        )
    atlas.corpora.note_seen("payroll", ["chile"])
    secret, _ = atlas.access.create("desk", "reader", corpora=["atlas"])
    desk = {"Authorization": f"Bearer {secret}"}
    client = connect(app, "reader")
    assert [one["corpus"] for one in client.get("/v1/retention-rules", headers=desk).json()["items"]] == [
        "atlas"
    ]
    assert len(client.get("/v1/retention-rules").json()["items"]) == 2
    for path in ("/v1/holds", "/v1/holds/1", "/v1/corpora/atlas/retention"):
        assert client.get(path, headers=desk).status_code == 403
    document = client.get(f"/v1/facts/{fact_id}").json()["source"]["document_id"]
    page = client.get(f"/console/documents/{document}", headers=desk)
    assert page.status_code == 200 and "The rule of its corpus keeps it until" in page.text
