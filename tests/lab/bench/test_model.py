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
from tests.cli.conftest import invoke
from tests.tiny import tiny_checkpoint


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
    assert refused.code == 2 and "choose among key, words, reader" in refused.err


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
