"""Webhooks over the API: added, told, paused, replayed and removed, by who may edit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from colmlm.api.middleware.gate import GatedApp
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.settings import Settings
from colmlm.kb.webhooks.webhooks import Deliverer
from tests.api.conftest import Client, Connect
from tests.receiver import LOOPBACK, Receiver


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return replace(settings, webhook_networks=LOOPBACK)


@pytest.fixture
def admin(app: GatedApp, connect: Connect) -> Client:
    return connect(app, "admin")


def test_a_webhook_is_added_told_paused_replayed_and_removed(
    admin: Client, atlas: KnowledgeBase, hook: Receiver
) -> None:
    made = admin.post("/v1/webhooks", json={"url": hook.url, "kinds": ["ingest"], "since": 0}).json()
    webhook, secret = made["webhook"], made["secret"]
    path = f"/v1/webhooks/{webhook['webhook_id']}"
    Deliverer(atlas).run_once()
    (one,) = hook.received
    item = admin.get("/v1/changes", params={"kind": "ingest"}).json()["items"][0]
    assert one.verified(secret)["data"] == item  # what it is sent is what the log is read as
    assert admin.post(f"{path}/pause").json()["state"] == "paused"
    assert (
        admin.post(f"{path}/replay", json={"from_seq": item["seq"]}).json()["delivered_seq"]
        == item["seq"] - 1
    )
    assert admin.post(f"{path}/resume").json()["state"] == "active"
    Deliverer(atlas).run_once()
    assert hook.names()[0] == hook.names()[1]
    assert admin.post(f"{path}/test").json()["status"] == 204
    listed = admin.get("/v1/webhooks")
    assert listed.json()["items"] == [admin.get(path).json()] and secret not in listed.text
    assert admin.delete(path).status_code == 200 and admin.get(path).status_code == 404
    told = [change.kind for change in atlas.log.changes() if "webhook" in change.kind]
    assert told[0] == "add-webhook" and told[-1] == "remove-webhook"


def test_a_webhook_that_is_added_again_under_its_name_is_added_once(admin: Client, hook: Receiver) -> None:
    named = {"Idempotency-Key": "one"}
    first = admin.post("/v1/webhooks", json={"url": hook.url}, headers=named)
    again = admin.post("/v1/webhooks", json={"url": hook.url}, headers=named)
    assert first.status_code == 201 and again.status_code != 201  # a secret is given once
    assert len(admin.get("/v1/webhooks").json()["items"]) == 1


REFUSED: list[tuple[dict[str, Any], int]] = [
    ({}, 400),
    ({"url": ""}, 400),
    ({"url": "http://169.254.169.254/latest"}, 422),
    ({"url": "https://10.0.0.1/x"}, 422),
    ({"url": "http://127.0.0.1:1/x", "kinds": ["nothing"]}, 422),
    ({"url": "http://127.0.0.1:1/x", "format": "xml"}, 400),
    ({"url": "http://127.0.0.1:1/x", "since": 999}, 404),
]


def test_what_makes_no_sense_is_refused(admin: Client) -> None:
    assert [admin.post("/v1/webhooks", json=body).status_code for body, _ in REFUSED] == [
        s for _, s in REFUSED
    ]
    assert admin.get("/v1/webhooks").json()["items"] == []
    assert admin.post("/v1/webhooks/9/test").json()["title"] == "No such webhook"
