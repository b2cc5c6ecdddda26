"""The language model that is also a retriever: one forward gives logits and unit-norm queries.

A query is the hidden state after the final norm at ``<FACT>`` (or ``<FACT-q>``), L2-normalised (section 3.1).
Vocabulary rows for the three added tokens come last.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from colmlm.model.lm.families import is_fast
from colmlm.model.lm.forward_pass import ForwardPass
from colmlm.model.lm.llama import Llama
from colmlm.model.lm.transformers_pass import TransformersPass
from colmlm.model.text.batches import padded_batches
from colmlm.model.text.tokens import Encoded


class FactLM(nn.Module):
    """A causal LM of a known family, plain or under a LoRA adapter, that gives logits and hidden states."""

    def __init__(self, model: nn.Module, *, compute: torch.dtype) -> None:
        super().__init__()
        self.model = model
        self.compute = compute
        self._inference: ForwardPass | None = None

    @property
    def causal(self) -> PreTrainedModel:
        """The model itself, with the adapter's layers in place if there is one."""
        return self.model.get_base_model() if hasattr(self.model, "get_base_model") else self.model

    @property
    def dim(self) -> int:
        return int(self.causal.config.hidden_size)

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def inference(self) -> ForwardPass:
        """The forward pass for inference over these weights. Raises `TypeError` under an adapter."""
        if self.causal is not self.model:
            raise TypeError(f"{type(self.model).__name__} is no plain model: merge the adapter first")
        if self._inference is None or not self._inference.is_of(self.causal):
            made = Llama if is_fast(self.causal.config) else TransformersPass
            self._inference = made(self.causal)
        return self._inference

    def hidden(self, ids_BT: Tensor, positions_BT: Tensor | None = None) -> Tensor:
        """Gives the [B, T, D] states after the final norm. Right padding needs no mask: attention is causal.

        Where `positions_BT` restart within a row, a new sequence begins there that does not see the one before.
        """
        is_plain = positions_BT is None and torch.is_inference_mode_enabled() and self._is_for_inference
        if is_plain and ids_BT.shape[1] <= self.inference.context:
            return self.inference.states(ids_BT)
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.compute is torch.bfloat16):
            return self.causal.model(
                input_ids=ids_BT, position_ids=positions_BT, use_cache=False
            ).last_hidden_state

    def logits(self, hidden_ND: Tensor) -> Tensor:
        """Gives the [N, V] next-token logits, in float32."""
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.compute is torch.bfloat16):
            return self.causal.lm_head(hidden_ND).float()

    def forward_sequences(
        self,
        sequences: Sequence[Encoded],
        *,
        max_tokens: int = 8192,
        keep: Sequence[Sequence[int]] | None = None,
    ) -> list[Tensor]:
        """Gives the states of each sequence, in order: [T_i, D], or only those at the positions in `keep`.

        Sequences of similar length are padded and run together (see `length_groups`).
        """
        states: list[Tensor] = [torch.empty(0)] * len(sequences)
        for group, ids_BT in padded_batches(sequences, max_tokens=max_tokens):
            hidden_BTD = self.hidden(ids_BT.to(self.device))
            for row, i in enumerate(group):
                here = slice(len(sequences[i])) if keep is None else list(keep[i])
                states[i] = hidden_BTD[row, here]
        return states

    @property
    def _is_for_inference(self) -> bool:
        """Tells whether these weights are frozen and used in their own precision, without an adapter."""
        return (
            self.causal is self.model
            and self.compute is torch.float32
            and not self.causal.lm_head.weight.requires_grad
        )


def unit(states_ND: Tensor) -> Tensor:
    """L2-normalises rows in float32: the form of keys and queries."""
    return F.normalize(states_ND.float(), dim=-1)
