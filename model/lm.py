"""The language model that is also a retriever: one forward gives logits and unit-norm queries.

A query is the hidden state after the final norm at ``<FACT>`` (or ``<FACT-q>``), L2-normalised
(section 3.1). Vocabulary rows for the three added tokens come last.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import LlamaForCausalLM
from transformers.cache_utils import Cache

from model.tokens import Encoded


class FactLM(nn.Module):
    """A causal LM of the Llama family, bare or under a LoRA adapter, read as a language model and a retriever."""

    def __init__(self, model: nn.Module, *, compute: torch.dtype) -> None:
        super().__init__()
        self.model = model
        self.compute = compute

    @property
    def causal(self) -> LlamaForCausalLM:
        """The Llama itself, with the adapter's layers in place where there is one."""
        inner = self.model.get_base_model() if hasattr(self.model, "get_base_model") else self.model
        assert isinstance(inner, LlamaForCausalLM)
        return inner

    @property
    def dim(self) -> int:
        return int(self.causal.config.hidden_size)

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def hidden(self, ids_BT: Tensor) -> Tensor:
        """[B, T, D] states after the final norm. Right padding needs no mask: attention is causal."""
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.compute is torch.bfloat16):
            return self.causal.model(input_ids=ids_BT, use_cache=False).last_hidden_state

    def logits(self, hidden_ND: Tensor) -> Tensor:
        """[N, V] next-token logits, in float32."""
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.compute is torch.bfloat16):
            return self.causal.lm_head(hidden_ND).float()

    def forward_sequences(
        self,
        sequences: Sequence[Encoded],
        *,
        max_tokens: int = 8192,
        keep: Sequence[Sequence[int]] | None = None,
    ) -> list[Tensor]:
        """The states of each sequence, in order: [T_i, D], or only those at the positions in `keep`.

        Sequences of similar length are padded and run together (see `length_groups`).
        """
        states: list[Tensor] = [torch.empty(0)] * len(sequences)
        for group in length_groups([len(s) for s in sequences], max_tokens=max_tokens):
            longest = max(len(sequences[i]) for i in group)
            ids_BT = torch.zeros(len(group), longest, dtype=torch.long)
            for row, i in enumerate(group):
                ids_BT[row, : len(sequences[i])] = torch.tensor(sequences[i].ids)
            hidden_BTD = self.hidden(ids_BT.to(self.device))
            for row, i in enumerate(group):
                here = slice(len(sequences[i])) if keep is None else list(keep[i])
                states[i] = hidden_BTD[row, here]
        return states

    def advance(self, ids_BT: Tensor, attended_BS: Tensor, positions_BT: Tensor, cache: Cache) -> Tensor:
        """[B, T, D] states of the next T tokens of every row, over one KV cache.

        `attended_BS` covers the S cached and new slots; a False slot is never looked at again.
        """
        output = self.causal.model(
            input_ids=ids_BT.to(self.device),
            attention_mask=attended_BS.to(self.device),
            position_ids=positions_BT.to(self.device),
            past_key_values=cache,
            use_cache=True,
        )
        return output.last_hidden_state


def unit(states_ND: Tensor) -> Tensor:
    """L2-normalised rows in float32: keys and queries."""
    return F.normalize(states_ND.float(), dim=-1)


def length_groups(lengths: Sequence[int], waste: float = 0.15, max_tokens: int = 8192) -> list[list[int]]:
    """Indices of sequences in groups to be padded together, longest first.

    A group grows until padding would exceed the share `waste` of its tokens, or `max_tokens`.
    """
    groups: list[list[int]] = []
    real = 0
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if groups:
            width = lengths[groups[-1][0]]
            padded = width * (len(groups[-1]) + 1)
            if padded <= max_tokens and real + lengths[i] >= (1 - waste) * padded:
                groups[-1].append(i)
                real += lengths[i]
                continue
        groups.append([i])
        real = lengths[i]
    return groups
