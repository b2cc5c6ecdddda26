"""Rows of one fixed cache give what pasts of their own give, whoever joins and leaves, in steps of few shapes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch

from colmlm.model.decoding.config import DecodeConfig
from colmlm.model.decoding.decoder import Decoder
from colmlm.model.decoding.rows import MIB, PrefixCache
from colmlm.model.decoding.together import DecoderTogether, Room
from colmlm.model.lm.checkpoint import Checkpoint, base_checkpoint
from colmlm.model.lm.past import StaticRows, StaticSteps
from tests.model.lookups import by_direction
from tests.tiny_families import tiny_family

PROMPTS = ["The capital", "", "Question: Who was it?\nAnswer:", "é🏔️ x", "of " * 40, "<FACT>", "a" * 300]
CONFIG = DecodeConfig(max_tokens=24)


@pytest.mark.parametrize("mode, misses", [*product(("auto", "forced"), (0, 3, 8)), ("off", 0)])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_outputs_are_those_of_pasts_apart(eager: Checkpoint, mode: str, misses: int, temperature: float):
    config = replace(CONFIG, mode=mode, temperature=temperature, top_p=0.95, stop=("\n",))
    static, apart = (
        Decoder(eager, by_direction(misses), static=static).generate(PROMPTS, config)
        for static in (True, False)
    )
    assert static == apart


def test_rows_that_join_and_leave_disturb_nobody(eager: Checkpoint):
    """Twenty threads ask at once for rows that are taken again and again, with prompts that begin alike."""
    configs = [
        CONFIG,
        DecodeConfig(max_tokens=40, temperature=1.0, top_p=0.9, seed=7),
        DecodeConfig(max_tokens=9, mode="forced", stop=("\n", "e")),
        DecodeConfig(max_tokens=16, mode="off", repetition_penalty=1.0),
    ]
    together = DecoderTogether(Decoder(eager, by_direction(), static=True), Room(rows=5))
    prompts = [*PROMPTS, "of " * 40 + "more", "a" * 290]
    asked = list(product(prompts, configs))
    with ThreadPoolExecutor(20) as threads:
        said = list(threads.map(lambda one: together.generate([one[0]], one[1])[0], asked))
    for (prompt, config), output in zip(asked, said, strict=True):
        assert output == Decoder(eager, by_direction(), static=False).generate([prompt], config)[0]
    rows = together.run.forward
    assert isinstance(rows, StaticRows)
    assert {shape[0] for shape in rows.steps.shapes} <= {2, 4, 8}
    assert {shape[1] for shape in rows.steps.shapes} <= {256, 512}


def test_a_row_is_free_again_once_nobody_holds_it(eager: Checkpoint):
    run = Decoder(eager, None, static=True).new_run(PrefixCache(MIB))
    config = replace(CONFIG, mode="off", max_tokens=4, min_tokens=4)
    for _ in range(3):
        rows = [run.join(prompt, config, 0) for prompt in PROMPTS]
        for _ in run.steps():
            pass
        assert len({tuple(row.sampled) for row in rows}) > 1
        del rows
    assert isinstance(run.forward, StaticRows) and run.forward.cache.rows == 8


def test_the_next_run_takes_the_rows_of_the_one_before(eager: Checkpoint):
    decoder = Decoder(eager, None, static=True)
    first, second = decoder.new_run(), decoder.new_run()
    assert first.forward is not second.forward
    kept = second.forward
    del second
    assert decoder.new_run().forward is kept


@pytest.mark.parametrize("family", ["Qwen 3", "Gemma 3"])
def test_of_every_family_static_rows_give_the_same_tokens(tmp_path: Path, family: str):
    checkpoint = base_checkpoint(str(tiny_family(family, tmp_path)), tmp_path, precision="fp32")
    checkpoint.lm.model.double()
    static, apart = (
        Decoder(checkpoint, by_direction(), static=static).generate(PROMPTS, CONFIG)
        for static in (True, False)
    )
    assert static == apart


def test_where_no_step_can_be_recorded_each_is_computed(eager: Checkpoint):
    """A machine without CUDA refuses to record, and what the first step has fed is fed once."""
    forward, states = eager.lm.inference, []
    with torch.inference_mode():
        for records in (True, False):
            cache = forward.cache(2)
            cache.reserve(16, spare=False)
            steps = StaticSteps(forward, cache, records=records)
            states.append([steps([5 + n, 9 + n], [n, n], 16) for n in range(4)])
            assert not steps.records and steps.shapes == {(2, 16): 4}
    for one, other in zip(*states, strict=True):
        assert torch.equal(one, other)
