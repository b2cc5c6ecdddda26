"""`colmlm bench adapt`: the commands are run and timed, and what is found by their keys is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from colmlm.cli.start.app import app
from tests.tiny import tiny_checkpoint


@pytest.mark.slow(reason="runs a benchmark to its end")
def test_predicted_keys_are_timed_and_asked_beside_true_ones(tmp_path: Path) -> None:
    old, new = tiny_checkpoint(tmp_path / "old", seed=3), tiny_checkpoint(tmp_path / "new", seed=4)
    arguments = [
        "bench",
        "adapt",
        "--from",
        str(old),
        "--to",
        str(new),
        "--documents",
        "40",
        "--sample",
        "20",
    ]
    result = CliRunner().invoke(app, [*arguments, "--asked", "50", "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.stderr
    (pair,) = json.loads(result.stdout)["pairs"]
    assert (pair["from"], pair["to"], pair["kind"]) == ("tiny-3", "tiny-4", "context")
    assert pair["facts"] > pair["sample"] >= 20 and 25 <= pair["asked"] <= 50
    for way in ("", "_true", "_old"):
        assert 0 <= pair[f"recall_at_1{way}"] <= pair[f"recall_at_10{way}"] <= 1
    assert 0 < pair["seconds_of_work"] < pair["seconds"] and pair["seconds_true"] > 0
    assert pair["seconds_share"] == pytest.approx(pair["seconds"] / pair["seconds_true"], abs=0.02)


def test_it_takes_one_corpus(tmp_path: Path) -> None:
    squad = tmp_path / "dev.jsonl"
    squad.touch()
    words = ["--from", str(tmp_path), "--to", str(tmp_path), "--squad", str(squad), "--generated", "240"]
    result = CliRunner().invoke(app, ["bench", "adapt", *words])
    assert result.exit_code == 2 and "name one of them" in result.stderr
