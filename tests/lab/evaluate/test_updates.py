"""`colmlm-lab evaluate updates` tells new values while they stand, and leaves the knowledge base as it was."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.disks import files_limited_to

RELATIONS = {"{} was born in": ("Lima", "Oslo"), "The native language of {} is": ("French", "Thai")}
PEOPLE = ("Ana Ruiz", "Bo Tran", "Cy Okoro")


@pytest.fixture
def records(tmp_path: Path) -> Path:
    rows = [
        {
            "requested_rewrite": {
                "prompt": prompt,
                "subject": who,
                "target_true": {"str": true},
                "target_new": {"str": new},
            },
            "paraphrase_prompts": [f"It rained. {prompt.format(who)}", f"Hats. {prompt.format(who)}"],
            "neighborhood_prompts": [prompt.format(f"{who} {number}") for number in ("II", "III")],
        }
        for prompt, (true, new) in RELATIONS.items()
        for who in PEOPLE
    ]
    file = tmp_path / "records.json"
    file.write_text(json.dumps(rows))
    return file


def edits(run: Run) -> list[str]:
    """Gives the reasons of all edits of values so far."""
    changes = run("log", "list", "--oldest", "--json", "--limit", 1000).json["changes"]
    return [change["reason"] for change in changes if change["kind"] == "update"]


def values(run: Run) -> set[str]:
    return {fact["value"] for fact in run("facts", "list", "--corpus", "cf", "--json").json["facts"]}


@pytest.mark.slow(reason="runs an evaluation to its end")
def test_new_values_are_told_and_all_is_set_back(run: Run, records: Path, tmp_path: Path) -> None:
    words = ("evaluate", "updates", "--records", records, "--corpus", "cf", "--json")
    preview = run(*words, "--dry-run").json
    assert (preview["to_ingest"], preview["documents"], preview["fact_ids"]) == (18, 18, [])
    assert run("facts", "list", "--json").json["facts"] == []

    out = tmp_path / "answers.jsonl"
    report = run(*words, "--threshold", 0.9999, "--out", out).json
    assert report["records"] == 6 and report["prompts"] == 6 + 12 + 12
    assert report["found"] == {"share": 1.0, "low": 0.5407, "high": 1.0, "prompts": 6}
    assert report["efficacy"]["share"] == report["efficacy_where_found"]["share"] == 1.0
    assert report["old_value"]["share"] == 0.0 and report["undone"]["share"] == 1.0
    assert report["locality"] == {"share": 1.0, "low": 0.5407, "high": 1.0, "prompts": 12}
    assert report["is_restored"] and values(run) == {"Lima", "French"}

    head = run("log", "list", "--json").json["changes"]
    again = run(*words, "--threshold", 0.9999, "--out", out)
    assert again.json == report and run("log", "list", "--json").json["changes"] == head
    assert run(*words, "--limit", 2, "--out", out).code == 2
    shown = run(*words[:-1], "--limit", 1)
    assert shown.code == 0 and "locality share" in shown.out


@pytest.mark.slow(reason="runs an evaluation to its end")
def test_what_is_updated_is_set_back_when_a_run_is_cut_off_or_was_killed(
    run: Run, records: Path, tmp_path: Path
) -> None:
    words = ("evaluate", "updates", "--records", records, "--corpus", "cf", "--limit", 3, "--out")
    assert run(*words, tmp_path / "whole.jsonl").code == 0
    whole = (tmp_path / "whole.jsonl").read_text()
    first = whole.index('{"row": "after: ')
    done = len(edits(run))

    words = (*words, tmp_path / "answers.jsonl")
    with files_limited_to(first + 100):
        assert run(*words).code == 9
    assert edits(run)[done:] == ["colmlm-lab evaluate updates", "colmlm-lab evaluate updates: undone"]
    assert values(run) == {"Lima"}

    fact_id = run(*words, "--dry-run", "--json").json["fact_ids"][0]
    assert run("facts", "edit", fact_id, "--value", "Oslo", "--reason", "as a kill would leave it").code == 0
    finished = run(*words, "--json")
    assert "1 values that a run had left updated are set back" in finished.err
    assert finished.json["is_restored"] and values(run) == {"Lima"}
    assert run("facts", "edit", fact_id, "--value", "Rome", "--reason", "somebody else's").code == 0
    refused = run(*words)
    assert refused.code == 2 and f"fact {fact_id} has a value of neither kind" in refused.err
