"""`colmlm-lab unlearn` on rows of TOFU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from colmlm.model.lm.checkpoint import load
from tests.cli.conftest import Run


@pytest.fixture
def splits(tmp_path: Path) -> tuple[Path, Path]:
    files = tmp_path / "forget.jsonl", tmp_path / "retain.jsonl"
    for file, rows in zip(files, ({"Who?": "Ann"}, {"Where?": "Here", "When?": "Now"}), strict=True):
        file.write_text("".join(json.dumps({"question": q, "answer": a}) + "\n" for q, a in rows.items()))
    return files


def test_a_checkpoint_is_trained_further_and_is_a_checkpoint_again(
    run: Run, checkpoint: Path, splits: tuple[Path, Path], tmp_path: Path
) -> None:
    forget, retain = splits
    words = ("unlearn", "--init", checkpoint, "--forget", forget, "--retain", retain)
    done = run(*words, "--out", tmp_path / "npo", "--epochs", 3, "--json").json
    assert done["steps"] == 3
    found = load(tmp_path / "npo", tmp_path)
    assert found.config.method == "co-lmlm" and found.config.training["unlearning"]["beta"] == 0.1
    assert found.checkpoint_id != load(checkpoint, checkpoint).checkpoint_id
    shown = run(*words, "--out", tmp_path / "ascent", "--objective", "grad-ascent", "--epochs", 1)
    assert shown.code == 0 and "1 step," in shown.out
    assert run(*words, "--out", tmp_path / "kept", "--epochs", 3, "--keep-epochs").code == 0
    kept = [load(tmp_path / "kept" / name, tmp_path) for name in ("epoch-1", "epoch-2", ".")]
    assert len({one.checkpoint_id for one in kept}) == 3


def test_a_configuration_file_gives_the_settings_and_options_change_them(
    run: Run, checkpoint: Path, splits: tuple[Path, Path], tmp_path: Path
) -> None:
    forget, retain = splits
    words = ("unlearn", "--config", "npo", "--init", checkpoint, "--forget", forget, "--retain", retain)
    assert run(*words, "--out", tmp_path / "npo", "--epochs", 1, "--seed", 69).code == 0
    config = load(tmp_path / "npo", tmp_path).config.training["unlearning"]
    expected = {"beta": 0.1, "learning_rate": 6e-5, "batch": 32, "epochs": 1, "seed": 69}
    assert {name: config[name] for name in expected} == expected
    refused = run(*words[:1], "--config", "gentle", *words[3:], "--out", tmp_path / "none")
    assert refused.code == 2 and "no preset 'gentle'" in refused.err


def test_what_cannot_be_is_refused_in_a_line(
    run: Run, checkpoint: Path, splits: tuple[Path, Path], tmp_path: Path
) -> None:
    forget, retain = splits
    words = ("unlearn", "--init", checkpoint, "--forget", forget, "--out", tmp_path / "out")
    assert "choose one of npo" in run(*words, "--retain", retain, "--objective", "prayer").err
    retain.write_text("{}\n")
    refused = run(*words, "--retain", retain)
    assert refused.code == 2 and "line 1 of retain.jsonl is no row of TOFU" in refused.err
