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

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import exp
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from colmlm.kb.corpus.format import AnnotatedDocument
from colmlm.model.evaluate.intervals import bootstrap
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


# Perplexities over many documents, of the sums that `model.evaluate.perplexity` makes of each.

Sums = tuple[NDArray[np.float64], NDArray[np.float64]]  # for each document: losses in nats, and tokens


@dataclass(slots=True)
class DocumentSums:
    """The sums of each document: for the model with lookups in three readings and in each other index, and for each
    baseline in two. Without `gated` that reading is left out.
    """

    static: list[TextTally]
    nearest: list[TextTally]
    gated: list[TextTally]
    beside: dict[str, tuple[list[TextTally], list[TextTally]]]
    indexes: dict[str, list[TextTally]]

    def sums(self) -> dict[str, Sums]:
        """Gives losses and tokens of every reported figure, by its name."""
        found = {
            "static": _outside(self.static),
            "static_without_markup": _without_markup(self.static),
            "normalised": _with_openings(self.static, by_text=True),
            "dynamic": _outside(self.nearest),
            "dynamic_without_markup": _without_markup(self.nearest),
            "dynamic_normalised": _with_openings(self.nearest),
        }
        if self.gated:
            found["dynamic_gated"] = _outside(self.gated)
            found["dynamic_gated_normalised"] = _with_openings(self.gated)
        for name, tallies in self.indexes.items():
            found[f"dynamic, {name}"] = _outside(tallies)
        for name, (every, same) in self.beside.items():
            found[f"{name}, all tokens"] = _outside(every)
            found[f"{name}, same tokens"] = _outside(same)
        return found


def _outside(tallies: Sequence[TextTally]) -> Sums:
    return np.array([t.loss for t in tallies]), np.array([t.tokens for t in tallies], dtype=np.float64)


def _without_markup(tallies: Sequence[TextTally]) -> Sums:
    losses_N, tokens_N = _outside(tallies)
    return losses_N - np.array([t.markup_loss for t in tallies]), tokens_N


def openings(tallies: Sequence[TextTally]) -> dict[str, float]:
    """Gives the probability of ``<FACT>`` where a span follows, and that of markup elsewhere, as geometric means."""
    spans, tokens = sum(t.lookups for t in tallies), sum(t.tokens for t in tallies)
    opening, markup = sum(t.opening_loss for t in tallies), sum(t.markup_loss for t in tallies)
    return {"at_spans": exp(-opening / max(spans, 1)), "elsewhere": 1 - exp(-markup / max(tokens, 1))}


def _with_openings(tallies: Sequence[TextTally], *, by_text: bool = False) -> Sums:
    losses_N = np.array([t.loss + t.opening_loss for t in tallies])
    tokens_N = np.array([t.text_tokens if by_text else t.tokens for t in tallies], dtype=np.float64)
    return losses_N, tokens_N


def perplexities(sums: dict[str, Sums], documents: int) -> dict[str, dict[str, Any]]:
    """Gives perplexities over all tokens together, so that long documents weigh more, with intervals over documents."""

    def measure(draw: Callable[[int], NDArray[np.int64]]) -> dict[str, float]:
        rows = draw(documents)
        return {name: _perplexity(losses[rows], tokens[rows]) for name, (losses, tokens) in sums.items()}

    intervals = bootstrap(measure)
    return {
        name: {
            "perplexity": _perplexity(losses, tokens),
            "low": intervals[name][0],
            "high": intervals[name][1],
            "tokens": int(tokens.sum()),
        }
        for name, (losses, tokens) in sums.items()
    }


def _perplexity(losses: NDArray[np.float64], tokens: NDArray[np.float64]) -> float:
    return float(np.exp(losses.sum() / tokens.sum()))
