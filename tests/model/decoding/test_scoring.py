"""Log-probabilities of texts equal transformers' own, whatever else is in the batch."""

from __future__ import annotations

import math

import pytest
import torch

from colmlm.model.decoding.config import DecodeConfig
from colmlm.model.decoding.decoder import Decoder
from colmlm.model.decoding.scoring import score_tokens
from colmlm.model.lm.checkpoint import Checkpoint

TEXTS = ("The capital of Peru is Lima.", "naïve 🏔️", "x")


def expected(checkpoint: Checkpoint, ids: list[int]) -> torch.Tensor:
    """Computes [T - 1, V] with transformers, leaving the markup's tokens out."""
    with torch.inference_mode():
        logits = checkpoint.lm.causal(input_ids=torch.tensor([ids])).logits[0, :-1].double()
        logits[:, checkpoint.tokenizer.added] = -math.inf
        return logits.log_softmax(-1)


@pytest.mark.parametrize("at_once", [256, 3])
def test_scores_are_those_of_transformers(eager: Checkpoint, at_once: int):
    sequences = [eager.tokenizer.prompt(text) for text in TEXTS]
    for ids, scores in zip(sequences, score_tokens(eager, sequences, top=3, at_once=at_once), strict=True):
        table = expected(eager, ids)
        assert [one.token for one in scores] == ids[1:]
        theirs = table[range(len(ids) - 1), ids[1:]]
        torch.testing.assert_close(
            torch.tensor([one.logprob for one in scores]), theirs.float(), atol=1e-4, rtol=0
        )
        assert [[token for token, _ in one.top] for one in scores] == table.topk(3).indices.tolist()
        assert not {token for one in scores for token, _ in one.top} & set(eager.tokenizer.added)


def test_what_is_said_greedily_is_the_likeliest_at_each_place(checkpoint: Checkpoint):
    config = DecodeConfig(mode="off", max_tokens=12, repetition_penalty=1.0)
    (said,) = Decoder(checkpoint, None).generate([TEXTS[0]], config)
    prompt = checkpoint.tokenizer.prompt(TEXTS[0])
    (scores,) = score_tokens(checkpoint, [[*prompt, *said.tokens]])
    for one in scores[len(prompt) - 1 :]:
        assert one.logprob == one.top[0][1]


def test_a_text_beyond_the_context_is_refused(checkpoint: Checkpoint):
    with pytest.raises(ValueError, match="exceeds the model's context"):
        score_tokens(checkpoint, [[0] * (checkpoint.lm.inference.context + 1)])


def test_tokens_are_bytes(checkpoint: Checkpoint):
    tokenizer = checkpoint.tokenizer
    for text in TEXTS:
        assert b"".join(map(tokenizer.bytes_of, tokenizer.encode(text))) == text.encode()
    assert tokenizer.bytes_of(tokenizer.end_of_text) == b"<|endoftext|>"
