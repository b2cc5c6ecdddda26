"""`colmlm forget`: the whole way from a plan to a certificate, and what is refused on it."""

from __future__ import annotations

import json
from inspect import signature
from pathlib import Path

import pytest

from colmlm.api.mcp.server import plan_forgetting
from colmlm.api.routes.parameters import SelectorParts
from colmlm.api.routes.removal import NewRun
from colmlm.cli.composition.runtime import Runtime
from colmlm.kb.corpus.format import AnnotatedDocument, FactSpan, to_record
from colmlm.kb.removal.forget import Forgetting
from tests.cli.conftest import QUESTIONS, Ran, Run


@pytest.fixture
def template(atlas_template: tuple[str, list[int]]) -> str:
    return atlas_template[0]


@pytest.fixture
def keyed(run: Run, atlas: list[int], lively: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The two facts of the atlas, which their own questions find."""
    monkeypatch.setenv("COLMLM_CHECKPOINT", str(lively))
    with Runtime.from_environment() as runtime:
        runtime.kb.keysets.rekey(runtime.encoder, kinds=("context", "question"))
    return atlas


def test_every_door_lets_questions_for_forgotten_facts_abstain_by_default(
    run: Run, keyed: list[int], tmp_path: Path
) -> None:
    doors = (Forgetting.plan, plan_forgetting)
    assert {signature(door).parameters["policy"].default for door in doors} == {"abstain"}
    assert NewRun(selector=SelectorParts(), reason="r").policy == "abstain"
    number = planned(run).json["run_id"]
    assert run("forget", "apply", number, "--yes").code == run("forget", "verify", number).code == 0
    issued = tmp_path / "certificate.json"
    assert run("forget", "certificate", number, "--output", issued).code == 0
    assert run("log", "verify", issued, "--json").json["policy"] == "abstain"


def planned(run: Run, *words: object) -> Ran:
    return run("forget", "plan", "--text", "Lima", "--reason", "a test", "--json", *words)


def test_from_a_plan_to_a_certificate_and_back(run: Run, keyed: list[int], tmp_path: Path) -> None:
    lima = keyed[0]
    again = run(
        "facts",
        "add",
        "--question",
        QUESTIONS["Lima"],
        "--value",
        "lima",
        "--reason",
        "r",
        "--no-key",
        "--json",
    )
    same = again.json["fact_ids"][0]
    plan = planned(run, "--equivalents", "include", "--fact", lima, "--policy", "abstain").json
    assert plan["fact_ids"] == [lima, same] and plan["equivalents"] == [same] and plan["included"]
    assert [fact["value"] for fact in plan["texts"]["facts"]] == ["Lima", "lima"]
    (successor,) = plan["successors"]
    assert successor["outcome"] == "abstained" and not successor["would_answer"] and successor["encoded"]
    assert successor["question"] == QUESTIONS["Lima"] and successor["value"] == "Titicaca"
    number = plan["run_id"]

    assert run("forget", "apply", number, "--dry-run", "--json").json["drift"]["stale"] == []
    assert run("forget", "verify", number, "--json").code == 4
    edit = run("forget", "apply", number, "--yes", "--json").json
    assert (edit["kind"], edit["fact_ids"], edit["run_id"]) == ("forget", [lima, same], number)
    (tmp_path / "more.txt").write_text("Peru's capital?\n\n")
    found = run("forget", "verify", number, "--paraphrases", tmp_path / "more.txt", "--json").json
    assert found["holds"] and found["probes"]["given"]["probes"] == 1
    assert found["probes"]["question"] == {**found["probes"]["question"], "leaks": 0, "abstained": 2}
    shown = run("forget", "verify", number).out
    assert "level 1" in shown and "question" in shown

    file = tmp_path / "run.json"
    assert run("forget", "certificate", number, "--output", file).code == 0
    assert file.read_text() == run("forget", "certificate", number).out
    checked = run("log", "verify", file, "--json").json
    assert checked["ok"] and checked["num_facts"] == 2
    assert run("log", "verify", file, "--key", checked["signed_by"]).out.startswith("ok")
    assert run("log", "export", "--public-key", "--output", pem := tmp_path / "base.pem").code == 0
    assert run("log", "export", "--public-key").out == pem.read_text()
    assert run("log", "verify", file, "--offline", "--public-key", pem, "--json").json["offline"]
    assert run("log", "verify", file, "--offline").code == 2
    strange = run("log", "verify", file, "--key", "0" * 16)
    assert strange.code == 1 and "NOT ok, signer" in strange.out and "ok, run" in strange.out
    good = file.read_text()
    file.write_text(good.replace('"payload": "', '"payload": "A'))
    refused = run("log", "verify", file, "--json")
    assert refused.code == 1 and not refused.json["ok"]
    assert run("log", "verify", file).out.startswith("NOT ok")

    assert run("forget", "undo", number, "--dry-run", "--json").json["run"]["state"] == "applied"
    assert run("forget", "undo", number, "--reason", "undo", "--yes", "--json").json["kind"] == "restore"
    file.write_text(good)
    assert "NOT ok, state: the run is restored" in run("log", "verify", file).out
    (listed,) = run("forget", "list", "--json").json["runs"]
    assert (listed["state"], listed["num_facts"], listed["level"]) == ("restored", 2, 1)
    assert run("forget", "list", number, "--json").json["plan"]["equivalents"] == [same]
    assert "is restored" in run("forget", "list", number).out


def test_a_plan_is_discarded_by_undo(run: Run, keyed: list[int]) -> None:
    number = planned(run).json["run_id"]
    assert run("forget", "undo", number, "--dry-run", "--json").json["run"]["state"] == "planned"
    assert len(run("forget", "list", "--json").json["runs"]) == 1, "a dry run changes nothing"
    done = run("forget", "undo", number, "--reason", "a mistake", "--yes")
    assert done.code == 0 and f"discard-plan, run {number}" in done.out
    assert run("forget", "list", "--json").json["runs"] == []
    (newest,) = run("log", "list", "--limit", 1, "--json").json["changes"]
    assert (newest["kind"], newest["reason"], newest["fact_ids"]) == ("discard-plan", "a mistake", [])
    assert run("facts", "show", keyed[0], "--json").code == run("log", "verify").code == 0


def test_places_that_would_still_answer_are_shown_with_what_they_say(
    run: Run, keyed: list[int], tmp_path: Path
) -> None:
    where = "Visitors ask what the capital of Peru is. The capital of Peru is Lima."
    told = AnnotatedDocument("guide", where, (FactSpan(65, 69, "Lima", "Which city is it?", "Lima"),))
    (tmp_path / "guide.jsonl").write_text(json.dumps(to_record(told)) + "\n")
    added = run("corpus", "add", tmp_path / "guide.jsonl", "--format", "annotated", "--corpus", "guides")
    assert added.code == 0
    plan = planned(run, "--fact", keyed[0]).json
    (told_there,) = plan["texts"]["survivors"]
    assert plan["read"] == 1 and (told_there["text"], told_there["says"]) == ("Lima", "same")
    assert told_there["source"]["external_id"] == "guide" and told_there["source"]["start"] == 65
    fact = told_there["facts"][0]["fact_id"]
    assert plan["equivalents"] == [fact] and plan["survivors"][0]["fact_ids"] == [fact]
    run("forget", "apply", plan["run_id"], "--yes")
    verified = run("forget", "verify", plan["run_id"], "--json").json
    assert verified["read"] == verified["probes"]["read"]["probes"] == 1 and verified["holds"]
    assert verified["texts"]["survivors"] == [told_there]
    for shown in (run("forget", "verify", plan["run_id"]).out, run("forget", "list", plan["run_id"]).out):
        assert "1 place might still answer" in shown and "guides/guide[65:69]" in shown


def test_a_plan_is_shown_to_people(run: Run, keyed: list[int]) -> None:
    ran = run("forget", "plan", "--document", "atlas/peru", "--reason", "r", "--no-model")
    assert ran.code == 0 and "Titicaca" in ran.out and "2 of 2 questions previewed (0 encoded" in ran.out
    assert "colmlm forget apply 1" in ran.err
    assert "restored" not in run("forget", "list").out


def test_everything_and_nothing_must_be_meant(run: Run, keyed: list[int]) -> None:
    plan = ("forget", "plan", "--reason", "r", "--no-model", "--json")
    assert run(*plan).code == 2
    assert run(*plan, "--everything", "--text", "Lima").code == 2
    assert run(*plan, "--everything").json["fact_ids"] == keyed
    nothing = run(*plan, "--text", "Atlantis")
    assert nothing.code == 3 and nothing.err.count("\n") == 1
    assert run(*plan, "--text", "Atlantis", "--allow-empty").json["fact_ids"] == []


def test_what_cannot_be_done_is_said_in_one_line(run: Run, keyed: list[int]) -> None:
    number = planned(run, "--no-model").json["run_id"]
    cases = (
        (2, ("forget", "apply", number)),
        (2, ("forget", "apply", number, "--json")),
        (2, ("forget", "undo", number, "--yes")),
        (2, ("forget", "plan", "--since", "some day", "--reason", "r")),
        (2, ("forget", "verify", number, "--paraphrases", "no-such-file")),
        (3, ("forget", "list", 99)),
        (4, ("forget", "certificate", number)),
        (2, ("log", "verify", "no-such-file")),
    )
    for code, words in cases:
        ran = run(*words)
        assert ran.code == code and ran.err.count("\n") == 1, (words, ran)
    run("facts", "edit", keyed[0], "--value", "Cusco", "--reason", "r")
    stale = run("forget", "apply", number, "--yes")
    assert stale.code == 4 and "Make a new plan" in stale.err
    assert "Edited since: " in run("forget", "apply", number, "--dry-run").out
