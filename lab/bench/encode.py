"""Measures the making of keys beside the bare forward pass of the same tokens in the same batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from colmlm.kb.corpus.format import AnnotatedDocument
from colmlm.lab.bench.machine import Seconds, in_turns
from colmlm.model.lm.checkpoint import Checkpoint
from colmlm.model.lm.encoder import KeyEncoder
from colmlm.model.lm.language_model import unit


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodeFigures:
    """The figures. `encode` is all of `KeyEncoder.encode_documents`: tokenising, windows, batches, unit vectors.

    `forward` and `own_forward` are the bare forward passes of the same padded batches, already made, by transformers
    and by this program; `vs_forward` is forward to encode. Tokens are those of the texts up to their last fact, and
    padding is counted apart. `least_cosine` is the least cosine of a key with the state that transformers computes.
    """

    facts: int
    tokens: int
    padded_tokens: int
    batches: int
    rounds: int
    encode: Seconds
    forward: Seconds
    own_forward: Seconds
    vs_forward: float
    vs_own_forward: float
    tokens_per_s: float
    keys_per_s: float
    least_cosine: float


def bench_encode(
    checkpoint: Checkpoint, documents: Sequence[AnnotatedDocument], *, rounds: int
) -> EncodeFigures:
    """Makes the keys of all facts of `documents`, `rounds` times in turns with the bare passes."""
    encoder = KeyEncoder(checkpoint)
    causal, own = checkpoint.lm.causal, checkpoint.lm.inference
    tokens, padded = encoder.batches(documents)
    batches = [batch.to(checkpoint.lm.device) for batch in padded]
    ways: dict[str, Callable[[], object]] = {
        "encode": lambda: encoder.encode_documents(documents),
        "forward": lambda: [causal.model(input_ids=batch, use_cache=False) for batch in batches],
        "own_forward": lambda: [own.states(batch) for batch in batches],
    }
    with torch.inference_mode():
        seconds = in_turns(ways, rounds)
        least_cosine = _least_cosine(checkpoint, encoder, documents)
    encode, forward, own_forward = (seconds[name] for name in ("encode", "forward", "own_forward"))
    facts = sum(len(document.facts) for document in documents)
    return EncodeFigures(
        facts=facts,
        tokens=tokens,
        padded_tokens=sum(batch.numel() for batch in batches),
        batches=len(batches),
        rounds=rounds,
        encode=encode,
        forward=forward,
        own_forward=own_forward,
        vs_forward=forward.median / encode.median,
        vs_own_forward=own_forward.median / encode.median,
        tokens_per_s=tokens / encode.median,
        keys_per_s=facts / encode.median,
        least_cosine=least_cosine,
    )


def _least_cosine(
    checkpoint: Checkpoint, encoder: KeyEncoder, documents: Sequence[AnnotatedDocument], sample: int = 32
) -> float:
    """Gives the least cosine of a key with transformers' state, over some documents that need no windows."""
    cosines = [1.0]
    for document in documents[:: max(1, len(documents) // sample)]:
        encoded = checkpoint.tokenizer.document(document, close=False)
        if not document.facts or len(encoded) > encoder.window:
            continue
        (ours,) = encoder.encode_documents([document])
        ids = torch.tensor([encoded.ids], device=checkpoint.lm.device)
        states: Tensor = checkpoint.lm.causal.model(input_ids=ids, use_cache=False).last_hidden_state[0]
        theirs = unit(states[list(encoded.fact_positions)]).cpu().numpy()
        cosines += np.sum(ours * theirs, axis=1).tolist()
    return min(cosines)
