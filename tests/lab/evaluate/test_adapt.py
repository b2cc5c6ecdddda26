"""`colmlm-lab evaluate adapt`: every way of predicting, beside true keys, on tiny random models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from colmlm.lab.evaluate.adapt import AskedCorpus, CheckpointKeys, generated, joined
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


def test_made_up_facts_are_measured_by_those_that_are_asked_for(
    run: Run, checkpoints: tuple[Path, Path], tmp_path: Path
) -> None:
    old, new = checkpoints
    words = (
        "evaluate", "adapt", "--generated", 120, "--asked", 30, "--from", old, "--to", new, "--to", old,
        "--sample", 40, "--method", "ridge", "--keys", tmp_path / "keys", "--json",
    )  # fmt: skip
    other, same = run(*words).json["pairs"]
    assert (other["facts"], other["sample"]) == (120, 48)  # whole documents of twelve
    assert same["recall_at_1"] == same["recall_at_1_true"] == same["recall_at_1_old"]
    assert [round(same["recall_at_10"] * 30, 1) % 1] == [0]  # a share of thirty


def test_keys_of_a_corpus_are_made_in_pieces() -> None:
    documents = list(generated(120, 30))
    corpus = AskedCorpus(documents)
    assert [fact.question for d in documents for fact in d.facts if fact.question] == corpus.questions
    assert len(corpus.questions) == len(corpus.asked) == 30 and corpus.asked.tolist() == [*range(0, 120, 4)]
    assert len({document.title for document in documents}) == 10
    assert all(d.text[f.start : f.end] == f.value for d in documents for f in d.facts)
    many = AskedCorpus(documents * 120).pieces()
    assert [len(piece.documents) for piece in many] == [500, 500, 200]
    one, other = CheckpointKeys("a", *_rows(3, 2)), CheckpointKeys("a", *_rows(5, 1))
    whole = joined([one, other])
    assert (len(whole.keys["context"]), len(whole.queries["context"])) == (8, 3)
    assert whole.seconds == {"context": 2.0}


def _rows(keys: int, queries: int) -> tuple[dict[str, Any], dict[str, Any], dict[str, float]]:
    return {"context": np.ones((keys, 4))}, {"context": np.ones((queries, 4))}, {"context": 1.0}


def test_what_it_does_not_know_is_refused(run: Run, squad: Path, checkpoints: tuple[Path, Path]) -> None:
    base = ("evaluate", "adapt", "--squad", squad, "--from", checkpoints[0], "--to", checkpoints[1])
    assert "--kinds" in run(*base, "--kinds", "alias").err
    assert "--method" in run(*base, "--method", "magic").err
    assert "--generated" in run(*base, "--generated", 100).err and "--squad" in run(*base[:2], *base[4:]).err
    assert "--kinds" in run(*base[:2], *base[4:], "--generated", 100, "--kinds", "question").err
