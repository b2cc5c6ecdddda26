"""`colmlm hold` and `colmlm corpus retain`, here and at a server."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Run, at_terminal, invoke
from tests.cli.elsewhere import There

WHY = ("--reason", "case 12")


def test_a_hold_is_placed_listed_and_released(run: Run, atlas: list[int]) -> None:
    lima = atlas[0]
    assert run("hold", "place", *WHY).code == 2 and run("hold", "place", "--fact", lima).code == 2
    assert run("hold", "list").out == "No holds found.\n"
    placed = run("hold", "place", "--fact", lima, "--corpus", "atlas", *WHY)
    assert placed.out == f"Hold 1 stands since change 2: it keeps fact {lima}; corpus atlas.\n"
    (hold,) = run("hold", "list", "--standing", "--json").json["holds"]
    assert (hold["hold_id"], hold["corpora"], hold["reason"]) == (1, ["atlas"], "case 12")
    assert (
        run("hold", "list", 1, "--json").json
        == hold
        == run("hold", "list", "--fact", lima, "--json").json["holds"][0]
    )
    assert "case 12" in run("hold", "list").out and "placed by tester" in run("hold", "list", 1).out

    refused = run("erase", lima, *WHY, "--yes")
    assert refused.code == 4 and "`colmlm hold release 1` ends the hold" in refused.err
    assert run("corpus", "delete", "atlas", *WHY, "--yes").code == 4
    assert run("erase", lima, "--dry-run").code == 4
    assert run("facts", "delete", lima, *WHY, "--yes").code == 0

    assert run("hold", "release", 1).code == 2
    assert run("hold", "release", 1, "--reason", "closed").out == "Change 4: hold 1 is released.\n"
    assert run("hold", "release", 1, *WHY).code == 4 and run("hold", "release", 9, *WHY).code == 3
    assert "release by tester, change 4: closed" in run("hold", "list", 1).out
    assert run("erase", lima, *WHY, "--yes").code == 0


def test_two_tokens_place_and_release_where_the_setting_says_so(
    run: Run, atlas: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLMLM_HOLD_NEEDS_TWO", "both")
    tokens = {
        name: run("tokens", "create", name, "--role", "operator", "--json").json["token"]
        for name in ("ann", "bob")
    }
    place = ("hold", "place", "--fact", atlas[0], *WHY)
    assert run(*place).code == 2
    monkeypatch.setenv("COLMLM_TOKEN", tokens["ann"])
    asked = run(*place)
    assert "it does not stand yet" in asked.out and "colmlm hold place --approve 1" in asked.err
    assert run("hold", "place", "--approve", 1).code == 4
    monkeypatch.setenv("COLMLM_TOKEN", tokens["bob"])
    assert run("hold", "place", "--approve", 1, "--json").json["state"] == "standing"
    waits = run("hold", "release", 1, "--reason", "closed")
    assert "it still stands" in waits.out and "waits for another token" in run("hold", "list", 1).out
    assert run("hold", "release", 1, "--withdraw").out == "Hold 1 stands since change 4: it keeps fact 1.\n"
    run("hold", "release", 1, "--reason", "closed")
    monkeypatch.setenv("COLMLM_TOKEN", tokens["ann"])
    assert run("hold", "release", 1, "--reason", "agreed", "--json").json["state"] == "released"


def test_a_rule_is_shown_tried_set_and_ended(run: Run, atlas: list[int]) -> None:
    shown = run("corpus", "retain", "atlas")
    assert shown.out == "The corpus 'atlas' has no retention rule: its documents stay.\n"
    tried = run("corpus", "retain", "atlas", "--days", 30, "--dry-run", "--json").json
    assert tried["dry_run"] and tried["rule"]["days"] == 30 and tried["num_due"] == 0 and tried["next_at"]
    assert run("corpus", "retain", "atlas", "--days", 30, "--yes").code == 2
    assert run("corpus", "retain", "nowhere").code == 3
    declined = at_terminal("corpus", "retain", "atlas", "--days", 30, *WHY, typed="n\n")
    assert declined.code == 1 and "due now: 0 documents" in declined.out
    set_ = run(
        "corpus", "retain", "atlas", "--days", 30, "--action", "erase", "--counts-from", "date", *WHY, "--yes"
    )
    assert "erase a document of 'atlas' 30 days after its own date, by change 2" in set_.out
    assert run("corpus", "retain", "atlas", "--json").json["rule"] == {
        "corpus": "atlas", "days": 30, "action": "erase", "counts_from": "date", "seq": 2,
    }  # fmt: skip
    ended = run("corpus", "retain", "atlas", "--days", 0, *WHY, "--yes")
    assert ended.out == "The documents of 'atlas' stay from now on.\n"
    assert run("corpus", "retain", "atlas", "--days", 0, *WHY, "--yes").code == 3


def test_holds_and_rules_are_the_same_there(there: There, facts: list[int]) -> None:
    placed = there.run("hold", "place", "--fact", facts[0], *WHY, "--json")
    assert placed.code == 0 and placed.json["actor"] == "the admin"
    for words in (
        ("hold", "list"),
        ("hold", "list", "--standing", "--fact", facts[0]),
        ("hold", "list", 1),
        ("corpus", "retain", "atlas", "--days", 9, "--dry-run"),
    ):
        assert any(there.same(*words, volatile=("now",)).values()), words
    refused = ("erase", facts[0], "--dry-run")
    assert there.run(*refused).err == invoke(*refused).err and there.run(*refused).code == 4
    assert (
        there.run("corpus", "retain", "atlas", "--days", 9, *WHY, "--yes", "--json").json["rule"]["days"] == 9
    )
    there.same("corpus", "retain", "atlas", volatile=("now",))
    assert there.run("corpus", "retain", "atlas", "--days", 0, *WHY, "--yes").code == 0
    assert there.run("hold", "release", 1, *WHY, "--json").json["state"] == "released"
    assert there.run("hold", "release", 1, "--withdraw").code == 4
    assert there.run("hold", "place", "--approve", 1).code == 4
