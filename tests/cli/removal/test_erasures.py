"""`colmlm erasures`, and what `colmlm erase` does where two are needed."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Run, at_terminal
from tests.cli.removal.test_erase import share_elsewhere

ERASE = ("--reason", "request of the person", "--yes")


@pytest.fixture
def tokens(run: Run, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Tokens of keys by name, on an installation that wants two."""
    monkeypatch.setenv("COLMLM_ERASE_NEEDS_TWO", "yes")
    roles = {"ann": "admin", "bob": "admin", "eve": "operator"}
    return {
        name: run("tokens", "create", name, "--role", role, "--json").json["token"]
        for name, role in roles.items()
    }


def test_an_erasure_waits_for_another_admins_key(
    run: Run, atlas: list[int], tokens: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lima = atlas[0]
    ran = run("erase", lima, *ERASE)
    assert ran.code == 2 and "COLMLM_TOKEN" in ran.err
    monkeypatch.setenv("COLMLM_TOKEN", tokens["ann"])
    assert run("erase", lima, *ERASE, "--now").code == 2
    asked = run("erase", lima, *ERASE, "--json").json
    assert asked["seq"] is None and asked["request"]["asked_by"] == "ann"
    number = asked["request"]["erasure_request_id"]
    assert run("erase", "settle", "approve", number, "--yes").code == 4
    assert run("erase", "settle", "approve", number, "--json").code == 2
    monkeypatch.setenv("COLMLM_TOKEN", tokens["eve"])
    assert run("erase", "settle", "approve", number, "--yes").code == 2
    assert "Lima" in run("erase", "settle", "approve", number, "--dry-run").out
    assert run("facts", "show", lima, "--json").json["value"] == "Lima"

    monkeypatch.setenv("COLMLM_TOKEN", tokens["bob"])
    done = run("erase", "settle", "approve", number, "--yes", "--json").json

    assert (done["request"]["decided_by"], done["fact_ids"], done["level"]) == ("bob", [lima], 2)
    assert "approved" in run("erase", "settle").out
    assert run("erase", "settle", "waiting", "--json").json == {"erasures": []}


def test_what_is_asked_before_is_what_is_done(
    run: Run, atlas: list[int], tokens: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLMLM_TOKEN", tokens["ann"])
    ran = at_terminal("erase", atlas[0], *ERASE[:2], typed="n\n")
    assert "Request the erasure of this fact? Nothing is erased until" in ran.err and ran.code == 1
    monkeypatch.setenv("COLMLM_ERASE_NEEDS_TWO", "no")
    assert "Erase this fact for good?" in at_terminal("erase", atlas[0], *ERASE[:2], typed="n\n").err


def test_a_request_is_withdrawn(
    run: Run, atlas: list[int], tokens: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLMLM_TOKEN", tokens["ann"])
    number = run("erase", atlas[0], *ERASE, "--json").json["request"]["erasure_request_id"]
    assert run("erase", "settle", "withdraw", number).code == 2
    assert (
        run("erase", "settle", "withdraw", number, "--yes", "--json").json["request"]["state"] == "withdrawn"
    )
    assert run("erase", "settle", "withdraw", number, "--yes").code == 4
    assert run("erase", "settle", "withdraw", 99, "--yes").code == 3


def test_an_approval_that_does_not_reach_its_level_exits_with_a_failing_code(
    run: Run,
    keyed: list[int],
    tokens: dict[str, str],
    database_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLMLM_TOKEN", tokens["ann"])
    number = run("erase", keyed[0], *ERASE, "--json").json["request"]["erasure_request_id"]
    monkeypatch.setenv("COLMLM_TOKEN", tokens["bob"])
    share_elsewhere(database_url)
    ran = run("erase", "settle", "approve", number, "--yes", "--json")
    assert (ran.code, ran.json["level"], ran.json["asked_level"]) == (1, 1, 2)
    assert ran.json["request"]["state"] == "approved" and "level 1 is reached" in ran.err
