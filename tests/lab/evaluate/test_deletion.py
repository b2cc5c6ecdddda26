"""`colmlm-lab evaluate deletion` leaves nothing of what it forgets, counts what it costs, and undoes it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from colmlm.kb.corpus.format import to_record
from tests.cli.conftest import Run, started
from tests.gates import await_that, gate, interrupted
from tests.kb.corpora import numbered


@pytest.fixture
def halls(run: Run, home: Path, tmp_path: Path) -> str:
    """Twelve facts whose own questions are keys, too, so that each finds its fact."""
    file = tmp_path / "halls.jsonl"
    file.write_text("".join(json.dumps(to_record(one)) + "\n" for one in numbered(12)))
    assert run("corpus", "add", file, "--corpus", "halls", "--format", "annotated").code == 0
    assert run("keysets", "fill", "--kinds", "context,question").code == 0
    return "halls"


def live(run: Run, corpus: str) -> list[tuple[int, str]]:
    return [
        (fact["fact_id"], fact["value"])
        for fact in run("facts", "list", "--corpus", corpus, "--json").json["facts"]
    ]


@pytest.mark.slow(reason="runs an evaluation to its end")
def test_forgotten_facts_are_not_found_the_others_are_and_all_is_undone(run: Run, halls: str) -> None:
    before = live(run, halls)
    words = ("evaluate", "deletion", "--corpus", halls, "--facts", 3, "--others", 6, "--radius", -1)
    preview = run(*words, "--dry-run", "--json").json
    assert len(preview["fact_ids"]) == 3 and (preview["runs"], preview["planted"]) == (10, 6)
    assert live(run, halls) == before
    report = run(*words, "--radius", 1.0, "--json").json
    assert (report["facts"], report["others"]) == (3, 6)
    assert [(one["policy"], one["radius"]) for one in report["runs"]] == [
        ("successor", -1.0), ("successor", 1.0), ("abstain", -1.0), ("abstain", 1.0),
    ]  # fmt: skip
    for one in report["runs"]:
        assert one["forgotten"] == 3 and one["level"] >= 1 and one["is_restored"]
        assert one["probes"]["leaks"] == 0 < one["probes"]["probes"]
    asked = [one["said"] for one in report["runs"]]
    assert asked[1] is None and asked[3] is None and asked[0]["splices"]["share"] == 0
    successor, abstain = report["runs"][0], report["runs"][2]
    assert successor["others"]["share"] == 1.0 and successor["others_lost"]["share"] == 0.0
    assert abstain["probes"]["wrong_neighbours"] < successor["probes"]["wrong_neighbours"]
    assert abstain["wrong_neighbour"]["share"] == 0 < successor["wrong_neighbour"]["share"]
    assert report["neighbours"] == 9 and all(
        (one["neighbours"]["share"], one["neighbours_lost"]["share"], one["neighbours_forgotten"])
        == (1, 0, 0)
        for one in report["runs"]
    )
    spliced = {
        name: report[name]["splices"]["share"] + report[name]["wrong_neighbour"]["share"]
        for name in ("full", "off", "null")
    }
    assert spliced["off"] == spliced["null"] == 0 < spliced["full"]
    assert live(run, halls) == before and len(before) == 12


@pytest.mark.slow(reason="runs an evaluation to its end")
def test_what_is_planted_beside_facts_outlives_them_where_the_closure_does_not_reach(
    run: Run, halls: str
) -> None:
    words = ("evaluate", "deletion", "--corpus", halls, "--facts", 3, "--others", 1)
    report = run(*words, "--radius", -1, "--radius", 1.0, "--json").json
    found = {
        (one["kind"], one["radius"]): (one["found"]["share"], one["by_wording"]["share"])
        for one in report["survivors"]
        if one["policy"] == "successor" and not one["reading"]
    }
    assert found == {
        ("question", -1.0): (1.0, 0.0),
        ("question", 1.0): (0.0, 1.0),
        ("value", -1.0): (0.0, 1.0),
        ("value", 1.0): (0.0, 1.0),
    }
    assert sum(one["reading"] for one in report["survivors"]) == 4
    assert all(one["planted"] == 3 and one["similarity"][2] < 1 for one in report["survivors"])
    assert len(run("facts", "list", "--json").json["facts"]) == 12
    assert "survivors" not in run(*words, "--no-survivors", "--json").json


WHILE = {  # where a run is held up: what it is about to do, while its facts are forgotten or others are planted
    "forgotten": ("UPDATE ON forget_run", "jsonb_typeof(NEW.verification) = 'object'"),
    "planted": ("INSERT ON forget_run", "EXISTS (SELECT FROM change WHERE kind = 'insert')"),
}


@pytest.mark.slow(reason="runs an evaluation to its end")
@pytest.mark.parametrize("at", WHILE)
def test_a_run_that_is_cut_off_leaves_nothing_forgotten_and_nothing_planted(
    run: Run, halls: str, at: str, database_url: str
) -> None:
    before = live(run, halls)
    words = ("evaluate", "deletion", "--corpus", halls, "--facts", 2, "--others", 1)
    with gate(database_url, *WHILE[at]) as reached, interrupted(reached):
        assert run(*words).code == 130
    assert live(run, halls) == before and len(run("facts", "list", "--json").json["facts"]) == 12
    kinds = [
        change["kind"] for change in run("log", "list", "--oldest", "--json", "--limit", 1000).json["changes"]
    ]
    assert kinds[-2:] == (["forget", "restore"] if at == "forgotten" else ["key", "delete"])


@pytest.mark.slow(reason="kills a run of its own process")
@pytest.mark.parametrize("at", WHILE)
def test_what_a_killed_run_has_left_is_undone_by_the_next(
    run: Run, halls: str, at: str, database_url: str
) -> None:
    before = live(run, halls)
    words = ("evaluate", "deletion", "--corpus", halls, "--facts", 2, "--others", 1, "--radius", 1.0)
    with gate(database_url, *WHILE[at]) as reached, started(*words) as running:
        await_that(reached)
        running.kill()
    expected = (2, 0) if at == "forgotten" else (0, 2)
    assert len(run("facts", "list", "--json").json["facts"]) == 12 - expected[0] + expected[1]
    if at == "forgotten":  # somebody has settled one of them by hand: the rest is theirs, too
        gone = sorted({i for i, _ in before} - {i for i, _ in live(run, halls)})
        assert run("facts", "restore", gone[0], "--reason", "a").code == 0
        told = run(*words)
        assert told.code == 0 and "is not undone" in told.err
        assert run("facts", "delete", gone[0], "--reason", "b", "--yes").code == 0
    again = run(*words)
    assert again.code == 0 and f"{expected[0]} facts forgotten and {expected[1]} planted: undone" in again.err
    assert live(run, halls) == before and len(run("facts", "list", "--json").json["facts"]) == 12
    assert "undone" not in run(*words).err


@pytest.mark.slow(reason="runs an evaluation to its end")
def test_people_read_a_table_and_too_few_facts_are_refused(run: Run, halls: str) -> None:
    shown = run("evaluate", "deletion", "--corpus", halls, "--facts", 2, "--others", 2)
    assert shown.code == 0 and "wrong neighbour" in shown.out
    refused = run("evaluate", "deletion", "--corpus", halls, "--facts", 12)
    assert refused.code == 2 and "too few facts with a question" in refused.err
    assert run("evaluate", "deletion", "--corpus", "nowhere").code == 3
