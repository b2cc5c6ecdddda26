"""How likely a model finds an answer when it may look facts up: the losses behind TOFU's metrics.

The paper scores Co-LMLM "with answer masking" and does not say what that is. Two readings of it are measured, and a
model without lookups has neither:

- *masked*: tokens of fact spans cost nothing, whatever they are. What a lookup finds stands before what follows;
  without a match it is the answer's own span. Answers that differ in their facts alone are then equally likely.
- *spoken*: a span costs nothing where the lookup finds that very value, and otherwise what the model itself gives
  its tokens, as in decoding, where a lookup without a match is taken back. Wrong answers cost what they would
  cost to say.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import torch

from colmlm.kb.corpus.format import AnnotatedDocument
from colmlm.model.evaluate.reader import GIVEN, SAID, Course, Find, MarkedText, Query, Reader, Splice, read
from colmlm.model.lm.checkpoint import Checkpoint
from colmlm.model.text.tokens import FactTokenizer


class Masking(StrEnum):
    """Which tokens of an answer are scored; `none`: all, by a model that looks nothing up."""

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
    """Of each answer the summed loss in nats of its scored tokens with the end of the text, and how many they are.

    The answers follow ``Question: ...`` and ``Answer:`` on the next line, which is read once; their facts are where
    lookups are made.
    """
    tokenizer = checkpoint.tokenizer
    prompt, cache = Reader(checkpoint), checkpoint.lm.inference.cache(1)
    prompt.queue([tokenizer.end_of_text, *tokenizer.encode(f"Question: {question}\nAnswer:")], GIVEN)
    read([(prompt, prompt.at_once())], cache)
    cache.keep([0] * len(answers))
    readers = [
        Reader(checkpoint, without_markup=masking is Masking.none, after=prompt) for _, masking in answers
    ]
    courses = [
        _course(reader, _answer(answer, tokenizer), masking, find)
        for reader, (answer, masking) in zip(readers, answers, strict=True)
    ]
    read(list(zip(readers, courses, strict=True)), cache)
    return [(reader.losses[SAID], reader.counts[SAID]) for reader in readers]


def _course(reader: Reader, text: MarkedText, masking: Masking, find: Find | None) -> Course:
    if masking is not Masking.none and find is not None:
        return reader.with_lookups(text, _splice(reader.tokenizer, masking, find))
    for outside, span in zip(text.outside, text.spans, strict=False):
        reader.queue([*outside, *span], SAID)
    reader.queue(text.outside[-1], SAID)
    return reader.at_once()


def _answer(answer: AnnotatedDocument, tokenizer: FactTokenizer) -> MarkedText:
    """The answer as it follows the prompt: after a space, and without the token that begins a text."""
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
