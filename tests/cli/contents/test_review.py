"""Review by command: the inbox is listed and settled, from a file too, and only accepted facts answer where asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import QUESTIONS, Run

WHY = ("--reason", "a test", "--json")


@pytest.fixture
def proposed(run: Run, keyed: list[int]) -> list[int]:
    """The facts of the atlas, proposed again."""
    run("review", "settle", "propose", *keyed, *WHY)
    return keyed


def test_the_inbox_is_listed_with_a_total_and_the_progress(run: Run, proposed: list[int]) -> None:
    found = run("review", "list", "--json").json
    assert [item["fact"]["fact_id"] for item in found["items"]] == proposed and found["total"] == 2
    assert found["progress"] == {"proposed": 2, "accepted": 0, "rejected": 0, "is_exact": True}
    ran = run("review", "list", "--kind", "unasked")
    assert ran.code == 0 and "0 facts to review" in ran.err
    ran = run("review", "list", "--limit", 1)
    assert "Lima" in ran.out and "Titicaca" not in ran.out and "More facts: --after" in ran.err


def test_a_fact_is_added_for_somebody_to_accept(run: Run, keyed: list[int]) -> None:
    said = ("--question", "Who wrote Emma?", "--value", "Jane Austen", "--no-key", *WHY)
    added = run("facts", "add", "--proposed", *said).json["fact_ids"]
    assert [item["fact"]["fact_id"] for item in run("review", "list", "--json").json["items"]] == added
    ran = run("facts", "add", "--document", 1, "--text", "Peru", "--proposed", *WHY)
    assert ran.code == 2 and "review settle propose" in ran.err


def test_facts_are_accepted_and_rejected_and_brought_back(run: Run, proposed: list[int]) -> None:
    done = run("review", "settle", "accept", proposed[0], *WHY).json
    assert done["fact_ids"] == proposed[:1] and done["before"] == [] and len(done["seqs"]) == 1
    dry = run("review", "settle", "reject", proposed[1], "--dry-run", "--json").json
    assert dry["dry_run"] and dry["facts"][0]["review"] == "proposed"
    assert run("review", "settle", "reject", proposed[1]).code == 2, "it takes a reason"
    run("review", "settle", "reject", proposed[1], *WHY)
    listed = run("facts", "list", "--all", "--json").json
    assert listed["total"] == 2 and [fact["review"] for fact in listed["facts"]] == ["accepted", "rejected"]
    assert run("facts", "list", "--review", "rejected", "--deleted", "--json").json["total"] == 1
    run("facts", "restore", proposed[1], *WHY)
    assert run("facts", "show", proposed[1], "--json").json["review"] == "proposed"
    undone = run("facts", "undo", done["seqs"][0], *WHY).json
    assert undone["kind"] == "propose"
    assert "review:   proposed" in run("facts", "show", proposed[0]).out


def test_what_was_settled_already_is_told_and_exits_with_three(run: Run, proposed: list[int]) -> None:
    run("review", "settle", "accept", proposed[0], *WHY)
    ran = run("review", "settle", "accept", *proposed, "--reason", "again")
    assert ran.code == 3
    assert f"Fact {proposed[0]} was left as it is: accepted" in ran.err and str(proposed[1]) in ran.out


def test_a_dry_run_tells_what_would_be_left_as_it_is(run: Run, proposed: list[int], tmp_path: Path) -> None:
    one, other = proposed
    file = tmp_path / "verdicts.csv"
    file.write_text(f"fact_id,verdict,version\n{one},accept,7\n{other},accept,1\n")
    ran = run("review", "settle", "--file", file, "--dry-run")
    assert ran.code == 3 and f"Fact {one} would be left as it is: proposed, in version 1" in ran.err
    run("review", "settle", "reject", other, *WHY)
    ran = run("review", "settle", "reject", other, "--dry-run", "--json")
    assert ran.code == 3 and ran.json["left"] == [other]


def test_verdicts_come_from_a_file(run: Run, proposed: list[int], tmp_path: Path) -> None:
    file = tmp_path / "verdicts.csv"
    file.write_text(f"fact_id,verdict,version\n{proposed[0]},accept,1\n{proposed[1]},reject,\n")
    dry = run("review", "settle", "--file", file, "--dry-run", "--json").json
    assert [one["verdict"] for one in dry["verdicts"]] == ["accept", "reject"]
    done = run("review", "settle", "--file", file, *WHY).json
    assert done["fact_ids"] == proposed and len(done["seqs"]) == 2
    late = run("review", "settle", "--file", file, *WHY)
    assert late.code == 3 and [one["fact_id"] for one in late.json["before"]] == proposed
    file.write_text(f"fact_id,verdict\n{proposed[0]},perhaps\n")
    ran = run("review", "settle", "--file", file, "--reason", "a test")
    assert ran.code == 3 and "line 2: its verdict is none of accept, reject, propose" in ran.err
    file.write_text(f"fact_id,verdict\n{proposed[0]},accept\n{proposed[0]},reject\n")
    ran = run("review", "settle", "--file", file, "--reason", "a test")
    twice = f"line 3: line 2 of this file gives fact {proposed[0]} a verdict already"
    assert ran.code == 3 and twice in ran.err


def test_only_accepted_facts_answer_where_asked_and_others_are_marked(run: Run, proposed: list[int]) -> None:
    lima = QUESTIONS["Lima"]
    ran = run("lookup", lima, "--threshold", -1, "-k", 2)
    assert "Unreviewed: fact" in ran.err
    hits = run("lookup", lima, "--threshold", -1, "-k", 2, "--json").json["hits"]
    assert {hit["review"] for hit in hits} == {"proposed"}
    run("review", "settle", "accept", proposed[1], *WHY)
    found = run("lookup", lima, "--threshold", -1, "-k", 2, "--accepted-only", "--json").json
    assert [hit["fact_id"] for hit in found["hits"]] == proposed[1:]
    assert run("lookup", lima, "--accepted-only", "--as-of", 1).code == 2
    said = run("ask", lima, "--threshold", 0, "--json").json
    assert said["unreviewed"] == proposed[:1]
    without = run("ask", lima, "--threshold", 0, "--accepted-only", "--json")
    assert without.json["unreviewed"] == [] and proposed[0] not in [
        f["fact_id"] for f in without.json["facts"]
    ]
    out = run(
        "generate",
        f"Question: {lima} Answer:",
        "--mode",
        "forced",
        "--ranking",
        "key",
        "--threshold",
        -1,
        "--accepted-only",
        "--json",
    ).json
    assert out["splices"][0]["fact_id"] == proposed[1] and out["splices"][0]["review"] == "accepted"


def test_a_corpus_or_a_keyset_lets_only_accepted_facts_answer(run: Run, proposed: list[int]) -> None:
    limited = run("review", "limit", "--corpus", "atlas", "--accepted-only", *WHY).json
    assert limited["accepted_only"] and limited["kind"] == "accepted-only"
    asked = ("lookup", QUESTIONS["Lima"], "--threshold", -1, "--json")
    assert run(*asked).json["hits"] == []
    run("review", "limit", "--corpus", "atlas", "--also-proposed", *WHY)
    assert len(run(*asked).json["hits"]) == 2
    assert run("review", "limit", "--accepted-only", "--reason", "a test").code == 2
