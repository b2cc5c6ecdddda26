"""Forgetting and erasing in a knowledge base elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import invoke
from tests.cli.elsewhere import WHY, There
from tests.cli.removal.test_erase import share_elsewhere

NOT_TOLD = "selector_digest"  # by the API; it is in the certificate


@pytest.mark.slow(reason="types many commands here and against a server")
def test_a_run_from_its_plan_to_its_certificate_and_back(
    there: There, facts: list[int], tmp_path: Path
) -> None:
    plan = ("forget", "plan", "--text", "Lima", "--equivalents", "include", "--policy", "abstain", *WHY)
    there.same(*plan, volatile=("run_id", NOT_TOLD))
    made = there.run(*plan, "--since", "2020-01-01", "--json", role="operator").json
    run_id = made["run_id"]
    assert made["fact_ids"] == facts[:1] and made["successors"][0]["question"] and made["before"]
    shown = there.run(*plan)
    assert "previewed" in shown.out and "colmlm forget apply" in shown.err
    there.same("forget", "list", "--limit", 2)
    there.same("forget", "apply", run_id, "--dry-run")
    assert "'edit'" in there.run("forget", "apply", run_id, "--yes", role="auditor").err
    applied = there.run("forget", "apply", run_id, "--yes", "--json", role="operator").json
    assert applied["fact_ids"] == facts[:1] and there.kb.log.changes()[-1].reason == "a test"
    questions = tmp_path / "questions.txt"
    questions.write_text("Peru's capital?\n")
    verify = ("forget", "verify", run_id, "--paraphrases", questions)
    # the index of a process that just began has nothing of the facts; the server's may hold their keys still
    there.same(*verify, volatile=("at", "keys_in_index", "level", "tombstones"))
    assert there.run("forget", "verify", run_id, role="auditor").code == 0
    there.same("forget", "list", run_id, volatile=(NOT_TOLD,))
    here, answer = invoke("forget", "certificate", run_id), there.run("forget", "certificate", run_id)
    assert here.out == answer.out and '"payload"' in here.out
    (file := tmp_path / "run.json").write_text(here.out)
    there.same("log", "verify", file)
    assert there.run("log", "export", "--public-key").out == invoke("log", "export", "--public-key").out
    there.same("forget", "undo", run_id, "--dry-run")
    back = there.run("forget", "undo", run_id, *WHY, "--yes", "--json").json
    assert back["kind"] == "restore" and there.kb.facts.show(facts[0]).deleted_seq is None
    for words, code in (
        (("forget", "list", 99), 3),
        (("forget", "apply", run_id, "--yes"), 4),
        (("forget", "plan", "--text", "Atlantis", *WHY), 3),
        (("forget", "certificate", 99), 3),
    ):
        told, refused = invoke(*words), there.run(*words)
        assert (refused.code, refused.err) == (told.code, told.err) and told.code == code
    assert there.run(*plan, "--sample", 501).code == 2


def test_what_is_to_be_confirmed_is_asked_with_the_count(there: There, facts: list[int]) -> None:
    run_id = there.run("forget", "plan", "--everything", *WHY, "--no-model", "--json").json["run_id"]
    assert there.run("forget", "apply", run_id).code == 2
    asked = there.at_terminal("forget", "apply", run_id, typed="n\n")
    assert asked.code == 1 and "Forget 2 facts" in asked.err
    assert len(there.kb.facts.find()) == 2


@pytest.mark.slow(reason="types many commands here and against a server")
def test_facts_are_erased_there_by_one_admin(there: There, facts: list[int]) -> None:
    there.same("erase", *facts, "--dry-run")
    done = there.run("erase", facts[0], *WHY, "--yes", "--json").json
    here = invoke("erase", facts[1], *WHY, "--yes", "--json").json
    assert done.keys() == here.keys() and done["level"] >= 1 and done["fact_ids"] == facts[:1]
    told, refused = invoke("erase", 99, "--dry-run"), there.run("erase", 99, "--dry-run")
    assert (refused.code, refused.err) == (told.code, told.err) and told.code == 3
    again = [run("erase", facts[0], *WHY, "--yes", "--json").json for run in (invoke, there.run)]
    assert [(erased["fact_ids"], erased["seq"]) for erased in again] == [(facts[:1], None)] * 2, (
        "nothing was left"
    )
    assert "--now" in there.run("erase", "--now").err
    assert there.run("erase", facts[0], *WHY, "--yes", role="operator").code == 2


def test_an_erasure_there_that_does_not_reach_its_level_exits_with_a_failing_code(
    there: There, facts: list[int], database_url: str
) -> None:
    share_elsewhere(database_url)
    ran = there.run("erase", facts[0], *WHY, "--yes", "--json")
    assert (ran.code, ran.json["level"], ran.json["asked_level"]) == (1, 1, 2)


def test_an_erasure_is_certified_here_and_there(there: There, facts: list[int], tmp_path: Path) -> None:
    seq = there.run("erase", facts[0], *WHY, "--yes", "--json").json["seq"]
    file, key = tmp_path / "erased.json", tmp_path / "base.pem"
    key.write_text(there.run("log", "export", "--public-key").out)
    assert there.run("erase", "certificate", seq, "--output", file, role="auditor").code == 0
    checked = there.same("log", "verify", file)
    assert checked["ok"] and checked["applied_seq"] == seq and checked["run_id"] is None
    shown = invoke("log", "verify", file, "--offline", "--public-key", key)
    assert shown.code == 0 and f"1 fact erased by change {seq}" in shown.out
    told, refused = invoke("erase", "certificate", 1), there.run("erase", "certificate", 1)
    assert (refused.code, refused.err) == (told.code, told.err) and told.code == 3


@pytest.mark.slow(reason="types many commands here and against a server")
def test_a_person_is_gone_after_three_commands_here_or_there(
    there: There, facts: list[int], tmp_path: Path
) -> None:
    there.kb.facts.add("Who won?", "Maria Keller", actor="tester", reason="asked by Maria Keller")
    there.kb.facts.add("Who lost?", "Mark Keller", actor="tester", reason="test")
    plan, page, certificate = (tmp_path / name for name in ("plan.json", "report.html", "erased.json"))
    find = ("person", "find", "Maria Keller", "--also", "Mia Keller")
    there.same(*find, volatile=("at", "plan"))
    found = there.run(*find, "--output", plan, "--output", page, role="auditor")
    assert found.code == 0 and "2 sure places" in found.out and f"--plan {plan}" in found.err, found
    shown = page.read_text()
    assert shown.count("<mark>Maria Keller</mark>") == 2 and "<script" not in shown and "http" not in shown
    assert plan.stat().st_mode & 0o777 == page.stat().st_mode & 0o777 == 0o600
    there.same("erase", "facts", "--plan", plan, "--dry-run")
    assert there.run("erase", "facts", "--plan", plan, *WHY, "--yes", role="operator").code == 2
    done = there.run("erase", "facts", "--plan", plan, *WHY, "--yes", "--json").json
    assert (len(done["fact_ids"]), done["places"]) == (1, {"change.reason": 1})
    assert there.run("erase", "certificate", done["seq"], "--output", certificate).code == 0
    checked = there.same("log", "verify", certificate)
    assert checked["ok"] and checked["num_places"] == 1
    refused = invoke("erase", "facts", "--plan", plan, *WHY, "--yes")
    assert refused.code == 4 and "colmlm person find" in refused.err
    left = there.same(*find, volatile=("at", "plan"))
    assert left["sure"] == [] and there.kb.facts.find(text="Mark")


def test_an_erasure_that_takes_two_waits_for_another_key(
    there: There, facts: list[int], tmp_path: Path
) -> None:
    object.__setattr__(there.kb.settings, "erase_needs_two", True)
    asked = there.run("erase", *facts, *WHY, "--yes", "--json").json
    request_id = asked["request"]["erasure_request_id"]
    assert asked["request"]["asked_by"] == "the admin" and asked["seq"] is None
    there.same("erase", "settle", "waiting")
    there.same("erase", "settle", "approve", request_id, "--dry-run")
    assert there.run("erase", "settle", "approve", request_id, "--yes").code == 4
    other = tmp_path / "other.key"
    other.write_text(invoke("tokens", "create", "other", "--role", "admin", "--json").json["token"])
    also = {**there.tokens, "other": other}
    second = There(there.address, also, there.kb)
    done = second.run("erase", "settle", "approve", request_id, "--yes", "--json", role="other").json
    assert done["request"]["state"] == "approved" and done["level"] >= 1 and done["fact_ids"] == facts
    assert there.run("erase", "settle", "withdraw", 99, "--yes").code == 3


def test_what_works_on_the_machine_only_says_so() -> None:
    for words, hint in (
        ("doctor --data", "jobs start fsck"),
        ("backup create x", "jobs start backup"),
        ("db status", "run it there"),
        ("serve", "run it there"),
    ):
        ran = invoke(*words.split(), "--server", "http://127.0.0.1:1")
        assert ran.code == 2 and ran.err.count("\n") == 1 and hint in ran.err, ran.err
