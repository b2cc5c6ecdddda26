"""Batches of texts: grouping loses none, and padding stays within its bounds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from colmlm.model.text.tokens import length_groups


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
