"""Sequences packed in one row do not see each other, forwards and backwards, and shapes change nothing but the time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AttentionInterface

from colmlm.model.lm.checkpoint import base_checkpoint
from colmlm.model.lm.language_model import FactLM
from colmlm.model.text.tokens import EncodedText
from colmlm.model.training.config import TrainConfig
from colmlm.model.training.forward import PACKED, Packing, attend, lay_out, row_size, rows_of, varlen_kernel
from colmlm.model.training.trainer import Trainer
from tests.kb.corpora import numbered
from tests.tiny import tiny_llama
from tests.tiny_families import FAMILIES, tiny_family


@pytest.fixture
def lm() -> FactLM:
    """A model in double precision with a large spread, so that a state depends strongly on all tokens before it."""
    model = tiny_llama(260, spread=0.2)
    model.set_attn_implementation(PACKED)
    return FactLM(model.double(), compute=torch.float32)


def sequences(*lengths: int) -> list[EncodedText]:
    random = torch.Generator().manual_seed(1)
    return [
        EncodedText(tuple(torch.randint(0, 250, (n,), generator=random).tolist()), (), (False,) * n)
        for n in lengths
    ]


def forward(
    lm: FactLM, made: list[EncodedText], most_tokens: int, *, is_fixed: bool = False
) -> list[torch.Tensor]:
    """Gives the states of each sequence as the trainer gets them."""
    rows, starts = lay_out(made, most_tokens, is_fixed=is_fixed)
    states_TD = torch.cat([lm.hidden(*some).flatten(0, 1) for some in rows])
    return [states_TD[start : start + len(s)] for start, s in zip(starts, made, strict=True)]


LENGTHS = (30, 1, 12, 1, 40, 7, 2, 25, 64)


@given(st.lists(st.integers(1, 70), max_size=40), st.integers(1, 64))
def test_every_sequence_is_in_one_row_and_rows_keep_their_bound(lengths: list[int], most_tokens: int):
    rows = rows_of(lengths, most_tokens)
    assert sorted(i for row in rows for i in row) == list(range(len(lengths)))
    sizes = [sum(lengths[i] for i in row) for row in rows]
    assert all(size <= most_tokens or len(row) == 1 for size, row in zip(sizes, rows, strict=True))
    if len(rows) > 1:  # no two rows would fit into one
        assert sorted(sizes)[0] + sorted(sizes)[1] > most_tokens


@given(st.lists(st.integers(1, 900), max_size=80), st.integers(900, 20_000))
def test_a_row_of_a_fixed_size_is_small_or_full_and_its_sequences_fill_it(
    lengths: list[int], most_tokens: int
):
    ((row,), starts) = lay_out(sequences(*lengths), most_tokens, is_fixed=True)
    size = row.ids_RT.numel()
    assert row.ids_RT.shape == row.positions_RT.shape == (1, size) and size == row_size(
        sum(lengths), most_tokens
    )
    full = -(-max(1, sum(lengths)) // most_tokens)
    assert size in {-(-most_tokens // 4), full * most_tokens} and size >= sum(lengths)
    ends = row.packing.ends_N.tolist()
    assert row.packing.lengths[: len(lengths)] == tuple(lengths) and sum(row.packing.lengths) == size
    assert ends[: len(lengths)] == starts[:] if lengths else ends[0] == 0
    assert ends == sorted(ends) and ends[-1] == size and len(ends) % 256 == 0
    assert row.packing.longest >= max(row.packing.lengths)


@pytest.mark.parametrize("most_tokens, is_fixed", [(64, False), (200, False), (10_000, False), (256, True)])
def test_states_in_a_row_are_those_of_each_sequence_alone(lm: FactLM, most_tokens: int, is_fixed: bool):
    made = sequences(*LENGTHS)
    with torch.no_grad():
        packed = forward(lm, made, most_tokens, is_fixed=is_fixed)
        lm.causal.set_attn_implementation("sdpa")
        for sequence, states in zip(made, packed, strict=True):
            alone = lm.hidden(torch.tensor([sequence.ids]))[0]
            torch.testing.assert_close(states, alone, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_keeps_the_sequences_of_a_row_apart(name: str, tmp_path: Path):
    directory = tiny_family(name, tmp_path / name)
    lm = base_checkpoint(str(directory), directory, precision="fp32").lm
    made = sequences(*LENGTHS)
    with torch.no_grad():
        alone = [lm.hidden(torch.tensor([sequence.ids]))[0] for sequence in made]
        lm.causal.set_attn_implementation(PACKED)
        for sequence, states, expected in zip(made, forward(lm, made, 1000), alone, strict=True):
            torch.testing.assert_close(states, expected, atol=1e-4, rtol=1e-4)
            whole_row = lm.hidden(torch.tensor([sequence.ids]))[0]
            torch.testing.assert_close(whole_row, expected, atol=1e-4, rtol=1e-4)


def test_gradients_in_a_row_are_those_of_the_sequences_alone(lm: FactLM):
    made = sequences(*LENGTHS)
    weights = [
        torch.randn(len(s), 64, generator=torch.Generator().manual_seed(i)) for i, s in enumerate(made)
    ]

    def gradients(most_tokens: int, is_fixed: bool) -> dict[str, torch.Tensor]:
        lm.zero_grad()
        states = forward(lm, made, most_tokens, is_fixed=is_fixed)
        sum((s * w).sum() for s, w in zip(states, weights, strict=True)).backward()
        return {name: p.grad.clone() for name, p in lm.named_parameters() if p.grad is not None}

    alone = gradients(1, False)
    for packed in (gradients(100, False), gradients(1000, True)):
        assert alone.keys() == packed.keys() and len(alone) > 10
        for name in alone:
            torch.testing.assert_close(packed[name], alone[name], atol=1e-5, rtol=1e-5)


def test_what_stands_elsewhere_in_a_row_changes_no_state(lm: FactLM):
    first, *rest = sequences(40, 30, 10)
    with torch.no_grad():
        one = forward(lm, [first, *rest], 100)
        other = forward(lm, [first, *sequences(25, 35)], 100)
    torch.testing.assert_close(one[0], other[0], atol=1e-5, rtol=1e-5)


def test_sequences_joined_into_one_would_be_mixed(lm: FactLM):
    """Shows that the tests above would fail for sequences joined into one, where the second's states differ."""
    one, two = sequences(20, 20)
    with torch.no_grad():
        together = lm.hidden(torch.tensor([one.ids + two.ids]))[0, 20:]
        alone = lm.hidden(torch.tensor([two.ids]))[0]
    assert not torch.allclose(together, alone, atol=1e-2)


@pytest.fixture
def gpu_kernel() -> Iterator[Callable[[torch.Tensor], Any]]:
    kernel = varlen_kernel()
    if kernel is None:
        pytest.skip("this torch has no kernel for packed sequences")
    yield kernel


def test_the_gpus_kernel_takes_rows_as_attention_gives_them(gpu_kernel: Callable[..., torch.Tensor]):
    """Runs it without numbers, on the device that knows shapes only: forwards and backwards."""
    made = sequences(*LENGTHS)
    ((row,), _) = lay_out(made, 1024, is_fixed=True)
    q, k, v = (
        torch.zeros(1, heads, 256, 16, dtype=torch.bfloat16, device="meta", requires_grad=True)
        for heads in (4, 2, 2)
    )
    for window in (None, 32):
        out = gpu_kernel(q, k, v, row.to(torch.device("meta")).packing, 0.25, window)
        assert out.shape == q.shape
        grads = torch.autograd.grad(out.sum(), (q, k, v))
        assert [grad.shape for grad in grads] == [t.shape for t in (q, k, v)]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_the_gpus_kernel_computes_what_the_cpu_does():
    made = sequences(*LENGTHS)
    ((row,), _) = lay_out(made, 1024, is_fixed=True)
    drawn = torch.Generator().manual_seed(2)
    q, k, v = (torch.randn(1, heads, 256, 16, generator=drawn) for heads in (4, 2, 2))
    module, cuda = torch.nn.Identity(), torch.device("cuda")
    expected, _ = attend(module, q, k, v, None, scaling=0.25, packing=row.packing)
    on_gpu = (t.to(cuda, torch.bfloat16) for t in (q, k, v))
    ours, _ = attend(module, *on_gpu, None, scaling=0.25, packing=row.to(cuda).packing)
    torch.testing.assert_close(ours.float().cpu(), expected, atol=2e-2, rtol=2e-2)


def test_attention_is_asked_once_for_all_sequences_of_a_row(lm: FactLM):
    asked: list[Packing] = []

    def counting(*args: Any, **kwargs: Any) -> Any:
        asked.append(kwargs["packing"])
        return attend(*args, **kwargs)

    AttentionInterface.register("counting", counting)
    lm.causal.set_attn_implementation("counting")
    with torch.no_grad():
        forward(lm, sequences(*LENGTHS), 1024, is_fixed=True)
    assert [packing.lengths[: len(LENGTHS)] for packing in asked] == [LENGTHS] * 2


def test_after_each_step_a_run_computes_with_the_adapter_of_that_step(base: Path, tmp_path: Path):
    """Compares with peft's own layers over the same weights."""
    config = TrainConfig(
        init=str(base),
        steps=4,
        batch_documents=8,
        max_length=128,
        precision="fp32",
        warmup_steps=0,
        lora_rank=4,
    )
    trainer, ids, seen = (
        Trainer(config, numbered(24), tmp_path / "run", tmp_path, "x"),
        torch.arange(40)[None],
        [],
    )
    for _ in trainer.run():
        with torch.no_grad():
            ours = trainer.lm.hidden(ids)
            kept = [layer.parts for layer in trainer.adapters.layers]
            for layer in trainer.adapters.layers:
                layer.parts = None
            torch.testing.assert_close(ours, trainer.lm.hidden(ids), rtol=1e-4, atol=1e-5)
            for layer, parts in zip(trainer.adapters.layers, kept, strict=True):
                layer.parts = parts
        seen.append(ours)
    assert all((one - other).abs().max() > 1e-3 for one, other in pairwise(seen))


@pytest.mark.parametrize("settings", [{"lora_rank": 4}, {"adapt": "full", "micro_documents": 3}])
def test_a_run_is_the_same_in_any_shape(base: Path, tmp_path: Path, settings: dict[str, Any]):
    config = TrainConfig(
        init=str(base),
        steps=5,
        batch_documents=8,
        max_length=128,
        precision="fp32",
        warmup_steps=0,
        **settings,
    )
    shapes = {"exact": None, "one forward": 4096, "several": 512}
    losses = {
        name: [
            (m.loss, m.parts["next_token"], m.parts["contrastive"], m.parts["accuracy"])
            for m in Trainer(
                replace(config, forward_tokens=tokens), numbered(24), tmp_path / name, tmp_path, "x"
            ).run()
        ]
        for name, tokens in shapes.items()
    }
    for name in ("one forward", "several"):
        for ours, theirs in zip(losses[name], losses["exact"], strict=True):
            assert ours == pytest.approx(theirs, abs=1e-4)
