"""`colmlm train --base` takes a base of each family, and what cannot be one is told in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import BPE

from colmlm.cli.errors import MODEL
from tests.cli.conftest import invoke
from tests.cli.training.test_train import written
from tests.kb.corpora import numbered
from tests.tiny_families import FAMILIES, tiny_family

pytestmark = pytest.mark.filterwarnings(
    "ignore:`is_gradient_checkpointing` is deprecated:FutureWarning",
)


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    monkeypatch.setenv("COLMLM_HOME", str(tmp_path / "home"))
    file = written(tmp_path / "numbers.jsonl", numbered(8))
    return ["--annotated", file, "--no-demo", "--steps", 1, "--batch", 4, "--set", "precision=fp32", "--json"]


@pytest.mark.parametrize("name", FAMILIES)
def test_a_base_of_the_family_is_planned_trained_and_described(
    tmp_path: Path, options: list[object], name: str
) -> None:
    base, run = tiny_family(name, tmp_path / "base"), tmp_path / "run"
    planned = invoke("train", "--base", base, *options, "--dry-run")
    assert planned.code == 0 and planned.json["plan"]["parameters"]["trained"] > 0, planned.err
    done = invoke("train", "--base", base, *options, "--out", run)
    assert done.code == 0 and done.json["base"] == str(base), done.err
    known = invoke("checkpoint", "info", "--checkpoint", run, "--json")
    assert known.code == 0 and known.json["dim"] == 48, known.err


@pytest.mark.parametrize("wrong", ["family", "tokenizer", "index"])
def test_what_cannot_be_a_base_is_told_in_one_line(tmp_path: Path, options: list[object], wrong: str) -> None:
    base = tiny_family("SmolLM2", tmp_path / "base")
    if wrong == "family":
        config = json.loads((base / "config.json").read_text())
        (base / "config.json").write_text(json.dumps(config | {"model_type": "gpt2"}))
    elif wrong == "tokenizer":
        Tokenizer(BPE()).save(str(base / "tokenizer.json"))
    else:
        (base / "model.safetensors").rename(base / "model.safetensors.index.json")
    refused = invoke("train", "--base", base, *options, "--out", tmp_path / "run")
    said = {
        "family": "a model of type 'gpt2'; what is known here is llama (Llama, SmolLM2), qwen2",
        "tokenizer": "tokenizer.json: this tokenizer has no <|endoftext|> token, and none of <|end_of_text|>",
        "index": "model.safetensors.index.json lists no files of weights",
    }[wrong]
    assert refused.code == MODEL and said in refused.err
    assert len(refused.err.strip().splitlines()) == 1
