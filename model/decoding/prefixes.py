"""Beginnings of prompts that repeat, such as a template or examples: their keys and values, kept in bounded memory.

A prompt is kept in blocks of 32 tokens, each found by all tokens up to its end. What a prompt's tokens leave in a past
depends on these tokens and the weights alone, never on a fact: values are spliced behind the prompt and are not kept
here. So no edit can make anything here wrong.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence

from torch import Tensor

from colmlm.model.lm.past import BLOCK, Past

MIB = 1 << 20


class Prefixes:
    """Blocks of prompts, of which those used least recently are dropped beyond `most_bytes`."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes, self.num_bytes = most_bytes, 0
        self._blocks: OrderedDict[bytes, Tensor] = OrderedDict()

    def recall(self, ids: Sequence[int], past: Past) -> int:
        """Puts the longest beginning of `ids` that is known into the past; gives its number of tokens."""
        known = []
        for name in _names(ids):
            if (block := self._blocks.get(name)) is None:
                break
            self._blocks.move_to_end(name)
            known.append(block)
        past.reserve(len(known) * BLOCK)
        for at, block in enumerate(known):
            past.kv[:, :, :, at * BLOCK : (at + 1) * BLOCK] = block
        return len(known) * BLOCK

    def keep(self, ids: Sequence[int], past: Past) -> None:
        """Keeps the whole blocks of these tokens, which the past holds from its start."""
        for at, name in enumerate(_names(ids)):
            if name not in self._blocks:
                block = past.kv[:, :, :, at * BLOCK : (at + 1) * BLOCK].clone()
                self._blocks[name] = block
                self.num_bytes += block.nbytes
        while self.num_bytes > self.most_bytes:
            self.num_bytes -= self._blocks.popitem(last=False)[1].nbytes


def _names(ids: Sequence[int]) -> Iterator[bytes]:
    """Names each whole block by all tokens up to its end."""
    seen = hashlib.sha256()
    for end in range(BLOCK, len(ids) + 1, BLOCK):
        seen.update(array("i", ids[end - BLOCK : end]).tobytes())
        yield seen.digest()
