"""`colmlm annotator` from training to measuring, on tiny bases."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import TEXT, invoke
from tests.tiny import tiny_base
from tests.tiny_annotators import tiny_encoder

# peft 0.21 asks transformers 5.23 by a name that is on its way out; neither is ours.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")

QUESTIONS = {"Lima": "What is the capital of Peru?", "Titicaca": "Which lake lies highest?"}


@pytest.fixture
def squad(tmp_path: Path) -> Path:
    """Four paragraphs of two questions each."""
    path = tmp_path / "squad.jsonl"
    with path.open("w", encoding="utf-8") as target:
        for n in range(4):
            text = f"{TEXT} It is text {n}."
            qas = [{"question": q, "answer": v, "answer_start": text.index(v)} for v, q in QUESTIONS.items()]
            target.write(json.dumps({"title": "Peru", "context": text, "qas": qas}) + "\n")
    return path


@pytest.fixture
def tiny(home: Path, tmp_path: Path) -> dict[str, tuple[object, ...]]:
    """What sets the small presets onto tiny bases."""
    small = ("batch=2", "epochs=2", "precision=fp32", "max_length=250")
    spans = (f"base={tiny_encoder(tmp_path / 'encoder')}", *small)
    questions = (f"base={tiny_base(tmp_path / 'base')}", "max_new_tokens=4", *small)
    return {
        name: tuple(word for setting in settings for word in ("--set", setting))
        for name, settings in (("spans", spans), ("questions", questions))
    }


def test_an_annotator_is_trained_released_and_measured(
    squad: Path, tiny: dict[str, tuple[object, ...]], tmp_path: Path
):
    trained = invoke("train", "spans", *tiny["spans"], "--squad", squad, "--no-demo", "--hold-out", 1,
                     "--out", tmp_path / "run", "--name", "mine", "--json")  # fmt: skip
    assert trained.code == 0, trained.err
    assert (trained.json["name"], trained.json["role"], trained.json["training"]["steps"]) == (
        "mine",
        "spans",
        2,
    )
    assert trained.json["training"]["documents"] == 3 and trained.json["training"]["threshold_documents"] == 1
    again = invoke("train", "spans", *tiny["spans"], "--squad", squad, "--no-demo", "--hold-out", 1,
                   "--out", tmp_path / "run", "--name", "mine", "--json")  # fmt: skip
    assert again.code == 0 and again.json["digests"] == trained.json["digests"]
    asker = invoke("train", "questions", *tiny["questions"], "--squad", squad, "--no-demo", "--epochs", 1,
                   "--out", tmp_path / "asker", "--json")  # fmt: skip
    assert asker.code == 0 and asker.json["training"]["steps"] == 2, asker.err
    released = invoke("train", "release", tmp_path / "run", tmp_path / "released")
    assert released.code == 0 and "mine, spans, 2 steps" in released.out
    assert invoke("train", "release", tmp_path / "run", tmp_path / "released").code == 2

    both = ["--span-annotator", tmp_path / "released", "--question-generator", tmp_path / "asker"]
    measured = invoke("evaluate", "annotators", "--squad", squad, "--documents", 3, "--json", *both)
    assert measured.code == 0, measured.err
    assert (measured.json["documents"], measured.json["facts"]) == (3, 6)
    assert measured.json["spans"]["quality"]["marked"] == 6
    assert set(measured.json["spans"]["quality"]["exact"]) == {"precision", "recall", "f1"}
    assert measured.json["questions"]["of_the_documents"]["questions"] == 6
    assert measured.json["questions"]["written"] == 0 and measured.json["questions"]["round_trip"] is None
    assert measured.json["questions"]["prefix"]["spans"] == 6
    people = invoke("evaluate", "annotators", "--squad", squad, "--skip", "questions",
                    "--span-annotator", tmp_path / "run")  # fmt: skip
    assert people.code == 0 and "exact" in people.out and "recall@1" not in people.out


def test_what_cannot_be_trained_is_one_line(home: Path, tmp_path: Path, subtests: pytest.Subtests):
    for words, code, says in (
        (["train", "spans", "--no-demo"], 2, "nothing to train on"),
        (["train", "questions", "--no-demo"], 2, "nothing to train on"),
        (["train", "spans", "--preset", "large"], 2, "no preset 'large'"),
        (["train", "spans", "--max-minutes", "0"], 2, "not above 0"),
        (["train", "spans", "--set", "batch=many"], 2, "batch: 'many' does not fit"),
        (["train", "questions", "--set", "colour=red"], 2, "no setting 'colour'"),
        (["train", "spans", "--set", "batch"], 2, "not NAME=VALUE"),
        (["train", "spans", "--set", "max_length=2"], 2, "max_length is 2, but must be at least 16"),
    ):
        with subtests.test(words=words, code=code, says=says):
            ran = invoke(*words, "--out", tmp_path / "out")
            assert ran.code == code and says in ran.err and not (tmp_path / "out").exists()


def test_what_cannot_be_measured_is_one_line(home: Path, squad: Path, tmp_path: Path):
    assert invoke("evaluate", "annotators").code == 2
    (tmp_path / "empty").mkdir()
    ran = invoke("evaluate", "annotators", "--squad", squad, "--span-annotator", tmp_path / "empty")
    assert (
        ran.code == 7
        and "no annotator.json" in ran.err
        and "COLMLM_SPAN_ANNOTATOR" in ran.err
        and ran.out == ""
    )


def test_another_run_in_the_directory_is_refused(
    squad: Path, tiny: dict[str, tuple[object, ...]], tmp_path: Path
):
    words = [
        "train",
        "spans",
        *tiny["spans"],
        "--squad",
        squad,
        "--out",
        tmp_path / "run",
        "--epochs",
    ]
    assert invoke(*words, 0.5, "--no-demo").code == 0
    ran = invoke(*words, 1, "--no-demo")
    assert ran.code == 2 and "another" in ran.err
