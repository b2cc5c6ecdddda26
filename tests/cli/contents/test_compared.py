"""A contradiction found and resolved by command."""

from __future__ import annotations

from tests.cli.conftest import QUESTIONS, Run

WHY = ("--reason", "a test", "--json")
ADD = ("facts", "add", "--question", QUESTIONS["Lima"], "--no-key")


def test_a_contradiction_is_found_and_resolved(run: Run, atlas: list[int]) -> None:
    refused = run(*ADD, "--value", "Cusco", *WHY[:2])
    assert refused.code == 4
    assert f'Fact {atlas[0]} answers this already ("Lima")' in refused.err and "--anyway" in refused.err
    (cusco,) = run(*ADD, "--value", "Cusco", "--anyway", *WHY).json["fact_ids"]
    (pair,) = run("facts", "compare", "contradictions", "--json").json["pairs"]
    assert (pair["fact"]["fact_id"], pair["other"]["fact_id"], pair["answering"]) == (atlas[0], cusco, cusco)
    shown = run("facts", "compare", "contradictions").out
    assert "Lima" in shown and "Cusco" in shown and "words" in shown

    note = ("facts", "compare", "contradictions", atlas[0], cusco)
    noted = run(*note, *WHY).json
    assert noted["both_right"] and run("facts", "compare", "contradictions", "--json").json["total"] == 0
    assert run("facts", "compare", "contradictions", "--noted", "--json").json["total"] == 1
    undone = run("facts", "undo", noted["seq"], *WHY).json
    assert (
        undone["kind"] == "both-right"
        and run("facts", "compare", "contradictions", "--json").json["total"] == 1
    )
    run(*note, *WHY)
    assert not run(*note, "--not", *WHY).json["both_right"]
    for wrong in (
        note,
        (*note[:4], *WHY),
        ("facts", "compare", "stale", *note[3:], *WHY),
        (*note[:3], "--not"),
    ):
        assert run(*wrong).code == 2

    edited = run("facts", "edit", cusco, "--value", "Lima", *WHY).json
    assert edited["also_said_by"] == [atlas[0]]
    assert run("facts", "compare", "contradictions", "--json").json["pairs"] == []
    assert len(run("facts", "compare", "duplicates", "--json").json["pairs"]) == 1
    told = run("facts", "delete", cusco, "--dry-run", "--json").json
    assert told["also_said"] == [{"fact_id": cusco, "by": [atlas[0]]}]
    would_go = run("facts", "delete", cusco, "--dry-run")
    assert f"{atlas[0]} says the same as {cusco}." in would_go.err and "Lima" in would_go.out
    run("facts", "delete", cusco, "--yes", *WHY)
    assert run("facts", "compare", "duplicates", "--json").json["total"] == 0
    assert run("facts", "compare", "stale", "--json").json == {
        "facts": [],
        "total": 0,
        "is_exact": True,
        "next_after": None,
    }


def test_a_file_of_edits_that_contradict_is_refused_unless_anyway(
    run: Run, atlas: list[int], tmp_path
) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text(f"fact_id,question\n{atlas[1]},{QUESTIONS['Lima']}\n")
    edit = ("facts", "edit", "--file", rows, "--no-key")
    assert run(*edit, *WHY).code == 4
    assert run(*edit, "--anyway", *WHY).json["fact_ids"] == [atlas[1]]
