from __future__ import annotations

from cli.keys import Role
from kb.access import ROLES
from tests.cli.conftest import Run


def test_a_key_is_made_listed_without_its_token_and_revoked(run: Run) -> None:
    token = run("keys", "create", "curator", "--role", "operator", "--json").json["token"]
    listed = run("keys", "list", "--json")
    assert [(k["name"], k["role"], k["revoked_at"]) for k in listed.json["keys"]] == [
        ("curator", "operator", None)
    ]
    assert token not in listed.out
    assert run("keys", "revoke", "curator").code == 0
    assert "revoked" in run("keys", "list").out


def test_a_name_is_used_once(run: Run) -> None:
    run("keys", "create", "auditor")
    ran = run("keys", "create", "auditor")
    assert ran.code == 2 and "taken" in ran.err
    assert run("keys", "revoke", "nobody").code == 2


def test_the_roles_are_those_of_the_knowledge_base() -> None:
    assert tuple(Role) == tuple(ROLES)
