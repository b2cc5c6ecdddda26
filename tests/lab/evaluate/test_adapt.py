"""`colmlm evaluate adapt`: every way of predicting, beside true keys, on tiny random models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.tiny import tiny_checkpoint


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("checkpoints")
    return tiny_checkpoint(folder / "old", seed=3), tiny_checkpoint(folder / "new", seed=4)


@pytest.fixture
def squad(tmp_path: Path) -> Path:
    file = tmp_path / "dev.jsonl"
    paragraphs = []
    for n in range(40):
        context = f"Bridge {n} was opened in {1900 + n}."
        asked = {
            "question": f"When did bridge {n} open?",
            "answer": str(1900 + n),
            "answer_start": len(context) - 5,
        }
        paragraphs.append(json.dumps({"title": "Bridges", "context": context, "qas": [asked]}))
    file.write_text("\n".join(paragraphs) + "\n", encoding="utf-8")
    return file


def test_each_method_is_measured_beside_true_keys_and_the_keys_are_kept(
    run: Run, squad: Path, checkpoints: tuple[Path, Path], tmp_path: Path
) -> None:
    old, new = checkpoints
    words = (
        "evaluate", "adapt", "--squad", squad, "--from", old, "--to", new, "--to", old, "--sample", 20,
        "--kinds", "context,question", "--keys", tmp_path / "keys", "--json",
    )  # fmt: skip
    pairs = run(*words).json["pairs"]
    assert [(p["from"], p["to"], p["kind"]) for p in pairs[:6]] == [("tiny-3", "tiny-4", "context")] * 3 + [
        ("tiny-3", "tiny-4", "question")
    ] * 3
    assert len(list((tmp_path / "keys").iterdir())) == 2 and len(pairs) == 12
    for pair in pairs:
        assert (pair["facts"], pair["sample"]) == (40, 20) and pair["seconds_true"] >= 0
        assert 0 <= pair["recall_at_1"] <= pair["recall_at_10"] <= 1
    for pair in pairs[6:]:  # to itself nothing is lost
        assert pair["recall_at_1"] == pair["recall_at_1_true"] == pair["recall_at_1_old"]
        assert pair["recall_at_1_before"] == pair["recall_at_1_true"] and pair["cosine"] > 0.99
    again = run(*words).json["pairs"]
    figures = [{n: v for n, v in pair.items() if n.startswith("recall")} for pair in pairs]
    assert [{n: v for n, v in pair.items() if n.startswith("recall")} for pair in again] == figures


def test_what_it_does_not_know_is_refused(run: Run, squad: Path, checkpoints: tuple[Path, Path]) -> None:
    base = ("evaluate", "adapt", "--squad", squad, "--from", checkpoints[0], "--to", checkpoints[1])
    assert "--kinds" in run(*base, "--kinds", "alias").err
    assert "--method" in run(*base, "--method", "magic").err
