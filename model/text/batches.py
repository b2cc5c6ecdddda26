"""Batches of texts: token ids of several texts in one tensor, padded on the right, those of similar length together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from colmlm.model.text.tokens import Encoded


def padded(sequences: Sequence[Sequence[int]], pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Pads sequences on the right: gives [B, T] ids, and [B, T] with 1 where there is a token."""
    longest = max(map(len, sequences))
    ids_BT = torch.full((len(sequences), longest), pad, dtype=torch.long)
    mask_BT = torch.zeros(len(sequences), longest, dtype=torch.long)
    for row, ids in enumerate(sequences):
        ids_BT[row, : len(ids)] = torch.tensor(ids, dtype=torch.long)
        mask_BT[row, : len(ids)] = 1
    return ids_BT, mask_BT


def padded_batches(
    sequences: Sequence[Encoded], *, max_tokens: int = 8192
) -> Iterator[tuple[list[int], torch.Tensor]]:
    """Groups sequences into batches padded on the right; yields the indices of each batch and its ids [B, T]."""
    for group in length_groups([len(s) for s in sequences], max_tokens=max_tokens):
        yield group, padded([sequences[i].ids for i in group], 0)[0]


def length_groups(lengths: Sequence[int], waste: float = 0.15, max_tokens: int = 8192) -> list[list[int]]:
    """Groups the indices of sequences that are padded together, longest first.

    A group grows until padding would exceed the share `waste` of its tokens, or `max_tokens`.
    """
    groups: list[list[int]] = []
    real = 0
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if groups:
            width = lengths[groups[-1][0]]
            room = width * (len(groups[-1]) + 1)
            if room <= max_tokens and real + lengths[i] >= (1 - waste) * room:
                groups[-1].append(i)
                real += lengths[i]
                continue
        groups.append([i])
        real = lengths[i]
    return groups
