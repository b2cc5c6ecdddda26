from __future__ import annotations

from datetime import datetime

import pytest

from colmlm.cli.operating.tokens import Role
from colmlm.kb.access.records import ROLES
from tests.cli.conftest import Run


def test_a_token_is_made_listed_without_its_secret_and_revoked(run: Run) -> None:
    options = ("--role", "operator", "--expires-in", "90d", "--rate-limit", 600)
    secret = run("tokens", "create", "curator", *options, "--json").json["token"]
    listed = run("tokens", "list", "--json")
    (token,) = listed.json["keys"]
    assert (token["name"], token["role"], token["state"], token["rate_limit"]) == (
        "curator",
        "operator",
        "in use",
        600,
    )
    assert secret.startswith(token["prefix"]) and secret not in listed.out
    made, ends = (datetime.fromisoformat(token[name]) for name in ("created_at", "expires_at"))
    assert (ends - made).days == 90
    assert run("tokens", "revoke", "curator").code == 2  # nobody to ask
    assert run("tokens", "revoke", "curator", "--dry-run").code == 0
    assert run("tokens", "list", "--json").json["keys"][0]["state"] == "in use"
    assert run("tokens", "revoke", "curator", "--yes").code == 0
    assert "revoked" in run("tokens", "list").out
    assert run("tokens", "revoke", "curator", "--yes").code == 4
    assert {change["actor"] for change in run("log", "list", "--json").json["changes"]} == {"tester"}


def test_a_rotation_gives_another_secret_and_says_how_long_the_old_one_works(run: Run) -> None:
    first = run("tokens", "create", "curator", "--json").json
    assert run("tokens", "rotate", "curator").code == 2  # it would end the old secret at once
    assert run("tokens", "rotate", "curator", "--grace", "24h", "--dry-run", "--json").json["previous_until"]
    assert run("tokens", "list", "--json").json["keys"][0]["prefix"] == first["prefix"]
    second = run("tokens", "rotate", "curator", "--grace", "24h", "--json").json
    assert second["token"] != first["token"] and second["name"] == "curator" and second["previous_until"]
    assert "works until" in run("tokens", "list").err
    ended = run("tokens", "rotate", "curator", "--yes", "--json").json
    assert ended["previous_until"] is None and ended["token"] not in (first["token"], second["token"])


def test_a_name_is_used_once(run: Run) -> None:
    assert run("tokens", "create", "auditor", "--dry-run").code == 0
    run("tokens", "create", "auditor")
    ran = run("tokens", "create", "auditor")
    assert ran.code == 2 and "taken" in ran.err
    assert run("tokens", "revoke", "nobody", "--yes").code == 3


def test_a_span_that_is_none_is_refused(run: Run, subtests: pytest.Subtests) -> None:
    for span in ("90", "d", "1w", "-1d", "1.5h", "99999d"):
        with subtests.test(span=span):
            assert run("tokens", "create", "x", "--expires-in", span).code == 2


def test_the_roles_are_those_of_the_knowledge_base() -> None:
    assert tuple(Role) == tuple(ROLES)
