"""The losses of answers under a model that may look facts up, from which TOFU's metrics are computed.

The paper scores Co-LMLM "with answer masking" and does not say what that is. Two readings of it are measured, and a
model without lookups has neither:

- *masked*: tokens of fact spans have no loss, whatever they are. The value that a lookup finds is spliced before the
  following tokens; without a match it is the answer's own span. Answers that differ only in their facts are then
  equally likely.
- *spoken*: a span has no loss where the lookup finds exactly its value; otherwise its tokens have the model's own
  loss, as in decoding, where a lookup without a match is taken back. Wrong answers then have the loss of their own
  tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import torch

from colmlm.kb.corpus.format import AnnotatedDocument
from colmlm.model.evaluate.reader import (
    GIVEN,
    SAID,
    Course,
    Find,
    MarkedText,
    Query,
    SequenceReader,
    Splice,
    read,
)
from colmlm.model.lm.checkpoint import Checkpoint
from colmlm.model.text.tokens import FactTokenizer


class Masking(StrEnum):
    """The tokens of an answer that are scored. `none` scores all, for a model that makes no lookups."""

    none = "none"
    masked = "masked"
    spoken = "spoken"


@torch.inference_mode()
def answer_losses(
    checkpoint: Checkpoint,
    question: str,
    answers: Sequence[tuple[AnnotatedDocument, Masking]],
    find: Find | None = None,
) -> list[tuple[float, int]]:
    """Gives for each answer the summed loss in nats of its scored tokens, with the end of the text, and their number.

    The answers follow ``Question: ...`` and ``Answer:`` on the next line, which are read once; lookups are made where
    the answers have their facts.
    """
    tokenizer = checkpoint.tokenizer
    prompt, cache = SequenceReader(checkpoint), checkpoint.lm.inference.cache(1)
    prompt.queue([tokenizer.begin, *tokenizer.encode(f"Question: {question}\nAnswer:")], GIVEN)
    read([(prompt, prompt.at_once())], cache)
    cache.keep([0] * len(answers))
    readers = [
        SequenceReader(checkpoint, without_markup=masking is Masking.none, after=prompt)
        for _, masking in answers
    ]
    courses = [
        _course(reader, _answer(answer, tokenizer), masking, find)
        for reader, (answer, masking) in zip(readers, answers, strict=True)
    ]
    read(list(zip(readers, courses, strict=True)), cache)
    return [(reader.losses[SAID], reader.counts[SAID]) for reader in readers]


def _course(reader: SequenceReader, text: MarkedText, masking: Masking, find: Find | None) -> Course:
    if masking is not Masking.none and find is not None:
        return reader.with_lookups(text, _splice(reader.tokenizer, masking, find))
    for outside, span in zip(text.outside, text.spans, strict=False):
        reader.queue([*outside, *span], SAID)
    reader.queue(text.outside[-1], SAID)
    return reader.at_once()


def _answer(answer: AnnotatedDocument, tokenizer: FactTokenizer) -> MarkedText:
    """Encodes the answer as it follows the prompt: after a space, and without the token that begins a text."""
    encoded = tokenizer.spans(" ", answer.text, answer.facts)
    text = MarkedText.of(encoded, tokenizer, len(encoded.ids))
    return MarkedText([text.outside[0][1:], *text.outside[1:]], text.spans)


def _splice(tokenizer: FactTokenizer, masking: Masking, find: Find) -> Splice:
    def splice(query: Query, span: Sequence[int]) -> Sequence[int] | None:
        value, own = find(query), tokenizer.decode(span)
        if masking is Masking.spoken:
            return span if value == own.strip() else None
        if value is None:
            return span
        return tokenizer.encode(f" {value}" if own.startswith(" ") else value)

    return splice
