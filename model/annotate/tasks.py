"""The annotators as tasks of the training loop: the trained module, its examples, and how it reads texts."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from colmlm.kb.corpus.format import AnnotatedDocument
from colmlm.model.annotate.annotators import (
    NUMBERS,
    GeneratedQuestion,
    Prefix,
    mark,
    number,
    prefixes,
    suffix,
    target,
)
from colmlm.model.annotate.bio import OUTSIDE, tags_of
from colmlm.model.annotate.checkpoint import QUESTIONS, SPANS
from colmlm.model.annotate.config import QuestionConfig, SpanConfig
from colmlm.model.annotate.tuner import TunerTask
from colmlm.model.text.markup import STANDARD
from colmlm.model.text.tokens import FactTokenizer, WordTokenizer, padded, windows
from colmlm.model.training.task import StepContext

# Training of the span annotator: BIO tags of words, with a lower weight for words that may be unmarked facts.
#
# A set of questions such as SQuAD's marks the few spans of a paragraph that somebody asked about. A word
# outside them may be a fact all the same, so it has a lower weight there (`SpanConfig.outside_weight`); in
# documents whose facts are all marked the weight is 1. If the asked-about facts are a random part of all,
# lowering that weight shifts the odds of "outside" by a constant, so it only shifts the threshold, which can
# be set to undo it.

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
    """Yield every window of every document, with each word in the one window where it will be read."""
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
    """Sum the weighted cross-entropies of the batch's words."""
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


# Training of the question generator on one sequence per document: its prefix, then every question after its
# suffix.
#
# The attention mask lets each question see what it sees when it is generated: the prefix up to its stop, its
# own suffix and its own words so far, but no other question. So one pass over a document trains all its
# questions.


@dataclass(frozen=True, slots=True)
class QuestionSequence:
    """A prefix with its questions after it, as one sequence.

    For token t: `segments[t]` is 0 in the prefix and n in question n; `stops[t]` is the number of prefix tokens it
    sees; `positions[t]` is its position if its question were alone; `learnt[t]` says whether the loss counts it.
    """

    ids: list[int]
    segments: list[int]
    stops: list[int]
    positions: list[int]
    learnt: list[bool]

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def num_learnt(self) -> int:
        return sum(self.learnt)


def examples(
    tokenizer: FactTokenizer, documents: Sequence[AnnotatedDocument], config: QuestionConfig
) -> Iterator[QuestionSequence]:
    """Yield every window of every document that has a question with its answer.

    Numbering begins at a random number, since a short document would otherwise never show a high one.
    """
    for ordinal, document in enumerate(documents):
        first = random.Random(f"{config.seed}/{ordinal}").randrange(1, NUMBERS + 1)
        spans = [(span.start, span.end) for span in document.facts]
        marked = mark(tokenizer, document.text, spans, document.title, first=first)
        for prefix in prefixes(marked, config.max_length):
            asked = _question_sequence(tokenizer, document, prefix, first)
            if asked.num_learnt:
                yield asked


def _question_sequence(
    tokenizer: FactTokenizer, document: AnnotatedDocument, prefix: Prefix, first: int
) -> QuestionSequence:
    length = len(prefix.ids)
    asked = QuestionSequence(
        list(prefix.ids), [0] * length, [length] * length, list(range(length)), [False] * length
    )
    for segment, (index, stop) in enumerate(zip(prefix.spans, prefix.stops, strict=True), start=1):
        span = document.facts[index]
        if not span.question:
            continue
        lead = suffix(tokenizer, span.value, number(index, first))
        written = target(tokenizer, GeneratedQuestion(span.question, span.answer or span.value))
        count = len(lead) + len(written)
        asked.ids.extend([*lead, *written])
        asked.segments.extend([segment] * count)
        asked.stops.extend([stop] * count)
        asked.positions.extend(range(stop, stop + count))
        asked.learnt.extend([False] * len(lead) + [True] * len(written))
    return asked


def visible(asked: QuestionSequence, length: int) -> Tensor:
    """Make the [T, T] mask, True where token i may look at token j; indices from the sequence's end on are padding.

    A padding row looks at itself, since a row that sees nothing has no softmax.
    """
    segments_T = torch.full((length,), -1)
    stops_T = torch.zeros(length, dtype=torch.long)
    segments_T[: len(asked)] = torch.tensor(asked.segments)
    stops_T[: len(asked)] = torch.tensor(asked.stops)
    at_T = torch.arange(length)
    own_TT = segments_T[:, None] == segments_T[None, :]
    prefix_TT = (segments_T[None, :] == 0) & (at_T[None, :] < stops_T[:, None])
    return (own_TT | prefix_TT) & (at_T[None, :] <= at_T[:, None])


class QuestionNet(nn.Module):
    """A causal language model, bare or under an adapter, that computes logits only for the learnt tokens."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, ids_BT: Tensor, positions_BT: Tensor, visible_B1TT: Tensor, learnt_BT: Tensor
    ) -> Tensor:
        """Give [N, V] logits of the N learnt tokens, each read at the token before it, in float32."""
        causal = self.model.get_base_model() if hasattr(self.model, "get_base_model") else self.model
        states_BTD = causal.model(
            input_ids=ids_BT, position_ids=positions_BT, attention_mask=visible_B1TT, use_cache=False
        ).last_hidden_state
        # The token before a learnt one is in the same question, since a suffix is never empty.
        return causal.lm_head(states_BTD[:, :-1][learnt_BT[:, 1:]]).float()


def question_loss(module: Any, batch: Sequence[QuestionSequence], device: torch.device) -> Tensor:
    """Sum the cross-entropies of the batch's questions and answers."""
    ids_BT, _ = padded([asked.ids for asked in batch], 0)
    positions_BT, _ = padded([asked.positions for asked in batch], 0)
    learnt_BT = padded([[int(x) for x in asked.learnt] for asked in batch], 0)[0].bool()
    visible_B1TT = torch.stack([visible(asked, ids_BT.shape[1]) for asked in batch])[:, None]
    logits_NV = module(
        ids_BT.to(device), positions_BT.to(device), visible_B1TT.to(device), learnt_BT.to(device)
    )
    return F.cross_entropy(logits_NV, ids_BT[learnt_BT].to(device), reduction="sum")


DEFAULT_THRESHOLD = 0.5


class SpanTask(TunerTask[TaggedWindow]):
    """Train the fact-span annotator (section 3.3, appendix A.2)."""

    role = SPANS
    config: SpanConfig

    def __init__(self, config: SpanConfig, corpora: Sequence[Annotated], cache: Path, name: str) -> None:
        super().__init__(config, cache, name)
        self.module = self.model
        tokenizer = WordTokenizer.load(self.source / "tokenizer.json")
        self.pad = tokenizer.pad
        documents = sum(len(corpus.documents) for corpus in corpora)
        self._take(list(tagged_windows(tokenizer, corpora, config)), documents)

    def size(self, micro_batch: Sequence[TaggedWindow]) -> int:
        return sum(window.num_words for window in micro_batch)

    def loss(
        self, micro_batch: Sequence[TaggedWindow], context: StepContext
    ) -> tuple[Tensor, Mapping[str, float | Tensor]]:
        return tag_loss(context.module, micro_batch, self.pad, context.device) / max(1, context.total), {}

    def reading(self) -> dict[str, Any]:
        return {
            "window": self.config.max_length,
            "overlap": self.config.overlap,
            "threshold": DEFAULT_THRESHOLD,
        }


class QuestionTask(TunerTask[QuestionSequence]):
    """Train the question generator (section 3.3, appendix A.2)."""

    role = QUESTIONS
    prefix = "model."
    config: QuestionConfig

    def __init__(
        self,
        config: QuestionConfig,
        documents: Sequence[AnnotatedDocument],
        cache: Path,
        name: str,
        start: Path | None = None,
    ) -> None:
        super().__init__(config, cache, name, start)
        self.module = QuestionNet(self.model)
        tokenizer = FactTokenizer.load(self.source / "tokenizer.json", markup=STANDARD)
        self._take(list(examples(tokenizer, documents, config)), len(documents))

    def size(self, micro_batch: Sequence[QuestionSequence]) -> int:
        return sum(asked.num_learnt for asked in micro_batch)

    def loss(
        self, micro_batch: Sequence[QuestionSequence], context: StepContext
    ) -> tuple[Tensor, Mapping[str, float | Tensor]]:
        return question_loss(context.module, micro_batch, context.device) / max(1, context.total), {}

    def reading(self) -> dict[str, Any]:
        return {"window": self.config.max_length, "max_new_tokens": self.config.max_new_tokens}
