from __future__ import annotations

from datetime import datetime

import pytest

from colmlm.cli.operating.keys import Role
from colmlm.kb.access.records import ROLES
from tests.cli.conftest import Run


def test_a_key_is_made_listed_without_its_token_and_revoked(run: Run) -> None:
    options = ("--role", "operator", "--expires-in", "90d", "--rate-limit", 600)
    token = run("keys", "create", "curator", *options, "--json").json["token"]
    listed = run("keys", "list", "--json")
    (key,) = listed.json["keys"]
    assert (key["name"], key["role"], key["state"], key["rate_limit"]) == (
        "curator",
        "operator",
        "in use",
        600,
    )
    assert token.startswith(key["prefix"]) and token not in listed.out
    made, ends = (datetime.fromisoformat(key[name]) for name in ("created_at", "expires_at"))
    assert (ends - made).days == 90
    assert run("keys", "revoke", "curator").code == 2  # nobody to ask
    assert run("keys", "revoke", "curator", "--dry-run").code == 0
    assert run("keys", "list", "--json").json["keys"][0]["state"] == "in use"
    assert run("keys", "revoke", "curator", "--yes").code == 0
    assert "revoked" in run("keys", "list").out
    assert run("keys", "revoke", "curator", "--yes").code == 4


def test_a_rotation_gives_another_token_and_says_how_long_the_old_one_works(run: Run) -> None:
    first = run("keys", "create", "curator", "--json").json
    assert run("keys", "rotate", "curator").code == 2  # it would end the old token at once
    assert run("keys", "rotate", "curator", "--grace", "24h", "--dry-run", "--json").json["previous_until"]
    assert run("keys", "list", "--json").json["keys"][0]["prefix"] == first["prefix"]
    second = run("keys", "rotate", "curator", "--grace", "24h", "--json").json
    assert second["token"] != first["token"] and second["name"] == "curator" and second["previous_until"]
    assert "works until" in run("keys", "list").err
    ended = run("keys", "rotate", "curator", "--yes", "--json").json
    assert ended["previous_until"] is None and ended["token"] not in (first["token"], second["token"])


def test_a_name_is_used_once(run: Run) -> None:
    assert run("keys", "create", "auditor", "--dry-run").code == 0
    run("keys", "create", "auditor")
    ran = run("keys", "create", "auditor")
    assert ran.code == 2 and "taken" in ran.err
    assert run("keys", "revoke", "nobody", "--yes").code == 3


@pytest.mark.parametrize("span", ["90", "d", "1w", "-1d", "1.5h", "99999d"])
def test_a_span_that_is_none_is_refused(run: Run, span: str) -> None:
    assert run("keys", "create", "x", "--expires-in", span).code == 2


def test_the_roles_are_those_of_the_knowledge_base() -> None:
    assert tuple(Role) == tuple(ROLES)
