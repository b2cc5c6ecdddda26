"""The port of a forward pass for inference: `model.lm.llama` computes it fast, `model.lm.transformers_pass` in general.

Token t of a sequence stands in slot t of its past, so tokens are taken back by feeding others at their positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor

from colmlm.model.lm.past import Past, Piece


class RowCache(Protocol):
    """The pasts of several sequences that are read side by side."""

    def reserve(self, slots: int) -> None:
        """Makes room for `slots` tokens in each row."""
        ...

    def keep(self, rows: Sequence[int]) -> None:
        """Keeps only these rows, in this order."""
        ...


class ForwardPass(Protocol):
    """The forward pass of one model, over its own weights. `context` is the length of the longest text."""

    context: int

    @property
    def embedding(self) -> Tensor: ...

    def is_of(self, causal: Any) -> bool:
        """Tells whether `causal` still computes with these weights, which were not changed, moved or cast since."""
        ...

    def states(self, ids_BT: Tensor) -> Tensor:
        """Gives the [B, T, D] states after the final norm. Right padding needs no mask: attention is causal."""
        ...

    def logits(self, states_ND: Tensor) -> Tensor:
        """Gives the [N, V] next-token logits, in float32 (float64 if the model is in float64)."""
        ...

    def past(self) -> Past:
        """Makes the empty past of a sequence that is decoded together with others."""
        ...

    def feed(self, pieces: Sequence[Piece]) -> Tensor:
        """Gives the [N, D] states of the tokens of all pieces, one after another; each sees its own past only.

        A piece's states are the same to the last bit whatever the others are (fp32).
        """
        ...

    def cache(self, rows: int) -> Any:
        """Makes an empty `RowCache` for that many sequences."""
        ...

    def advance(
        self, ids_BT: Tensor, starts: Sequence[int], cache: Any, lengths: Sequence[int] | None = None
    ) -> Tensor:
        """Gives the [B, T, D] states of up to T further tokens a row; row i's tokens begin at position `starts[i]`.

        Tokens that the cache held for a row at these positions or later are forgotten. In row i the first `lengths[i]`
        ids are tokens (None: all), and the states of its padding are zero.
        """
        ...
