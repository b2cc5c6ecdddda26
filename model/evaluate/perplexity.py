"""Perplexity of texts with marked facts: static, dynamic and their normalised forms (section 4.2, appendix A.5).

Scored are the tokens outside of lookups, M-bar in the paper. *Static* gives the model the spans that the text has,
*dynamic* what its own lookups find, and both leave the spans unscored. The normalised forms add the loss of the
opening ``<FACT>`` tokens: dynamic-normalised divides by the same tokens as dynamic, so that the truth lies between
the two; normalised is of the text's own spans and divides by all tokens of the text without markup.

The paper does not say what a lookup without a match does to the dynamic form. Two are measured: `nearest` splices
whatever is nearest, and *gated* does as the decoder does, takes the lookup back and says the span itself, so that
its tokens are scored as any others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from kb.corpus import AnnotatedDocument
from model.checkpoint import Checkpoint
from model.lm import unit
from model.tokens import Encoded, FactTokenizer

Find = Callable[
    [NDArray[np.float32]], str | None
]  # the value to splice for a [dim] unit query, None: no match

_GIVEN, _SAID, _APART = 0, 1, 2  # of a token's loss: not taken, summed, summed apart


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Sums over one text. Losses are in nats; `right` are lookups that found the very span."""

    loss: float = 0.0
    tokens: int = 0
    opening_loss: float = 0.0
    text_tokens: int = 0
    lookups: int = 0
    matched: int = 0
    right: int = 0


@dataclass(frozen=True, slots=True)
class _Text:
    """A document as the stretches between lookups (one more than there are spans), and the spans."""

    outside: list[list[int]]
    spans: list[list[int]]

    @classmethod
    def of(cls, encoded: Encoded, tokenizer: FactTokenizer, room: int) -> _Text:
        """As much of the sequence as `room` holds: whole lookups only."""
        ids = list(encoded.ids)
        outside: list[list[int]] = []
        spans: list[list[int]] = []
        at = 0
        for position in encoded.fact_positions:
            end = ids.index(tokenizer.fact_end, position)
            if end >= room:
                return cls([*outside, ids[at : min(position, room)]], spans)
            outside.append(ids[at:position])
            spans.append(ids[position + 1 : end])
            at = end + 1
        return cls([*outside, ids[at:room]], spans)

    @property
    def num_tokens(self) -> int:
        """Tokens of the text without markup and without the first, which nothing precedes."""
        return sum(map(len, self.outside)) + sum(map(len, self.spans)) - 1


@torch.inference_mode()
def static(checkpoint: Checkpoint, document: AnnotatedDocument, *, max_tokens: int = 1024) -> Tally:
    """The document with its own spans given, in one pass."""
    text = _text(checkpoint, document, max_tokens)
    reader = _Reader(checkpoint)
    opens, closes = checkpoint.tokenizer.fact, checkpoint.tokenizer.fact_end
    for outside, span in zip(text.outside, text.spans, strict=False):
        reader.queue(outside, _SAID)
        reader.queue([opens], _APART)
        reader.queue([*span, closes], _GIVEN)
    reader.queue(text.outside[-1], _SAID)
    reader.read()
    return reader.tally(text)


@torch.inference_mode()
def dynamic(
    checkpoint: Checkpoint, document: AnnotatedDocument, find: Find, *, max_tokens: int = 1024
) -> Tally:
    """The document with what `find` gives at each of its lookups in place of its own span."""
    text = _text(checkpoint, document, max_tokens)
    reader, tokenizer = _Reader(checkpoint), checkpoint.tokenizer
    matched = right = 0
    for outside, span in zip(text.outside, text.spans, strict=False):
        reader.queue(outside, _SAID)
        reader.queue([tokenizer.fact], _APART)
        value = find(reader.read())
        if value is None:
            reader.take_back()
            reader.queue(span, _SAID)
            continue
        said = tokenizer.decode(span)
        matched, right = matched + 1, right + (value == said.strip())
        spoken = f" {value}" if said.startswith(" ") else value
        reader.queue([*tokenizer.encode(spoken), tokenizer.fact_end], _GIVEN)
    reader.queue(text.outside[-1], _SAID)
    reader.read()
    return replace(reader.tally(text), matched=matched, right=right)


@torch.inference_mode()
def plain(
    checkpoint: Checkpoint, marked: FactTokenizer, document: AnnotatedDocument, *, max_tokens: int = 1024
) -> tuple[Tally, Tally]:
    """A model without lookups on the text without markup: over all its tokens, and over those that Co-LMLM is
    scored on.

    The same tokens, cut at the spans as `marked`, the other model's tokenizer, cuts them. Leaving out fact tokens
    makes a text easier, so the second is the fair comparison.
    """
    text = _Text.of(marked.document(document), marked, max_tokens)
    reader = _Reader(checkpoint, without_markup=True)
    for outside, span in zip(text.outside, text.spans, strict=False):
        reader.queue(outside, _SAID)
        reader.queue(span, _APART)
    reader.queue(text.outside[-1], _SAID)
    reader.read()
    found = reader.tally(text)
    every = Tally(loss=found.loss + found.opening_loss, tokens=text.num_tokens, text_tokens=text.num_tokens)
    return every, replace(found, opening_loss=0.0, lookups=0)


def _text(checkpoint: Checkpoint, document: AnnotatedDocument, max_tokens: int) -> _Text:
    room = min(max_tokens, checkpoint.lm.inference.context // 2)  # what is found may be longer than the spans
    return _Text.of(checkpoint.tokenizer.document(document), checkpoint.tokenizer, room)


class _Reader:
    """One sequence, read in as few passes as its lookups allow, and what its tokens cost."""

    def __init__(self, checkpoint: Checkpoint, *, without_markup: bool = False) -> None:
        self.without_markup = without_markup
        self.llama = checkpoint.lm.inference
        self.markup = checkpoint.tokenizer.added
        self.cache = self.llama.cache(1)
        self.queued: list[tuple[int, int]] = []
        self.position = 0
        self.states: list[Tensor] = []  # [dim] of the last two tokens
        self.took_back = False
        self.losses = {_SAID: 0.0, _APART: 0.0}
        self.scored = 0

    def queue(self, ids: Sequence[int], kind: int) -> None:
        self.queued += [(token, kind) for token in ids]

    def read(self) -> NDArray[np.float32]:
        """Read what is queued. The last token's state as a [dim] unit query."""
        if self.queued:
            ids = torch.tensor([[token for token, _ in self.queued]])
            states_TD = self.llama.advance(ids, [self.position], self.cache)[0]
            self._score(states_TD)
            self.states = [*self.states[-1:], *states_TD[-2:]][-2:]
            self.position += len(self.queued)
            self.queued = []
        return unit(self.states[-1][None]).cpu().numpy()[0]

    def take_back(self) -> None:
        """Forget the token read last; the next one is not of the markup."""
        self.position -= 1
        self.states.pop()
        self.took_back = True

    def tally(self, text: _Text) -> Tally:
        return Tally(
            loss=self.losses[_SAID],
            tokens=self.scored,
            opening_loss=self.losses[_APART],
            text_tokens=text.num_tokens,
            lookups=len(text.spans),
        )

    def _score(self, states_TD: Tensor) -> None:
        """Add the losses of what is queued: each token's comes from the state before it, and the first has none."""
        before_TD = torch.cat([*(state[None] for state in self.states[-1:]), states_TD[:-1]])
        queued = self.queued[len(self.queued) - len(before_TD) :]
        rows = [row for row, (_, kind) in enumerate(queued) if kind != _GIVEN]
        if not rows:
            return
        logits_NV = self.llama.logits(before_TD[rows])
        if self.without_markup:
            logits_NV[:, self.markup] = -math.inf
        elif self.took_back:
            logits_NV[0, self.markup] = -math.inf
        self.took_back = False
        targets_N = torch.tensor([queued[row][0] for row in rows], device=logits_NV.device)
        for row, loss in zip(
            rows, cross_entropy(logits_NV, targets_N, reduction="none").tolist(), strict=True
        ):
            self.losses[queued[row][1]] += loss
            self.scored += queued[row][1] == _SAID
