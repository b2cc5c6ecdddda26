from __future__ import annotations

import pytest

from colmlm.kb.corpus.format import AnnotatedDocument, FactSpan, Parsed
from colmlm.kb.service import KnowledgeBase
from tests.cli.conftest import Run, at_terminal
from tests.hops import recorded_hops

ASKED, WHY = ("--question", "Who weighed the Earth?", "--no-key"), ("--reason", "a test")
MOST_HOPS = 8  # without `main` and `start`, which call the root; may only go down


def test_facts_are_searched_and_counted(run: Run, atlas: list[int]) -> None:
    page = run("facts", "list", "--text", "Peru", "--limit", 1, "--json").json
    assert page["total"] == 2 and page["is_exact"] and len(page["facts"]) == 1
    rest = run("facts", "list", "--text", "Peru", "--after", page["next_after"], "--json").json
    assert len(rest["facts"]) == 1 and rest["next_after"] is None
    told = run("facts", "list", "--text", "Peru", "--limit", 1).err.rpartition("--after ")[2].strip()
    assert len(told) < 8 and run("facts", "list", "--text", "Peru", "--after", told, "--json").json == rest
    assert run("facts", "list", "--after", "4.").code == 2
    run("facts", "edit", atlas[0], "--value", "Cusco", "--reason", "a test", "--actor", "ann")
    for words in (("--by", "ann"), ("--kind", "update"), ("--text", "sco", "--literally")):
        (fact,) = run("facts", "list", *words, "--json").json["facts"]
        assert fact["fact_id"] == atlas[0]
    assert run("facts", "list", "--sort", "newest", "--json").json["facts"][0]["fact_id"] == atlas[1]
    assert run("facts", "list", "--until", "2000-01-01", "--json").json["total"] == 0
    assert "2 facts in all." in run("facts", "list", "--limit", 1).err
    for words in (
        ("--deleted", "--all"),
        ("--text", "a", "--near", "b"),
        ("--csv", "--json"),
        ("--since", "x"),
    ):
        assert run("facts", "list", *words).code == 2


def test_facts_come_as_csv_without_formulas(run: Run, atlas: list[int]) -> None:
    run("facts", "edit", atlas[0], "--value", "@SUM(1)", "--reason", "a test")
    header, first, *_ = run("facts", "list", "--csv", "--limit", 1).out.splitlines()
    assert header.startswith("fact_id,state,value,") and first.startswith(f"{atlas[0]},live,'@SUM(1),")


def test_a_table_has_one_line_a_fact_however_long(run: Run) -> None:
    run(
        "facts", "add", "--question", "q " * 200, "--value", "[red]v[/red] " * 50, "--reason", "r", "--no-key"
    )
    header, line = run("facts", "list").out.splitlines()
    assert header.startswith("id") and "[red]v[/red]" in line


def test_a_fact_without_a_question_is_listed_with_the_sentence_around_it(run: Run, kb: KnowledgeBase) -> None:
    text = f"It is old. The museum of Lundvik opened in 1902. {'It was built of stone, ' * 20}by 40 masons. It is free."
    spans = tuple(
        FactSpan(at := text.index(value), at + len(value), value) for value in ("1902", "40 masons")
    )
    kb.corpora.ingest([Parsed(AnnotatedDocument("a", text, spans))], "guide", actor="tester", reason="test")
    header, short, long = (" ".join(line.split()) for line in run("facts", "list").out.splitlines())
    assert "question or sentence" in header
    assert "1902 The museum of Lundvik opened in 1902. guide/a[" in short
    assert "stone, by 40 masons. guide/a[" in long and "…" in long and len(long) < 160


def test_only_a_fact_with_this_value_is_said_to_say_it(run: Run, atlas: list[int]) -> None:
    first = run("facts", "add", *ASKED, "--value", "Henry Cavendish", *WHY, "--json").json["fact_ids"][0]
    second = run("facts", "add", *ASKED, "--value", "Henry Cavendish.", *WHY, "--json").json["fact_ids"][0]
    short = run("facts", "edit", second, "--value", "Cavendish", *WHY)
    assert short.code == 0 and "Said already" not in short.err
    same = run("facts", "edit", second, "--value", "the Henry Cavendish", *WHY)
    assert f"Said already by fact {first}." in same.err


def test_an_edit_is_a_change_with_actor_and_reason(run: Run, atlas: list[int]) -> None:
    edit = run(
        "facts", "edit", atlas[0], "--value", "Cusco", "--reason", "a test", "--actor", "ann", "--json"
    ).json
    assert edit["kind"] == "update" and edit["fact_ids"] == atlas[:1]
    last = run("log", "list", "--after", edit["seq"] - 1, "--json").json["changes"][0]
    assert (last["actor"], last["reason"]) == ("ann", "a test")
    shown = run("facts", "show", atlas[0], "--json").json
    assert shown["value"] == "Cusco" and shown["source"]["external_id"] == "peru"
    assert "atlas/peru[" in run("facts", "show", atlas[0]).out


def test_deleting_asks_first(run: Run, atlas: list[int]) -> None:
    delete = ("facts", "delete", *atlas, "--reason", "a test")
    ran = at_terminal(*delete, typed="n\n")
    assert ran.code == 1 and "nothing was done" in ran.err
    assert len(run("facts", "list", "--json").json["facts"]) == 2
    assert at_terminal(*delete, typed="y\n").code == 0
    assert run("facts", "list", "--json").json["facts"] == []


def test_adding_says_that_the_fact_stands_where_it_cannot_be_keyed(
    run: Run, atlas: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLMLM_CHECKPOINT", "/no/such/checkpoint")
    ran = run("facts", "add", "--question", "Who wrote Emma?", "--value", "Jane Austen", "--reason", "r")
    assert ran.code == 7 and "was made, but" in ran.err
    assert len(run("facts", "list", "--text", "Emma", "--json").json["facts"]) == 1
    ran = run("facts", "add", *ASKED, "--value", "Henry Cavendish", *WHY)
    assert ran.code == 0 and "colmlm keysets fill" in ran.err, "it was to have no key"


def test_few_functions_stand_between_the_command_and_its_sql(run: Run, atlas: list[int]) -> None:
    with recorded_hops() as stacks:
        assert run("facts", "delete", atlas[0], "--reason", "a test", "--yes").code == 0
    found = min(stacks, key=len)
    assert len(found) <= MOST_HOPS, "\n".join(found)
