"""`colmlm questions` with the released reader: twenty kept, asked, an edit, asked again, and what that did."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.tiny import tiny_checkpoint

CAPITAL = "What is the capital of Peru?"
ASKERS = ("Ann", "Ben", "Cleo", "Dan", "Eve", "Finn", "Gus", "Hal", "Ida", "Jo", "Kim", "Leo")


PERUS = (("the capital of Peru", "?"), ("Peru's capital", "?"), ("the capital city of Peru", ""))


@pytest.fixture
def twenty(tmp_path: Path) -> Path:
    """Twenty questions: eighteen of the capital, one of the lake, and one that nothing answers."""
    file = tmp_path / "asked.csv"
    forms = (
        "What is {}",
        "Which city is {}",
        "What city is {}",
        "What is {} called",
        "Name of {}",
        "Where is {}",
    )
    capitals = [form.format(what) + end for form in forms for what, end in PERUS]
    rows = [f'"{one}",Lima\n' for one in capitals]
    file.write_text("question,value\n" + "".join(rows) + "Which lake is great?,Titicaca\nWho painted it?,\n")
    return file


@pytest.mark.slow(reason="asks the released reader many questions")
def test_twenty_questions_say_what_an_edit_did(run: Run, keyed: list[int], twenty: Path) -> None:
    kept = run("questions", "add", "lands", "--file", twenty, "--corpus", "atlas", "--json").json
    assert (kept["num_questions"], kept["corpus"]) == (20, "atlas")
    ran = run("questions", "run", "lands", "--json")
    first = ran.json
    assert ran.code == (0 if first["right"] == 20 else 1)
    assert [*first][:6] == ["asked", "right", "wrong", "abstained", "silent", "items"]
    assert first["silent"] == sum(one["outcome"] == "right" and not one["expected"] for one in first["items"])
    assert [*first["items"][0]][:6] == ["question", "expected", "value", "fact_id", "outcome", "reason"]
    assert first["asked"] == len(first["items"]) == 20
    assert first["right"] + first["wrong"] + first["abstained"] == 20 and first["right"] >= 15
    assert first["items"][0] | {"score": 0, "question_id": 0, "fact_ids": []} == {
        "question": CAPITAL, "expected": ["Lima"], "value": "Lima", "fact_id": keyed[0], "outcome": "right",
        "reason": None, "score": 0, "question_id": 0, "fact_ids": [],
    }  # fmt: skip
    run("facts", "edit", keyed[0], "--value", "Cusco", "--reason", "moved")
    told = run("questions", "run", "lands")
    assert "of 20 right" in told.out and "no fact holds it" in told.out and told.code == 1
    found = run("questions", "compare", "lands", "--json").json
    assert len(found["items"]) >= 15
    (capital,) = [one for one in found["items"] if one["before"]["question"] == CAPITAL]
    assert (capital["before"]["value"], capital["after"]["value"]) == ("Lima", "Cusco")
    assert capital["after"]["reason"] == "no fact holds it" and found["changes"]["update"] == 1
    assert len(capital["seqs"]) == 1 and found["first_seq"] < capital["seqs"][0] <= found["last_seq"]
    said = run("questions", "compare", "lands")
    assert (
        "right: Lima" in said.out and "wrong: Cusco (no fact holds it)" in said.out and "1 update" in said.out
    )
    assert "of 20 right" in run("questions", "list").out
    assert len(run("questions", "list", "lands", "--runs", "--json").json["runs"]) == 2
    assert len(run("questions", "list", "lands", "--json").json["questions"]) == 20


def test_a_set_is_asked_in_every_way(run: Run, keyed: list[int]) -> None:
    run("questions", "add", "one", "--question", CAPITAL, "--expected", "Lima", "--expected", "Lima, Peru")
    for words in (("--mode", "paper"), ("--ranking", "key"), ("--ranking", "words"), ("--ranking", "reader")):
        done = run(
            "questions", "run", "one", *words, "--threshold", -1 if "reader" not in words else 0, "--json"
        )
        assert done.code == (1 - done.json["right"]) and done.json["asked"] == 1, done.err
    ways = [one["how"] for one in run("questions", "list", "one", "--runs", "--json").json["runs"]]
    assert ways == ["reader", "words", "paper", "paper"]
    assert run("questions", "run", "one", "--mode", "paper", "--ranking", "words").code == 2
    assert run("questions", "run", "none").code == 3


def test_a_missed_value_fails_and_silence_is_counted_apart(run: Run, keyed: list[int]) -> None:
    run("questions", "add", "lake", "--question", "Who painted it?")
    ran = run("questions", "run", "lake", "--threshold", 1)
    assert ran.code == 0 and "1 of 1 right (1 silent as expected), 0 wrong, 0 abstained" in ran.out
    run("questions", "add", "lake", "--question", CAPITAL, "--expected", "Lima")
    missed = run("questions", "run", "lake", "--threshold", 1, "--json")
    counts = [missed.json[name] for name in ("asked", "right", "wrong", "abstained", "silent")]
    assert (missed.code, counts) == (1, [2, 1, 0, 1, 1])


def test_a_run_takes_accepted_facts_only(run: Run, keyed: list[int]) -> None:
    run("review", "settle", "propose", keyed[0], "--reason", "read it again")
    run("questions", "add", "one", "--question", CAPITAL, "--expected", "Lima")
    first = run("questions", "run", "one", "--json").json
    done = run("questions", "run", "one", "--accepted-only", "--json").json
    assert (first["accepted_only"], done["accepted_only"]) == (False, True)
    assert keyed[0] in first["items"][0]["fact_ids"] and keyed[0] not in done["items"][0]["fact_ids"]
    assert "accepted facts only" in run("questions", "list", "one", "--runs").out
    assert run("questions", "compare", "one", "--json").json["settings"] == ["accepted_only"]


def test_questions_are_added_and_removed(run: Run, keyed: list[int], tmp_path: Path) -> None:
    output = run("ask", CAPITAL, "--json").json["generation_id"]
    assert run("questions", "add", "seen", "--stored", output).code == 0
    lines = tmp_path / "asked.jsonl"
    lines.write_text(json.dumps({"question": "Which lake?", "value": ["Titicaca", "Lake Titicaca"]}) + "\n")
    assert run("questions", "add", "seen", "--file", lines, "--json").json["num_questions"] == 2
    shown = run("questions", "list", "seen")
    assert "Titicaca | Lake Titicaca" in shown.out
    shown_again = run("questions", "list", "seen", "--json").json["questions"]
    lines.write_text("".join(json.dumps(one) + "\n" for one in shown_again))
    assert run("questions", "add", "again", "--file", lines, "--json").json["num_questions"] == 2
    run("questions", "remove", "again", "--yes")
    first = shown_again[0]
    assert first["question"] == CAPITAL and first["expected"] == ["Lima"]
    gone = run("questions", "remove", "seen", "--question-id", first["question_id"], "--json").json
    assert gone == {"name": "seen", "removed": 1, "question_ids": [first["question_id"]]}
    assert run("questions", "remove", "seen").code == 2, "there is nobody to ask"
    assert run("questions", "remove", "seen", "--yes").code == 0
    assert run("questions", "list", "--json").json == {"sets": []}
    assert (
        run("questions", "add", "seen").code == 2
        and run("questions", "add", "a b", "--question", "x").code == 2
    )
    lines.write_text("[1]\n")
    refused = run("questions", "add", "seen", "--file", lines)
    assert refused.code == 2 and "line 1" in refused.err


@pytest.mark.slow(reason="asks the released reader many questions")
def test_a_set_calibrates_answers_and_is_asked_again(run: Run, keyed: list[int], tmp_path: Path) -> None:
    file = tmp_path / "asked.jsonl"
    lines = [{"question": f"{n}, {CAPITAL}", "value": ["Lima", "the city of Lima"]} for n in ASKERS]
    lines += [{"question": f"{n}: Peru's capital?", "value": ["Lima", "the city of Lima"]} for n in ASKERS]
    lines += [{"question": f"Who painted the chapel of {n}?", "value": ""} for n in ASKERS]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    run("questions", "add", "lands", "--file", file)
    done = run(
        "questions", "threshold", "--calibrate", "--question-set", "lands", "--wrong", 0.2, "--json"
    ).json
    assert (done["question_set"], done["given"], done["measured"]["answerable"]) == ("lands", 0, 24)
    assert run("questions", "threshold", "--json").json["calibration"]["question_set"] == "lands"
    again = run("questions", "threshold", "--calibrate", "--wrong", 0.2, "--dry-run", "--json").json
    assert again["question_set"] == "lands", "that of the last one"
    assert run("questions", "threshold", "--calibrate", "--question-set", "none").code == 3


def test_a_keyset_that_answers_kept_questions_worse_is_refused(
    run: Run, keyed: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = tiny_checkpoint(tmp_path_factory.mktemp("other"), seed=4)
    new = run("keysets", "fill", "--checkpoint", other, "--json").json["keyset_id"]
    lenient = ("--max-question-loss", 1, "--min-recall-at-1", 0)
    run("questions", "add", "lands", "--question", CAPITAL, "--expected", "Lima")
    run("questions", "add", "lands", "--question", "Which lake is great?", "--expected", "Poopó")
    asked = ("keysets", "check", new, *lenient, "--question-set", "lands")
    assert run(*asked).code == 2, "without a limit nothing would be measured"
    failed = run(*asked, "--min-right", 0.9, "--json")
    figures = {one["name"]: one for one in failed.json["criteria"]}
    assert failed.code == 1 and figures["questions right"]["figure"] == 0.5
    assert (
        figures["questions right"]["note"] == "2 questions of lands" and failed.json["questions"] == "lands"
    )
    refused = run("keysets", "activate", new)
    assert refused.code == 4 and "questions right" in refused.err
    assert run(*asked, "--min-right", 0.5, "--max-wrong", 0.5).code == 0
    other_set = run("keysets", "activate", new, "--question-set", "others")
    assert other_set.code == 4 and "did not ask the questions 'others'" in other_set.err
    assert run("keysets", "activate", new, "--question-set", "lands", "--json").json["state"] == "active"
