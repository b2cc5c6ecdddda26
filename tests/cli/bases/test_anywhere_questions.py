"""Kept questions of a knowledge base elsewhere: the same as here, and asked there by a worker."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.api.conftest import CAPITAL, LAKE
from tests.cli.conftest import invoke
from tests.cli.elsewhere import There, pruned, working


@pytest.mark.slow(reason="types many commands here and against a server")
def test_questions_are_kept_asked_and_compared_there_as_here(
    there: There, facts: list[int], tmp_path: Path
) -> None:
    file = tmp_path / "asked.csv"
    file.write_text(f"question,value\n{CAPITAL},Lima\n{LAKE},Titicaca\nWho rules?,\n")
    added = there.run(
        "questions", "add", "lands", "--file", file, "--corpus", "atlas", "--json", role="operator"
    )
    assert added.json["actor"] == "the operator"
    there.same("questions", "add", "lands", "--question", "Which country?", "--expected", "Peru")
    there.same("questions", "add", "lands", "--stored", 1)
    here = invoke("questions", "run", "lands", "--json").json
    there.kb.facts.edit(facts[0], "Cusco", actor="ann", reason="moved")
    there.kb.facts.edit(facts[0], "Lima", actor="ann", reason="back")
    with working(there.kb):
        done = there.run("questions", "run", "lands", "--json", role="operator")
        assert there.run("questions", "run", "none").code == 3
    volatile = ("run_id", "at", "seconds", "actor", "first_seq", "seq")
    assert pruned(done.json, volatile) == pruned(here, volatile)
    assert done.json["actor"] == "the operator" and done.json["seq"] == here["seq"] + 2
    for words in (
        ("list",),
        ("list", "lands"),
        ("list", "lands", "--runs"),
        ("compare", "lands"),
        ("compare", "lands", here["run_id"], done.json["run_id"]),
    ):
        assert there.same("questions", *words)
    assert there.run("questions", "compare", "lands", "--json").json["changes"] == {"update": 2}
    ids = [one["question_id"] for one in there.run("questions", "list", "lands", "--json").json["questions"]]
    assert there.run("questions", "remove", "lands", "--question-id", ids[0], "--json").json["removed"] == 1
    assert "'edit'" in there.run("questions", "remove", "lands", "--yes", role="reader").err
    assert there.run("questions", "remove", "lands", "--yes").code == 0
    assert there.same("questions", "list") == {"sets": []}


def test_a_keyset_is_checked_there_with_kept_questions(there: There, facts: list[int]) -> None:
    invoke("questions", "add", "lands", "--question", CAPITAL, "--expected", "Lima")
    check = ("keysets", "check", 1, "--question-set", "lands", "--min-right", 0.5, "--json")
    with working(there.kb):
        elsewhere = there.run(*check, role="trainer")
    here = invoke(*check)
    assert here.json["criteria"] == elsewhere.json["criteria"] and here.json["questions"] == "lands"
