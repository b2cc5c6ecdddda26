"""One forward for many sequences: padding changes nothing."""

from __future__ import annotations

import torch

from colmlm.model.lm.checkpoint import Checkpoint
from colmlm.model.lm.language_model import unit
from colmlm.model.text.tokens import EncodedText
from tests.tiny import states_of


def plain(ids: list[int]) -> EncodedText:
    return EncodedText(tuple(ids), (), (False,) * len(ids))


def test_states_do_not_depend_on_what_shares_the_batch(checkpoint: Checkpoint):
    random = torch.Generator().manual_seed(0)
    sequences = [
        plain(torch.randint(0, 256, (n,), generator=random).tolist()) for n in (1, 40, 37, 3, 40, 39, 120)
    ]
    with torch.inference_mode():
        together = states_of(checkpoint.lm, sequences, max_tokens=200)
        for sequence, states in zip(sequences, together, strict=True):
            assert states.shape == (len(sequence), checkpoint.lm.dim)
            (alone,) = states_of(checkpoint.lm, [sequence])
            torch.testing.assert_close(states, alone, atol=1e-5, rtol=1e-4)


def test_only_the_states_asked_for_are_kept(checkpoint: Checkpoint):
    sequences = [plain([1, 2, 3, 4]), plain([5, 6]), plain([7])]
    with torch.inference_mode():
        whole = states_of(checkpoint.lm, sequences)
        kept = states_of(checkpoint.lm, sequences, keep=[[3, 0], [], [0]])
    torch.testing.assert_close(kept[0], whole[0][[3, 0]])
    assert kept[1].shape == (0, 64)
    torch.testing.assert_close(kept[2], whole[2])


def test_no_sequences_are_no_states(checkpoint: Checkpoint):
    assert states_of(checkpoint.lm, []) == []


def test_queries_have_unit_norm_whatever_the_states():
    states = torch.tensor([[3.0, 4.0], [1e-3, 0.0], [1e4, 1e4]], dtype=torch.bfloat16)
    assert unit(states).dtype is torch.float32
    torch.testing.assert_close(unit(states).norm(dim=-1), torch.ones(3))
