"""Sequences packed in one row do not see each other, forwards and backwards."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from colmlm.model.lm.language_model import FactLM
from colmlm.model.text.tokens import EncodedText
from colmlm.model.training.config import TrainConfig
from colmlm.model.training.steps import lay_out, packed_batches, rows_of
from colmlm.model.training.trainer import Trainer
from tests.kb.corpora import numbered
from tests.tiny import tiny_llama


@pytest.fixture(params=["sdpa", "eager"])
def lm(request: pytest.FixtureRequest) -> FactLM:
    """A model in double precision with a large spread, so that a state depends strongly on all tokens before it."""
    model = tiny_llama(260, spread=0.2)
    model.set_attn_implementation(request.param)
    return FactLM(model.double(), compute=torch.float32)


def sequences(*lengths: int) -> list[EncodedText]:
    random = torch.Generator().manual_seed(1)
    return [
        EncodedText(tuple(torch.randint(0, 260, (n,), generator=random).tolist()), (), (False,) * n)
        for n in lengths
    ]


def forward(
    lm: FactLM, made: list[EncodedText], layout: str, row_length: int, max_tokens: int = 10_000
) -> list[torch.Tensor]:
    """Gives the states of each sequence as the trainer gets them."""
    rows, starts = lay_out(made, layout=layout, row_length=row_length, max_tokens=max_tokens)
    states_TD = torch.cat([lm.hidden(*some).flatten(0, 1) for some in rows])
    return [states_TD[start : start + len(s)] for start, s in zip(starts, made, strict=True)]


LENGTHS = (30, 1, 12, 1, 40, 7, 2, 25, 64)


@given(st.lists(st.integers(1, 70), max_size=40), st.integers(1, 64), st.sampled_from([64, 128, 1000]))
def test_every_sequence_is_in_one_row_and_rows_and_batches_keep_their_bounds(
    lengths: list[int], row_length: int, max_tokens: int
):
    rows = rows_of(lengths, row_length)
    assert sorted(i for row in rows for i in row) == list(range(len(lengths)))
    sizes = [sum(lengths[i] for i in row) for row in rows]
    assert all(size <= row_length or len(row) == 1 for size, row in zip(sizes, rows, strict=True))
    if len(rows) > 1:  # no two rows would fit into one
        assert sorted(sizes)[0] + sorted(sizes)[1] > row_length
    made = packed_batches(lengths, row_length, max_tokens)
    assert sorted(row for batch in made for row in batch) == sorted(rows)
    for batch in made:
        width = max(sum(lengths[i] for i in row) for row in batch)
        assert width * len(batch) <= max_tokens or len(batch) == 1


@pytest.mark.parametrize("layout", ["padded", "packed"])
@pytest.mark.parametrize("row_length, max_tokens", [(64, 64), (64, 10_000), (200, 10_000), (1, 1)])
def test_states_in_a_row_are_those_of_each_sequence_alone(
    lm: FactLM, layout: str, row_length: int, max_tokens: int
):
    made = sequences(*LENGTHS)
    with torch.no_grad():
        packed = forward(lm, made, layout, row_length, max_tokens)
        for sequence, states in zip(made, packed, strict=True):
            alone = lm.hidden(torch.tensor([sequence.ids]))[0]
            torch.testing.assert_close(states, alone, atol=1e-5, rtol=1e-5)


def test_gradients_in_a_row_are_those_of_the_sequences_alone(lm: FactLM):
    made = sequences(*LENGTHS)
    weights = [
        torch.randn(len(s), 64, generator=torch.Generator().manual_seed(i)) for i, s in enumerate(made)
    ]

    def gradients(layout: str, row_length: int, max_tokens: int) -> dict[str, torch.Tensor]:
        lm.zero_grad()
        states = forward(lm, made, layout, row_length, max_tokens)
        sum((s * w).sum() for s, w in zip(states, weights, strict=True)).backward()
        return {name: p.grad.clone() for name, p in lm.named_parameters() if p.grad is not None}

    alone, packed = gradients("padded", 1, 1), gradients("packed", 100, 10_000)
    assert alone.keys() == packed.keys() and len(alone) > 10
    for name in alone:
        torch.testing.assert_close(packed[name], alone[name], atol=1e-5, rtol=1e-5)


def test_what_stands_elsewhere_in_a_row_changes_no_state(lm: FactLM):
    first, *rest = sequences(20, 30, 10)
    with torch.no_grad():
        one = forward(lm, [first, *rest], "packed", 100)
        other = forward(lm, [first, *sequences(25, 35)], "packed", 100)
    torch.testing.assert_close(one[0], other[0], atol=1e-5, rtol=1e-5)


def test_rows_without_positions_would_mix_their_sequences(lm: FactLM):
    """Shows that the tests above would fail for sequences joined into one, where the second's states differ."""
    one, two = sequences(20, 20)
    with torch.no_grad():
        together = lm.hidden(torch.tensor([one.ids + two.ids]))[0, 20:]
        alone = lm.hidden(torch.tensor([two.ids]))[0]
    assert not torch.allclose(together, alone, atol=1e-2)


def test_a_run_is_the_same_in_either_layout(base: Path, tmp_path: Path):
    config = TrainConfig(
        init=str(base),
        steps=3,
        batch_documents=8,
        max_length=128,
        lora_rank=4,
        precision="fp32",
        warmup_steps=0,
    )
    losses = {
        layout: [
            (m.loss, m.gradient_norm, m.parts["accuracy"])
            for m in Trainer(
                replace(config, layout=layout), numbered(24), tmp_path / layout, tmp_path, "x"
            ).run()
        ]
        for layout in ("padded", "packed")
    }
    for packed, padded in zip(losses["packed"], losses["padded"], strict=True):
        assert packed == pytest.approx(padded, rel=1e-4)
