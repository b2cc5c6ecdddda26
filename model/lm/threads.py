"""The number of threads that a product is computed with.

A step of few tokens waits for memory, and a further thread brings little; one of many tokens computes. So a server can
leave a core to all else that it does, and take it for a moment where that pays. The bits do not depend on it (tested).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

WIDE = 24  # tokens from which on a step computes rather than waits for memory


@contextmanager
def threads_for(num_tokens: int, wide: int | None) -> Iterator[None]:
    """Computes with `wide` threads within the block where so many tokens are many, else as before."""
    before = torch.get_num_threads()
    if wide is None or num_tokens < WIDE or wide == before:
        yield
        return
    torch.set_num_threads(wide)
    try:
        yield
    finally:
        torch.set_num_threads(before)
