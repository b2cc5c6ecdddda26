"""The benchmarks of the model: they time what they say, on a tiny one, and what they compare is the same work."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest

from colmlm.lab.bench.machine import in_turns
from colmlm.model.lm.checkpoint import Checkpoint, load
from colmlm.model.lm.language_model import FAMILIES
from tests.cli.conftest import invoke
from tests.tiny import tiny_base, tiny_checkpoint


@pytest.fixture(scope="module")
def eager_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model that looks something up every few tokens."""
    return tiny_checkpoint(tmp_path_factory.mktemp("eager"), eagerness=5.0)


@pytest.fixture
def eager(eager_path: Path, tmp_path: Path) -> Checkpoint:
    return load(eager_path, tmp_path, precision="fp32")


def numbers(value: Any) -> list[float]:
    if isinstance(value, dict):
        return [number for item in value.values() for number in numbers(item)]
    return [value] if isinstance(value, int | float) else []


def test_keys_are_timed_beside_the_bare_forward_of_their_tokens(eager_path: Path):
    ran = invoke("bench", "encode", "--documents", 6, "--rounds", 2, "--checkpoint", eager_path, "--json")
    assert ran.code == 0, ran.err
    report = ran.json
    assert report["facts"] > 6 and report["batches"] >= 1
    assert report["tokens"] <= report["padded_tokens"] <= report["tokens"] / 0.85
    assert report["vs_forward"] == pytest.approx(report["forward"]["median"] / report["encode"]["median"])
    assert report["encode"]["least"] <= report["encode"]["median"] <= report["encode"]["most"]
    assert report["least_cosine"] > 0.999
    assert all(math.isfinite(number) for number in numbers(report))


@pytest.mark.slow(reason="runs a benchmark to its end")
def test_decoding_is_timed_beside_transformers_and_beside_itself_without_lookups(eager_path: Path):
    words = ("bench", "decode", "--tokens", 6, "--rounds", 1, "--checkpoint", eager_path, "--json")
    ran = invoke(*words, "--precision", "fp32")
    assert ran.code == 0, ran.err
    report = ran.json
    assert report["precision"] == "float32"
    assert (report["batch1"]["prompts"], report["batch8"]["prompts"]) == (1, 8)
    assert (report["batch1"]["tokens"], report["batch8"]["tokens"]) == (6, 48)
    assert report["vs_generate_batch8"] == report["batch8"]["vs_generate"] > 0
    assert report["lookups"]["lookups"] > 0
    assert report["lookup_cost"] == pytest.approx(
        report["lookups"]["auto"]["median"] / report["lookups"]["replay"]["median"] - 1
    )
    assert sum(report["shares"].values()) == pytest.approx(1)
    assert all(math.isfinite(number) for number in numbers(report))


@pytest.mark.slow(reason="runs a benchmark to its end")
def test_each_family_is_timed_beside_transformers_and_computes_the_same():
    ran = invoke("bench", "families", "--width", 128, "--layers", 2, "--tokens", 4, "--rounds", 1, "--json")
    assert ran.code == 0, ran.err
    by_name = {figures["family"]: figures for figures in ran.json["families"]}
    assert set(by_name) == {family.name for family in FAMILIES.values()}
    for figures in by_name.values():
        assert max(figures["states_difference"], figures["logits_difference"]) < 1e-3
        assert figures["same_tokens"] == 1.0
        assert figures["vs_generate8"] == pytest.approx(
            figures["decode8"]["transformers"]["median"] / figures["decode8"]["ours"]["median"]
        )
    assert all(math.isfinite(number) for number in numbers(by_name))


@pytest.mark.slow(reason="runs a benchmark to its end")
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
def test_a_step_is_timed_beside_that_of_transformers(tmp_path: Path):
    base = tiny_base(tmp_path / "base")
    ran = invoke("bench", "train", "--base", base, "--batch", 4, "--rounds", 2, "--json")
    assert ran.code == 0, ran.err
    report = ran.json
    assert report["padded_tokens_per_step"] >= report["tokens_per_step"] > 100
    assert report["batches_per_step"] >= 1 and report["sequences"] > 8
    for ratio, way in (("vs_trainer", "joint"), ("vs_trainer_next_token", "next_token")):
        assert report[ratio] == pytest.approx(report["trainer"]["median"] / report[way]["median"])
    assert all(math.isfinite(number) for number in numbers(report))


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
def test_what_transformers_trains_on_is_what_ours_trains_on(tmp_path: Path):
    from colmlm.lab.bench.train import _batches
    from colmlm.model.training.config import TrainConfig
    from colmlm.model.training.trainer import Trainer
    from tests.kb.corpora import numbered

    config = TrainConfig(init=str(tiny_base(tmp_path / "base")), batch_documents=4, max_length=128)
    run = Trainer(config, numbered(12), tmp_path / "run", tmp_path, "tiny")
    tokens, batches = _batches(run, 1)
    (ours,) = next(run.steps(1))
    assert tokens == ours.num_tokens == sum(int((batch["labels"] >= 0).sum()) for batch in batches)
    assert [batch["input_ids"].tolist() for batch in batches] == [rows.ids_RT.tolist() for rows in ours.rows]


def test_both_ways_of_decoding_say_the_same(eager: Checkpoint):
    from colmlm.lab.bench.decode import generated_tokens, plain_tokens

    prompts = ["The capital of Peru", "x", "Hydrogen was identified as a new element by"]
    ours, theirs = plain_tokens(eager, prompts, 20), generated_tokens(eager, prompts, 20)
    assert [len(row) for row in ours] == [20, 20, 20] and ours == theirs


@pytest.mark.slow(reason="runs a benchmark to its end")
def test_decoding_is_timed_by_each_ranking(eager_path: Path):
    words = ("bench", "decode", "--tokens", 2, "--rounds", 1, "--checkpoint", eager_path)
    ran = invoke(*words, "--ranking", "key,words,reader", "--json")
    assert ran.code == 0, ran.err
    costs = ran.json["rankings"]
    assert list(costs) == ["key", "words", "reader"]
    assert all(cost["tokens_per_s"] > 0 and cost["lookups"] > 0 for cost in costs.values())
    assert all(
        cost["tokens_per_s"] == pytest.approx(cost["tokens"] / cost["alone"]["median"])
        for cost in costs.values()
    )
    refused = invoke(*words, "--ranking", "guess")
    assert refused.code == 2 and "none of key, words, reader" in refused.err


def test_a_replay_decodes_the_same_and_asks_nobody(eager: Checkpoint):
    from colmlm.lab.bench.decode import _Recorded
    from colmlm.model.decoding.config import DecodeConfig
    from colmlm.model.decoding.decoder import Decoder
    from tests.model.lookups import by_direction

    kb = by_direction()
    recorded = _Recorded(kb)
    config = DecodeConfig(max_tokens=24)
    first = Decoder(eager, recorded).generate(["The capital"], config)
    asked = len(kb.calls)
    again = Decoder(eager, _Recorded(None, answers=recorded.answers)).generate(["The capital"], config)
    assert first == again and asked == len(recorded.answers) == len(kb.calls) > 0
    assert recorded.seconds > 0


def test_rounds_take_turns_and_the_first_does_not_count():
    done: list[str] = []
    seconds = in_turns({"a": lambda: done.append("a"), "b": lambda: done.append("b")}, rounds=3)
    assert "".join(done) == "abababab" and set(seconds) == {"a", "b"}
    assert all(s.least <= s.median <= s.most for s in seconds.values())
    assert json.dumps({name: dataclasses.asdict(s) for name, s in seconds.items()})


def test_a_corpus_without_facts_is_refused(tmp_path: Path):
    empty = tmp_path / "empty.jsonl"
    empty.write_text(json.dumps({"title": "x", "context": "Nothing.", "qas": []}) + "\n")
    ran = invoke("bench", "encode", "--squad", empty)
    assert ran.code == 2 and "no facts" in ran.err
