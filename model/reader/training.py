"""Training of a reader: cross-entropies of the answer's first and last token among those of the passage and "none"."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from colmlm.model.annotate.bio import Span
from colmlm.model.annotate.checkpoint import ANSWERS, AnnotatorConfig, Loaded
from colmlm.model.annotate.tuner import TunerTask
from colmlm.model.reader.config import ReaderConfig
from colmlm.model.reader.examples import ReaderExample, ReaderExamples
from colmlm.model.reader.reader import (
    ExtractiveReader,
    Joined,
    join_sequence,
    last_tokens,
    logits,
    pad_sequences,
    words_of,
)
from colmlm.model.text.tokens import Words, WordTokenizer
from colmlm.model.training.task import StepContext

WINDOW = 320


@dataclass(frozen=True, slots=True)
class ReadingExample(Joined):
    """A question with a passage as tokens, and the first and last token of its answer; both 0 for none."""

    start: int
    end: int

    @property
    def is_none(self) -> bool:
        return self.end == 0


def reading_examples(
    tokenizer: WordTokenizer, examples: Iterable[ReaderExample], longest: int
) -> Iterator[ReadingExample]:
    """Yield the examples as tokens; one whose answer has no word, or more tokens than are read, is left out."""
    for example in examples:
        text = tokenizer.encode(example.text)
        place = _place(text, example.answer, longest)
        if place is None:
            continue
        cut, answer = place
        sequence = join_sequence(
            tokenizer,
            tokenizer.encode(example.question),
            tokenizer.encode(example.title),
            text.ids[cut : cut + longest],
        )
        start, end = (sequence.text - cut + at for at in answer) if answer else (0, 0)
        yield ReadingExample(sequence.ids, sequence.second, sequence.text, start, end)


def _place(text: Words, answer: Span | None, longest: int) -> tuple[int, Span | None] | None:
    """Give the token from which a text is read, and the answer's first and last token; None if they do not fit."""
    if answer is None:
        return 0, None
    covered = words_of(text, answer)
    if covered is None:
        return None
    start, end = text.first[covered[0]], last_tokens(text)[covered[1]]
    if end - start >= longest:
        return None
    least, most = max(0, end + 1 - longest), min(start, max(0, len(text.ids) - longest))
    return min(max(start - longest // 3, least), most), (start, end)


def reading_loss(
    module: Any, batch: Sequence[ReadingExample], pad: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Sum the losses of the batch; give beside it how many of the examples' answers are the likeliest of all."""
    logits_BT2 = logits(module, pad_sequences(batch, pad), device)
    gold_B2 = torch.tensor([(example.start, example.end) for example in batch], device=device)
    loss = F.cross_entropy(logits_BT2, gold_B2, reduction="sum") / 2
    return loss, (logits_BT2.argmax(dim=1) == gold_B2).all(dim=1).sum()


class ReaderTask(TunerTask[ReadingExample]):
    """Train a reader."""

    role = ANSWERS
    config: ReaderConfig

    def __init__(
        self, config: ReaderConfig, drawn: ReaderExamples, cache: Path, name: str, start: Path | None = None
    ) -> None:
        super().__init__(config, cache, name, start)
        if config.lora_rank is None and config.freeze_embeddings:
            self.model.base_model.embeddings.requires_grad_(False)
        for layer in self.model.modules():
            if isinstance(layer, torch.nn.Dropout):
                layer.p = config.dropout
        self.module = self.model
        tokenizer = WordTokenizer.load(self.source / "tokenizer.json")
        self.pad = tokenizer.pad
        examples = (example for number in range(config.rounds) for example in drawn.round(number))
        self._take(list(reading_examples(tokenizer, examples, config.max_length)), len(drawn.documents))

    def size(self, micro_batch: Sequence[ReadingExample]) -> int:
        return len(micro_batch)

    def loss(
        self, micro_batch: Sequence[ReadingExample], context: StepContext
    ) -> tuple[Tensor, Mapping[str, float | Tensor]]:
        loss, right = reading_loss(context.module, micro_batch, self.pad, context.device)
        total = max(1, context.total)
        return loss / total, {"right": right / total}

    def reading(self) -> dict[str, Any]:
        if self.config.first is None:
            return {"window": WINDOW}
        return {
            "window": WINDOW,
            "precision": "auto",
            "first": self.config.first,
            "read_on": self.config.read_on,
        }

    @contextmanager
    def reader(self) -> Iterator[ExtractiveReader]:
        """Give a reader with the weights as they are now; training goes on when the block is left."""
        config = AnnotatorConfig(
            name=self.name, role=self.role, kind="adapter", base=self.config.base, reading=self.reading()
        )
        device = next(self.model.parameters()).device
        self.model.eval()
        yield ExtractiveReader(Loaded(config, self.model, self.source / "tokenizer.json", device))
        self.model.train()
