"""Forgetting over HTTP, from a selector to a certificate, and what it had been used for."""

from __future__ import annotations

from colmlm.api.middleware.gate import GatedApp
from tests.api.conftest import CAPITAL, LAKE, Client, Connect

WHY = {"reason": "request 12"}


def found(client: Client, question: str) -> list[str]:
    answer = client.post("/v1/lookups", json={"questions": [question]}).json()["answers"][0]
    return [hit["value"] for hit in answer["hits"]]


def test_from_a_selector_to_a_certificate_and_back(operator: Client, fact_id: int) -> None:
    plan = operator.post(
        "/v1/forget-runs", json={"selector": {"text": "lima"}, "policy": "abstain", **WHY}
    ).json()
    run = f"/v1/forget-runs/{plan['run']['run_id']}"
    assert plan["run"]["state"] == "planned" and plan["plan"]["num_facts"] == 1
    assert [f["fact_id"] for f in operator.get(f"{run}/facts").json()["items"]] == [fact_id]
    assert operator.get(f"{run}/drift").json() == {"stale": [], "newly_selected": [], "newly_equivalent": []}
    assert operator.get(f"{run}/certificate").status_code == 409
    assert operator.post(f"{run}/apply", json=WHY).json()["fact_ids"] == [fact_id]
    assert (found(operator, CAPITAL), found(operator, LAKE)) == ([], ["Titicaca"])
    verified = operator.post(f"{run}/verify", json={"questions": ["Which city?"]}).json()
    assert verified["level"] > 0 and verified["leaked"] == []
    text = operator.get(f"{run}/certificate").text
    key = operator.get("/v1/signing-key").json()
    for how in (
        {},
        {"key": key["fingerprint"]},
        {"public_key": key["pem"]},
        {"key": key["keyid"], "offline": True},
    ):
        checked = operator.post("/v1/certificates/check", json={"text": text, **how}).json()
        assert checked["ok"] and checked["signed_by"] == key["keyid"]
    other = operator.post("/v1/certificates/check", json={"text": text, "key": "0" * 16}).json()
    assert [check["name"] for check in other["checks"] if not check["ok"]] == ["signer"] and not other["ok"]
    unnamed = operator.post("/v1/certificates/check", json={"text": text, "offline": True})
    assert (unnamed.status_code, unnamed.json()["title"]) == (422, "A signer must be named")
    assert operator.post("/v1/certificates/check", json={"text": text, "public_key": "x"}).status_code == 422
    assert not operator.post("/v1/certificates/check", json={"text": text.replace("Lima", "") + " "}).json()[
        "ok"
    ]
    assert operator.post(f"{run}/apply", json=WHY).status_code == 409
    assert operator.post(f"{run}/restore", json=WHY).status_code == 200
    restored = operator.post("/v1/certificates/check", json={"text": text}).json()
    assert [check["name"] for check in restored["checks"] if not check["ok"]] == ["state"]
    assert found(operator, CAPITAL) == ["Lima"]
    assert operator.get(run).json()["run"]["state"] == "restored"


def test_places_that_would_still_answer_are_listed_with_their_words(operator: Client, fact_id: int) -> None:
    added = operator.post("/v1/facts", json={"question": f"{CAPITAL} It is:", "value": "Lima", **WHY}).json()
    made = operator.post("/v1/forget-runs", json={"selector": {"fact_ids": [fact_id]}, **WHY}).json()
    plan, run = made["plan"], f"/v1/forget-runs/{made['run']['run_id']}"
    assert (plan["read"], plan["num_survivors"], plan["equivalents"]) == (1, 1, added["fact_ids"])
    (place,) = operator.get(f"{run}/survivors").json()["items"]
    assert (place["asked_fact_id"], place["text"], place["says"]) == (fact_id, "Lima", "same")
    operator.post(f"{run}/apply", json=WHY)
    assert operator.post(f"{run}/verify", json={}).json()["survivors"] == plan["survivors"]
    without = operator.post(f"{run}/verify", json={"model": False}).json()
    assert without["read"] == 0 and without["survivors"] == []
    page = operator.get(f"{run}/survivors", params={"limit": 1}).json()
    assert page == {"items": [place], "next": None}, "the plan's, where no verification has read"


def test_an_edited_plan_is_refused(operator: Client, fact_id: int) -> None:
    run = operator.post("/v1/forget-runs", json={"selector": {"fact_ids": [fact_id]}, **WHY}).json()["run"]
    operator.patch(f"/v1/facts/{fact_id}", json={"value": "Cusco", **WHY})
    path = f"/v1/forget-runs/{run['run_id']}"
    assert operator.get(f"{path}/drift").json()["stale"] == [fact_id]
    assert operator.post(f"{path}/apply", json=WHY).json()["title"] == "Plan is stale"


def test_selecting_nothing_is_said(operator: Client) -> None:
    asked = {"selector": {"text": "Quito"}, **WHY}
    assert operator.post("/v1/forget-runs", json=asked).json()["title"] == "Nothing selected"
    assert (
        operator.post("/v1/forget-runs", json={**asked, "allow_empty": True}).json()["plan"]["num_facts"] == 0
    )


def test_what_a_fact_was_used_for(app: GatedApp, connect: Connect, fact_id: int) -> None:
    operator = connect(app, "operator")
    for prompt in (CAPITAL, LAKE, CAPITAL):
        operator.post("/v1/generations", json={"prompt": prompt})
    impact = operator.get(f"/v1/facts/{fact_id}/impact").json()
    assert impact["is_live"] and [use["since"] for use in impact["items"]] == ["current", "current"]
    page = operator.get(f"/v1/facts/{fact_id}/impact", params={"limit": 1}).json()
    rest = operator.get(f"/v1/facts/{fact_id}/impact", params={"cursor": page["next"]}).json()
    assert page["items"] + rest["items"] == impact["items"] and rest["next"] is None
    of_all = operator.post("/v1/impact", json={"selector": {"everything": True}}).json()
    assert (of_all["num_facts"], of_all["num_outputs"], len(of_all["items"])) == (2, 3, 3)

    def spliced(**params: int) -> list[str]:
        return [a["value"] for a in operator.get("/v1/attributions", params=params).json()["items"]]

    first = impact["items"][0]
    document_id = operator.get(f"/v1/facts/{fact_id}").json()["source"]["document_id"]
    assert spliced(fact_id=fact_id) == ["Lima", "Lima"]
    assert spliced(generation_id=first["generation_id"]) == ["Lima"]
    assert spliced(document_id=document_id) == ["Lima", "Titicaca", "Lima"]
    operator.request("DELETE", f"/v1/facts/{fact_id}", json=WHY)
    assert operator.get(f"/v1/facts/{fact_id}/impact").json()["items"][0]["since"] == "deleted"
