"""Batches of texts: grouping loses none, and padding stays within its bounds."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from colmlm.model.text.tokens import PaddedBatch, length_batches, length_groups


@given(
    st.lists(st.integers(1, 600), max_size=60), st.sampled_from([0.0, 0.15, 0.5]), st.sampled_from([64, 4096])
)
def test_every_sequence_is_in_one_group_and_padding_stays_within_its_bounds(
    lengths: list[int], waste: float, max_tokens: int
):
    groups = length_groups(lengths, waste=waste, max_tokens=max_tokens)
    assert sorted(i for group in groups for i in group) == list(range(len(lengths)))
    for group in groups:
        padded = max(lengths[i] for i in group) * len(group)
        assert sum(lengths[i] for i in group) >= (1 - waste) * padded - 1e-6
        assert padded <= max_tokens or len(group) == 1


@given(st.lists(st.integers(1, 560), max_size=200), st.sampled_from([600, 4096]))
def test_on_an_accelerator_shapes_are_few_and_every_sequence_is_in_one_batch(
    lengths: list[int], max_tokens: int
):
    batches = length_batches(lengths, device=torch.device("cuda"), max_tokens=max_tokens, longest=560)
    assert sorted(number for batch in batches for number in batch.numbers) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch.numbers) <= batch.rows < 2 * len(batch.numbers)
        assert batch.rows * batch.width <= max_tokens
        assert batch.width in {
            32,
            40,
            48,
            56,
            64,
            80,
            96,
            112,
            128,
            160,
            192,
            224,
            256,
            320,
            384,
            448,
            512,
            560,
        }
    shapes = {(batch.rows, batch.width) for batch in batches}
    assert len(shapes) <= 2 * len({batch.width for batch in batches})


def test_a_batch_is_padded_to_its_shape():
    sequences = [[7, 8, 9], [5], [6, 6]]
    batch = PaddedBatch([0, 2], rows=4, width=5)
    host = torch.device("cpu")
    assert batch.pad(sequences, 0, host).tolist() == [[7, 8, 9, 0, 0], [6, 6, 0, 0, 0], [0] * 5, [0] * 5]
    assert batch.mask([3, 1, 2], host).sum(dim=1).tolist() == [3, 2, 1, 1]
