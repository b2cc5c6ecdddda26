"""Training of the span annotator: BIO tags of words, with a lower weight for words that may be unmarked facts.

A set of questions such as SQuAD's marks the few spans of a paragraph that somebody asked about. A word outside them may
be a fact all the same, so it has a lower weight there (`SpanConfig.outside_weight`); in documents whose facts are all
marked the weight is 1. If the asked-about facts are a random part of all, lowering that weight shifts the odds of
"outside" by a constant, so it only shifts the threshold, which can be set to undo it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from colmlm.kb.corpus.format import AnnotatedDocument
from colmlm.model.annotate.bio import OUTSIDE, tags_of
from colmlm.model.annotate.config import SpanConfig
from colmlm.model.annotate.windows import WordTokenizer, windows
from colmlm.model.text.batches import padded

_NO_TAG = -100


@dataclass(frozen=True, slots=True)
class TaggedWindow:
    """A window of a document: its tokens, and the tag and weight of each (only words' first tokens have one)."""

    ids: list[int]
    tags: list[int]
    weights: list[float]

    @property
    def num_words(self) -> int:
        return sum(tag != _NO_TAG for tag in self.tags)


@dataclass(frozen=True, slots=True)
class Annotated:
    """Documents to learn from; `dense` if every fact of each is marked."""

    documents: Sequence[AnnotatedDocument]
    dense: bool


def tagged_windows(
    tokenizer: WordTokenizer, corpora: Sequence[Annotated], config: SpanConfig
) -> Iterator[TaggedWindow]:
    """Yields every window of every document, with each word in the one window where it will be read."""
    for corpus in corpora:
        outside = 1.0 if corpus.dense else config.outside_weight
        for document in corpus.documents:
            encoded = tokenizer.encode(document.text)
            tags = tags_of(encoded.words, [(span.start, span.end) for span in document.facts])
            for window in windows(encoded, config.max_length - 2, config.overlap):
                ids = tokenizer.framed(encoded.ids[window.start : window.end])
                placed, weights = [_NO_TAG] * len(ids), [0.0] * len(ids)
                for word in window.words:
                    at = encoded.first[word] - window.start + 1
                    placed[at] = tags[word]
                    weights[at] = outside if tags[word] == OUTSIDE else 1.0
                yield TaggedWindow(ids, placed, weights)


def tag_loss(module: Any, batch: Sequence[TaggedWindow], pad: int, device: torch.device) -> Tensor:
    """Sums the weighted cross-entropies of the batch's words."""
    ids_BT, mask_BT = padded([window.ids for window in batch], pad)
    logits_BT3 = module(input_ids=ids_BT.to(device), attention_mask=mask_BT.to(device)).logits
    tags_BT = torch.full(ids_BT.shape, _NO_TAG)
    weights_BT = torch.zeros(ids_BT.shape)
    for row, window in enumerate(batch):
        tags_BT[row, : len(window.ids)] = torch.tensor(window.tags)
        weights_BT[row, : len(window.ids)] = torch.tensor(window.weights)
    losses_N = F.cross_entropy(
        logits_BT3.float().flatten(0, 1), tags_BT.flatten().to(device), ignore_index=_NO_TAG, reduction="none"
    )
    return (losses_N * weights_BT.flatten().to(device)).sum()
