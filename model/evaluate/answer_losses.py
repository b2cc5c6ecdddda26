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

from kb.corpus import AnnotatedDocument
from model.checkpoint import Checkpoint
from model.evaluate.reader import GIVEN, SAID, Find, MarkedText, Query, Reader, Splice
from model.tokens import FactTokenizer


class Masking(StrEnum):
    """Which tokens of an answer are scored; `none`: all, by a model that looks nothing up."""

    none = "none"
    masked = "masked"
    spoken = "spoken"


class Asked:
    """A question, read once for all its answers: ``Question: ...``, and ``Answer:`` on the next line."""

    @torch.inference_mode()
    def __init__(self, checkpoint: Checkpoint, question: str) -> None:
        self.checkpoint, tokenizer = checkpoint, checkpoint.tokenizer
        self.prompt = Reader(checkpoint)
        prompt = tokenizer.encode(f"Question: {question}\nAnswer:")
        self.prompt.queue([tokenizer.end_of_text, *prompt], GIVEN)
        self.prompt.read()

    @torch.inference_mode()
    def loss(
        self, answer: AnnotatedDocument, masking: Masking, find: Find | None = None
    ) -> tuple[float, int]:
        """The summed loss in nats of an answer's scored tokens with the end of the text, and how many they are.

        Its facts are where lookups are made.
        """
        tokenizer = self.checkpoint.tokenizer
        reader = Reader(self.checkpoint, without_markup=masking is Masking.none, after=self.prompt)
        text = _answer(answer, tokenizer)
        if masking is Masking.none or find is None:
            for outside, span in zip(text.outside, text.spans, strict=False):
                reader.queue([*outside, *span], SAID)
            reader.queue(text.outside[-1], SAID)
            reader.read()
        else:
            reader.read_all(text, _splice(tokenizer, masking, find))
        return reader.losses[SAID], reader.counts[SAID]


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
