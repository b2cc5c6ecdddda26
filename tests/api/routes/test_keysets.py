"""Keysets over HTTP: progress, gate, the switch and back."""

from __future__ import annotations

from typing import Any

from colmlm.api.middleware.gate import GatedApp
from colmlm.kb.keys.records import GateLimits
from colmlm.kb.service import KnowledgeBase
from tests.api.conftest import Connect
from tests.fakes import FakeEncoder

WHY = {"reason": "test"}


def test_a_keyset_answers_after_its_gate_and_until_it_is_rolled_back(
    app: GatedApp, atlas: KnowledgeBase, connect: Connect
) -> None:
    trainer = connect(app, "trainer")
    other = FakeEncoder(salt="other")
    keyset_id = atlas.keysets.rekey(other).keyset_id
    path = f"/v1/keysets/{keyset_id}"

    def states() -> list[str]:
        return [view["keyset"]["state"] for view in trainer.get("/v1/keysets").json()["items"]]

    assert states() == ["active", "ready"]
    assert trainer.get(f"{path}/gate").json() == {
        "standing": {
            "checked": False,
            "passed": False,
            "seq": None,
            "edits_since": None,
            "failed": [],
            "criteria": [],
        },
        "report": None,
    }
    assert trainer.post(f"{path}/activate", json=WHY).json()["title"] == "Keyset has not passed its gate"
    checked = atlas.keysets.check(keyset_id, other, GateLimits(max_question_loss=1))
    assert trainer.get(f"{path}/gate").json()["report"]["seq"] == checked.seq
    assert trainer.post(f"{path}/activate", json={**WHY, "force": True}).json()["state"] == "active"
    assert states() == ["ready", "active"]
    assert trainer.post("/v1/keysets/rollback", json=WHY).json()["keyset_id"] != keyset_id
    assert states() == ["active", "ready"]
    progress = trainer.get(path).json()["keyset"]
    assert (progress["num_keys"], progress["num_unkeyed"]) == (2, 0)
    assert trainer.post(f"{path}/retire", json=WHY).json()["state"] == "retired"


def test_a_threshold_is_set_with_a_reason(app: GatedApp, atlas: KnowledgeBase, connect: Connect) -> None:
    trainer = connect(app, "trainer")
    keyset_id = atlas.keysets.active().keyset_id
    body: dict[str, Any] = {"threshold": 0.9, "reason": "by hand"}
    set_ = trainer.put(f"/v1/keysets/{keyset_id}/threshold", json=body).json()
    assert (set_["threshold"], set_["calibrated"]) == (0.9, False)
    change = atlas.log.changes(after=atlas.log.head_seq() - 1)[0]
    assert (change.kind, change.actor, change.reason) == ("threshold", "the trainer", "by hand")
    assert trainer.put(f"/v1/keysets/{keyset_id}/threshold", json={**body, "threshold": 2}).status_code == 400
