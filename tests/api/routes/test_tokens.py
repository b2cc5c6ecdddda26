"""Tokens over the API: what an admin may hand out, and that a secret is in one answer and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import pytest
from sqlalchemy import text

from colmlm.api.middleware.gate import GatedApp
from colmlm.api.routes.tokens import Role
from colmlm.kb.access.records import ROLES
from colmlm.kb.service import KnowledgeBase
from tests.api.conftest import Client, Connect

NEW = {"name": "curator", "role": "operator", "expires_in_seconds": 3600, "rate_limit": 100}


@pytest.fixture
def admin(app: GatedApp, connect: Connect) -> Client:
    return connect(app, "admin")


def works(client: Client, secret: str) -> bool:
    return client.get("/v1/facts", headers={"Authorization": f"Bearer {secret}"}).status_code == 200


def test_token_is_made_used_rotated_and_revoked(admin: Client) -> None:
    made = admin.post("/v1/tokens", json=NEW).json()
    token, first = made["key"], made["token"]
    assert (token["name"], token["role"], token["state"], token["rate_limit"]) == (
        "curator",
        "operator",
        "in use",
        100,
    )
    assert token["expires_at"] and token["last_used_at"] is None and works(admin, first)

    path = f"/v1/tokens/{token['key_id']}"
    second = admin.post(f"{path}/rotate", json={"grace_seconds": 60}).json()["token"]
    assert works(admin, first) and works(admin, second)
    third = admin.post(f"{path}/rotate", json={}).json()["token"]
    assert [works(admin, secret) for secret in (first, second, third)] == [False, False, True]

    listed = admin.get("/v1/tokens")
    assert [k["name"] for k in listed.json()["items"]] == ["the admin", "curator"]
    assert listed.json()["items"][1]["last_used_at"] and listed.json()["next"] is None
    assert not any(secret in listed.text for secret in (first, second, third))
    assert admin.delete(path).json()["state"] == "revoked" and not works(admin, third)
    assert admin.delete(path).status_code == 409 and admin.post(f"{path}/rotate", json={}).status_code == 409


def test_a_token_is_told_of_itself(admin: Client, new_token: Callable[[str], str]) -> None:
    for role in ROLES.keys() - {"admin"}:
        bearer = {"Authorization": f"Bearer {new_token(role)}"}
        own = admin.get("/v1/tokens/own", headers=bearer).json()
        assert (own["name"], own["role"], own["state"]) == (f"the {role}", role, "in use")


REFUSED: list[tuple[str, dict[str, Any], int]] = [
    ("/v1/tokens", {}, 400),
    ("/v1/tokens", {"name": "x", "role": "king"}, 400),
    ("/v1/tokens", {"name": "x", "expires_in_seconds": 0}, 400),
    ("/v1/tokens", {"name": "x", "rate_limit": 0}, 400),
    ("/v1/tokens", {"name": "a\tb"}, 422),
    ("/v1/tokens", {"name": "the admin"}, 422),
    ("/v1/tokens/999/rotate", {}, 404),
    ("/v1/tokens/1/rotate", {"grace_seconds": -1}, 400),
]


def test_what_makes_no_sense_is_refused(admin: Client) -> None:
    assert [admin.post(path, json=body).status_code for path, body, _ in REFUSED] == [s for *_, s in REFUSED]
    assert len(admin.get("/v1/tokens").json()["items"]) == 1


def test_roles_are_those_of_the_knowledge_base() -> None:
    assert get_args(Role) == tuple(ROLES)


def test_secret_is_not_kept_for_a_request_sent_twice(admin: Client, atlas: KnowledgeBase) -> None:
    once = {"Idempotency-Key": "make-curator"}
    secret = admin.post("/v1/tokens", json=NEW, headers=once).json()["token"]
    again = admin.post("/v1/tokens", json=NEW, headers=once)
    assert (again.status_code, again.json()["type"]) == (409, "urn:colmlm:AnswerGone") and works(
        admin, secret
    )
    with atlas.engine.connect() as connection:
        assert connection.scalars(text("SELECT body FROM idempotency")).all() == [None]
