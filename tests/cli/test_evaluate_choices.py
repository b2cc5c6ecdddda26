"""Multiple choice by likelihood, counted as lm_eval counts it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from model.checkpoint import load
from model.decoding.scoring import score
from model.evaluate.choices import Item, choose
from tests.cli.conftest import invoke

CHOICES = ("Lima", "a lake that lies high", "x")


@pytest.fixture
def use(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLMLM_CHECKPOINT", str(checkpoint))


def test_a_choice_is_as_likely_as_its_tokens_after_the_context(checkpoint: Path) -> None:
    loaded, context = load(checkpoint, checkpoint), "Answer:"
    (chosen,) = choose(loaded, [Item(context, CHOICES, 0)])
    for choice, logprob in zip(CHOICES, chosen.logprobs, strict=True):
        (scored,) = score(loaded, [loaded.tokenizer.prompt(f"{context} {choice}")])
        assert logprob == pytest.approx(sum(one.logprob for one in scored[len(context) :]), abs=1e-4)


def test_the_right_ones_are_counted(use: None, checkpoint: Path, tmp_path: Path) -> None:
    loaded = load(checkpoint, checkpoint)
    (chosen,) = choose(loaded, [Item("Answer:", CHOICES, 0)])
    likeliest = chosen.logprobs.index(max(chosen.logprobs))
    by_character = [logprob / len(choice) for logprob, choice in zip(chosen.logprobs, CHOICES, strict=True)]
    items: list[dict[str, Any]] = [
        {"context": "Answer:", "choices": CHOICES, "answer": answer} for answer in (likeliest, *range(3))
    ]
    file = tmp_path / "items.jsonl"
    file.write_text("".join(json.dumps(item) + "\n" for item in items))
    told = invoke("evaluate", "choices", file, "--json").json
    assert told["items"] == 4 and told["acc"] == 2 / 4
    is_same = by_character.index(max(by_character)) == likeliest
    assert told["acc_norm"] == (2 if is_same else 1) / 4
    assert invoke("evaluate", "choices", file, "--limit", 1, "--json").json["acc"] == 1.0


@pytest.mark.parametrize("line", ["{", '{"context": "x", "choices": ["a", "b"], "answer": 2}', ""])
def test_a_file_that_holds_no_items_is_one_line(use: None, tmp_path: Path, line: str) -> None:
    file = tmp_path / "items.jsonl"
    file.write_text(line)
    ran = invoke("evaluate", "choices", file)
    assert ran.code == 2 and ran.err.count("\n") == 1 and "ITEMS" in ran.err
