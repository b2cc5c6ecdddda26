"""Perplexity of texts with marked facts: static, dynamic and their normalised forms (section 4.2, appendix A.5).

The tokens outside of lookups, M-bar in the paper, are scored. *Static* gives the model the text's own spans, *dynamic*
the values that its own lookups find; both leave the spans unscored. The normalised forms add the loss of the opening
``<FACT>`` tokens: dynamic-normalised divides by the same tokens as dynamic, so that the true value lies between the
two; normalised uses the text's own spans and divides by all tokens of the text without markup.

The paper does not say how a lookup without a match counts in the dynamic form. Two readings are measured: `nearest`
splices the nearest fact in any case; *gated* takes the lookup back as the decoder does and lets the model say the span
itself, so that its tokens are scored as any others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from colmlm.kb.corpus.format import AnnotatedDocument
from colmlm.model.evaluate.reader import APART, GIVEN, SAID, Find, MarkedText, Query, SequenceReader, read
from colmlm.model.lm.checkpoint import Checkpoint
from colmlm.model.text.tokens import FactTokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class TextTally:
    """Sums over one text. Losses are in nats; `right` counts the lookups that found exactly the span's value.

    `markup_loss` is the part of `loss` that is there because the markup's tokens have some of the probability.
    """

    loss: float = 0.0
    tokens: int = 0
    opening_loss: float = 0.0
    markup_loss: float = 0.0
    text_tokens: int = 0
    lookups: int = 0
    matched: int = 0
    right: int = 0


@torch.inference_mode()
def static(checkpoint: Checkpoint, document: AnnotatedDocument, *, max_tokens: int = 1024) -> TextTally:
    """Scores the document with its own spans given, in one pass."""
    text = _text(checkpoint, document, max_tokens)
    reader, tokenizer = SequenceReader(checkpoint), checkpoint.tokenizer
    for outside, span in zip(text.outside, text.spans, strict=False):
        reader.queue(outside, SAID)
        reader.queue([tokenizer.fact], APART)
        reader.queue([*span, tokenizer.fact_end], GIVEN)
    reader.queue(text.outside[-1], SAID)
    read([(reader, reader.at_once())], checkpoint.lm.inference.cache(1))
    return _tally(reader, text)


@torch.inference_mode()
def dynamic(
    checkpoint: Checkpoint, document: AnnotatedDocument, finds: Sequence[Find], *, max_tokens: int = 1024
) -> list[TextTally]:
    """Scores the document once per `find`, with the values that it gives in place of the document's spans."""
    text = _text(checkpoint, document, max_tokens)
    splices = [_Splices(checkpoint.tokenizer, find) for find in finds]
    readers = [SequenceReader(checkpoint) for _ in finds]
    courses = [one.with_lookups(text, splice) for one, splice in zip(readers, splices, strict=True)]
    read(list(zip(readers, courses, strict=True)), checkpoint.lm.inference.cache(len(finds)))
    return [
        replace(_tally(reader, text), matched=splice.matched, right=splice.right)
        for reader, splice in zip(readers, splices, strict=True)
    ]


@dataclass(slots=True)
class _Splices:
    """Encodes the values that `find` gives; counts the lookups with a match, and those that found exactly the span."""

    tokenizer: FactTokenizer
    find: Find
    matched: int = 0
    right: int = 0

    def __call__(self, query: Query, span: Sequence[int]) -> list[int] | None:
        if (value := self.find(query)) is None:
            return None
        said = self.tokenizer.decode(span)
        self.matched, self.right = self.matched + 1, self.right + (value == said.strip())
        return self.tokenizer.encode(f" {value}" if said.startswith(" ") else value)


@torch.inference_mode()
def plain(
    checkpoint: Checkpoint, marked: FactTokenizer, document: AnnotatedDocument, *, max_tokens: int = 1024
) -> tuple[TextTally, TextTally]:
    """Scores a model without lookups on the text without markup: all its tokens, and those that Co-LMLM is scored on.

    Both use the same tokens, cut at the spans as `marked`, the other model's tokenizer, cuts them. Leaving out fact
    tokens makes a text easier, so the second is the fair comparison.
    """
    text = MarkedText.of(marked.document(document), marked, max_tokens)
    reader = SequenceReader(checkpoint, without_markup=True)
    for outside, span in zip(text.outside, text.spans, strict=False):
        reader.queue(outside, SAID)
        reader.queue(span, APART)
    reader.queue(text.outside[-1], SAID)
    read([(reader, reader.at_once())], checkpoint.lm.inference.cache(1))
    found = _tally(reader, text)
    every = TextTally(
        loss=found.loss + found.opening_loss, tokens=text.num_tokens, text_tokens=text.num_tokens
    )
    return every, replace(found, opening_loss=0.0, lookups=0)


def _text(checkpoint: Checkpoint, document: AnnotatedDocument, max_tokens: int) -> MarkedText:
    room = min(max_tokens, checkpoint.lm.inference.context // 2)  # found values may be longer than the spans
    return MarkedText.of(checkpoint.tokenizer.document(document), checkpoint.tokenizer, room)


def _tally(reader: SequenceReader, text: MarkedText) -> TextTally:
    return TextTally(
        loss=reader.losses[SAID],
        tokens=reader.counts[SAID],
        opening_loss=reader.losses[APART],
        markup_loss=reader.markup_loss,
        text_tokens=text.num_tokens,
        lookups=len(text.spans),
    )
