"""The threads of a product: how many compute it, and that its bits do not depend on that."""

from __future__ import annotations

import pytest
import torch

from colmlm.model.decoding.decoder import COMPUTING_TOKENS, threads_for
from colmlm.model.lm.checkpoint import Checkpoint
from colmlm.model.lm.past import BLOCK, DEEP, Piece, block_end


@pytest.mark.parametrize(
    ("tokens", "wide", "inside"), [(COMPUTING_TOKENS, 3, 3), (COMPUTING_TOKENS - 1, 3, 1), (1000, None, 1)]
)
def test_many_tokens_have_the_wide_number_of_threads_and_only_they(
    tokens: int, wide: int | None, inside: int
) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threads_for(tokens, wide):
            assert torch.get_num_threads() == inside
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


def test_states_are_the_same_to_the_last_bit_by_one_thread_and_by_two(checkpoint: Checkpoint) -> None:
    forward, states = checkpoint.lm.inference, []
    for threads in (1, 2):
        with threads_for(COMPUTING_TOKENS, threads), torch.inference_mode():
            pieces = [Piece(list(range(3, 3 + length)), 0, forward.past()) for length in (1, 14, 40)]
            states.append(forward.feed(pieces))
    assert torch.equal(*states)


def test_where_a_block_ends_depends_on_the_place_alone() -> None:
    ends = [block_end(position) for position in range(DEEP + 4 * BLOCK)]
    assert all(end > position for position, end in enumerate(ends))
    assert sorted(set(ends)) == [
        *range(BLOCK, DEEP + 1, BLOCK),
        *range(DEEP + BLOCK // 2, DEEP + 4 * BLOCK + 1, BLOCK // 2),
    ]
