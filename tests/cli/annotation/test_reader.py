"""`colmlm reader` from training to measuring, on a tiny base."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from colmlm.cli.training.tuning import without_nan
from tests.cli.conftest import QUESTIONS, TEXT, invoke
from tests.tiny_annotators import tiny_encoder

# peft 0.21 asks transformers 5.23 by a name that is on its way out; neither is ours.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")


@pytest.fixture
def squad(tmp_path: Path) -> Path:
    """Four paragraphs of two questions each, every one with a title of its own."""
    path = tmp_path / "squad.jsonl"
    with path.open("w", encoding="utf-8") as target:
        for n in range(4):
            text = f"{TEXT} It is text {n}."
            qas = [{"question": q, "answer": v, "answer_start": text.index(v)} for v, q in QUESTIONS.items()]
            target.write(json.dumps({"title": f"Peru {n}", "context": text, "qas": qas}) + "\n")
    return path


def test_a_reader_is_trained_gone_on_with_released_and_measured(
    squad: Path, home: Path, tmp_path: Path
) -> None:
    settings = (f"base={tiny_encoder(tmp_path / 'encoder')}", "batch=2", "rounds=1", "precision=fp32")
    words = [
        "train",
        "reader",
        "--squad",
        squad,
        "--hold-out",
        0.25,
        *(w for s in settings for w in ("--set", s)),
    ]
    dry = invoke(*words, "--out", tmp_path / "run", "--dry-run", "--json")
    assert dry.code == 0 and dry.json["answered"] == 6 and not (tmp_path / "run").exists(), dry.err
    trained = invoke(*words, "--out", tmp_path / "run", "--name", "mine", "--json")
    assert trained.code == 0 and trained.json["reader"] == str(tmp_path / "run"), trained.err
    assert (trained.json["name"], trained.json["role"]) == ("mine", "answers")
    assert trained.json["training"]["steps"] == dry.json["steps"]
    assert (tmp_path / "run" / "held_out.csv").read_text().startswith("examples,exact,f1,none_auc\n")
    second = invoke(*words, "--out", tmp_path / "second", "--init", tmp_path / "run", "--json")
    assert second.code == 0 and second.json["training"]["before"] == trained.json["training"], second.err

    released = invoke("train", "release", tmp_path / "second", tmp_path / "released")
    assert released.code == 0 and "second, answers" in released.out, released.err
    assert invoke("train", "release", tmp_path / "second", tmp_path / "released").code == 2
    measured = invoke("reader", "evaluate", "--squad", squad, "--reader", tmp_path / "released", "--json")
    assert measured.code == 0, measured.err
    assert measured.json["questions"]["answered"]["questions"] == 8
    assert set(measured.json) == {"questions", "without title", "keywords", "statements"}
    shown = invoke("reader", "evaluate", "--squad", squad, "--reader", tmp_path / "run", "--questions", 1)
    assert shown.code == 0 and "AUC of none" in shown.out, shown.err
    assert without_nan({"auc": float("nan"), "answered": {"f1": 0.5}}) == {
        "auc": None,
        "answered": {"f1": 0.5},
    }
    assert "nan" not in shown.out


def test_what_cannot_be_done_is_one_line(home: Path, tmp_path: Path, subtests: pytest.Subtests) -> None:
    for words, says in (
        (["train", "reader"], "no questions with answers"),
        (["train", "reader", "--set", "none=2"], "must be within"),
        (["train", "reader", "--hold-out", "0.9"], "less than or equal to 0.5"),
        (["reader", "evaluate"], "no questions with answers"),
    ):
        with subtests.test(words=words, says=says):
            out = ["--out", tmp_path / "out"] if words[0] == "train" else []
            ran = invoke(*words, *out)
            assert ran.code == 2 and says in ran.err and not (tmp_path / "out").exists()
