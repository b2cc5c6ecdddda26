"""Misses and wrong outputs by command: turned into a fact that answers, and mended from the output."""

from __future__ import annotations

import pytest

from tests.cli.conftest import QUESTIONS, Run

WHY = ("--reason", "a test")
EMMA = "Who wrote Emma?"


def test_a_miss_is_turned_into_a_fact_that_answers(run: Run, keyed: list[int]) -> None:
    missed = run("ask", EMMA, "--json")
    assert missed.code == 3
    (group,) = run("misses", "list", "--json").json["groups"]
    assert (group["question"], group["asked"], group["generation_id"]) == (
        EMMA, 1, missed.json["generation_id"]
    )  # fmt: skip
    assert EMMA in run("misses", "list").out and EMMA in run("misses", "list", 1).out
    solved = run("misses", "settle", "solve", 1, "--value", "Jane Austen", *WHY, "--json").json
    assert solved["solved"] and [one["found"] for one in solved["asked"]] == [True]
    assert run("ask", EMMA, "--json").json["answer"] == "Jane Austen"
    assert run("misses", "list", "--json").json["groups"] == []
    (group,) = run("misses", "list", "--state", "solved", "--json").json["groups"]
    assert group["fact_id"] == solved["fact_id"] and group["decision"]["seq"] == solved["seq"]
    assert f"by fact {solved['fact_id']}" in run("misses", "list", 1).out


def test_a_fact_that_is_not_found_solves_nothing_and_the_exit_code_says_so(
    run: Run, keyed: list[int]
) -> None:
    run("ask", EMMA)
    run("misses", "list")
    tried = run("misses", "settle", "solve", 1, "--fact", keyed[0], *WHY)
    assert tried.code == 1 and "Not solved" in tried.out
    assert run("misses", "settle", "solve", 1, "--fact", keyed[0], "--anyway", *WHY).code == 0
    assert run("misses", "settle", "solve", 1, *WHY).code == 2
    for given in (("--anyway",), ("--fact", 1), ("--fact", 1, "--anyway")):
        refused = run("misses", "settle", "dismiss", 1, *given, *WHY)
        assert refused.code == 2 and ", ".join(str(g) for g in given if g != 1) in refused.err
        assert "only `solve` takes" in refused.err
    assert run("misses", "settle", "solve", 1, "--fact", keyed[0], "--value", "x", *WHY).code == 2


def test_a_fact_that_contradicts_another_solves_a_miss_only_anyway(run: Run, keyed: list[int]) -> None:
    run("ask", EMMA)
    run("misses", "list")
    solving = ("misses", "settle", "solve", 1, "--question", QUESTIONS["Lima"], "--value", "Cusco", *WHY)
    refused = run(*solving)
    assert refused.code == 4 and "--anyway" in refused.err
    assert run(*solving, "--anyway", "--json").json["solved"]
    assert run("facts", "compare", "contradictions", "--json").json["total"] == 1


def test_no_fact_is_added_for_a_group_that_cannot_be_solved(run: Run, keyed: list[int]) -> None:
    run("ask", EMMA)
    run("misses", "list")
    run("misses", "settle", "solve", 1, "--value", "Jane Austen", *WHY)
    number = run("facts", "list", "--json").json["total"]
    assert run("misses", "settle", "solve", 998, "--question", "Who?", "--value", "Ann", *WHY).code == 3
    assert run("misses", "settle", "solve", 1, "--question", "Who?", "--value", "Ann", *WHY).code == 4
    assert run("facts", "list", "--json").json["total"] == number


def test_no_fact_is_added_that_asks_what_was_erased(run: Run, keyed: list[int]) -> None:
    run("ask", "Who wrote the book Persuasion Persuasion?")
    added = run("facts", "add", "--question", EMMA, "--value", "Persuasion", *WHY, "--json").json
    run("misses", "list")
    run("erase", *added["fact_ids"], "--yes", *WHY)
    assert "█" in run("misses", "list", 1).out
    refused = run("misses", "settle", "solve", 1, "--value", "Ann", *WHY)
    assert refused.code == 2 and "--question" in refused.err


def test_groups_are_dismissed_and_reopened(run: Run, keyed: list[int]) -> None:
    run("ask", EMMA)
    run("misses", "list")
    done = run("misses", "settle", "dismiss", 1, *WHY, "--json").json
    assert done["state"] == "dismissed" and done["group_ids"] == [1]
    assert run("misses", "settle", "dismiss", 1, *WHY).code == 4
    assert run("misses", "settle", "reopen", 998, *WHY).code == 3
    undone = run("facts", "undo", done["seq"], *WHY)
    assert undone.code == 4 and "colmlm misses settle reopen" in undone.err
    assert run("misses", "settle", "reopen", 1, *WHY).out.startswith("change ")
    assert [one["kind"] for one in run("log", "list", "--json").json["changes"]][:2] == [
        "reopen-misses",
        "dismiss-misses",
    ]


def test_a_wrong_answer_is_mended_from_its_output(run: Run, keyed: list[int]) -> None:
    question = QUESTIONS["Lima"]
    output = run("ask", question, "--json").json["generation_id"]
    led = run(
        "trace", "feedback", output, "--down", "--value", "Cusco", "--comment", "it moved", "--json"
    ).json
    (behind,) = led["facts"]
    assert (behind["said"], behind["live"], behind["fixed"], led["add"]) == ("Lima", True, False, None)
    assert behind["commands"][0] == f'colmlm facts edit {behind["fact_id"]} --value Cusco --reason "..."'
    edit = run("facts", "edit", behind["fact_id"], "--value", "Cusco", *WHY, "--json").json
    assert run("ask", question, "--json").json["answer"] == "Cusco"
    (behind,) = run("trace", "feedback", output, "--down", "--json").json["facts"]
    assert behind["fixed"] and behind["says_now"] == "Cusco"
    assert "says now: Cusco" in run("trace", "feedback", output, "--down").out
    run("facts", "undo", edit["seq"], *WHY)
    assert run("ask", question, "--json").json["answer"] == "Lima"
    assert [one["wrong"] for one in run("misses", "list", "--json").json["groups"]] == [1]


def test_where_no_fact_is_cited_it_leads_to_adding_one(run: Run, keyed: list[int]) -> None:
    output = run("ask", EMMA, "--json").json["generation_id"]
    led = run("trace", "feedback", output, "--down", "--value", "Jane Austen", "--json").json
    assert led["facts"] == []
    assert led["add"] == f"colmlm facts add --question '{EMMA}' --value 'Jane Austen' --reason \"...\""
    assert led["add"] in run("trace", "feedback", output, "--down", "--value", "Jane Austen").out


def test_thumbs_are_kept_listed_and_shown(run: Run, keyed: list[int]) -> None:
    output = run("ask", QUESTIONS["Lima"], "--json").json["generation_id"]
    run("ask", EMMA)
    assert run("trace", "feedback", output, "--up", "--comment", "yes", "--json").json["thumb"] == "up"
    assert run("trace", "feedback", output, *WHY).code == 2
    assert run("trace", "feedback", 998, "--down").code == 3
    (listed,) = run("trace", "outputs", "--feedback", "up", "--json").json["outputs"]
    assert (listed["generation_id"], listed["up"], listed["down"]) == (output, 1, 0)
    assert "thumb up by tester: yes" in run("trace", "output", output).out
    assert run("trace", "outputs", "--feedback", "down", "--json").json["outputs"] == []


def test_nothing_is_listed_where_no_questions_are_kept(
    run: Run, keyed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLMLM_KEEP_ANSWERS", "no")
    run("ask", EMMA)
    said = run("misses", "list")
    assert said.code == 0 and "COLMLM_KEEP_ANSWERS" in said.err
    assert run("misses", "list", "--json").json["kept"] is False
