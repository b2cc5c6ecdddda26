"""The fact-span annotator: an encoder that tags words as beginning, inside or outside a fact (section 3.3).

Spans are offsets into the given text, so a value is always a stretch of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray

from colmlm.model.annotate.bio import Span, best_tags, spans_of
from colmlm.model.annotate.checkpoint import SPANS, Loaded, load
from colmlm.model.annotate.wholes import Wholes, whole_spans
from colmlm.model.annotate.windows import Words, WordTokenizer, WordWindow, windows
from colmlm.model.text.tokens import length_groups, padded


@dataclass(frozen=True, slots=True)
class Tagged:
    """A text's words and, for each, the log-probabilities of O, B and I: [num_words, 3]."""

    text: str
    words: list[Span]
    log_probs_N3: NDArray[np.float32]
    wholes: Wholes

    def spans(self, threshold: float) -> list[Span]:
        """Gives the spans at a threshold: sorted, without overlap, trimmed, and completed to wholes."""
        tagged = spans_of(self.text, self.words, best_tags(self.log_probs_N3, threshold))
        return whole_spans(self.text, tagged, self.wholes)


class SpanAnnotator:
    """Finds the facts of texts. `batch_tokens` bounds the padded tokens of a forward."""

    def __init__(self, loaded: Loaded, *, threshold: float | None = None, batch_tokens: int = 4096) -> None:
        reading = loaded.config.reading
        self.config, self.model, self.device = loaded.config, loaded.model, loaded.device
        self.tokenizer = WordTokenizer.load(loaded.tokenizer_file)
        self.threshold = reading["threshold"] if threshold is None else threshold
        self.window, self.overlap = (
            int(reading["window"]) - 2,
            int(reading["overlap"]),
        )  # without [CLS] and [SEP]
        self.batch_tokens = batch_tokens

    @classmethod
    def load(
        cls, path: Path, cache: Path | None = None, *, threshold: float | None = None, precision: str = "auto"
    ) -> Self:
        """Loads an annotator's directory. `cache` holds base models; `threshold` overrides the annotator's own.

        Raises `CheckpointError` and `BaseNotFound`.
        """
        return cls(load(path, SPANS, cache or Path(), precision=precision), threshold=threshold)

    def spans(self, texts: Sequence[str]) -> list[list[Span]]:
        """Finds the fact spans of each text, in code points: sorted, without overlap, never blank."""
        return [tagged.spans(self.threshold) for tagged in self.tag(texts)]

    @torch.inference_mode()
    def tag(self, texts: Sequence[str]) -> list[Tagged]:
        """Computes the tags' probabilities of every word, from which spans at any threshold follow."""
        encoded = [self.tokenizer.encode(text) for text in texts]
        tagged = [
            Tagged(text, e.words, np.zeros((len(e.words), 3), dtype=np.float32), Wholes(text))
            for text, e in zip(texts, encoded, strict=True)
        ]
        reads = [(i, w) for i, e in enumerate(encoded) for w in windows(e, self.window, self.overlap)]
        for group in self._groups([window for _, window in reads]):
            batch = [reads[i] for i in group]
            for (i, window), log_probs in zip(batch, self._forward(encoded, batch), strict=True):
                tagged[i].log_probs_N3[window.words.start : window.words.stop] = log_probs
        return tagged

    def _groups(self, reads: Sequence[WordWindow]) -> list[list[int]]:
        return length_groups([w.end - w.start + 2 for w in reads], max_tokens=self.batch_tokens)

    def _forward(
        self, encoded: Sequence[Words], batch: Sequence[tuple[int, WordWindow]]
    ) -> Iterator[NDArray[np.float32]]:
        """Yields for each window the log-probabilities of its words, read at each word's first token."""
        framed = [self.tokenizer.framed(encoded[i].ids[w.start : w.end]) for i, w in batch]
        ids_BT, mask_BT = padded(framed, self.tokenizer.pad)
        logits_BT3 = self.model(
            input_ids=ids_BT.to(self.device), attention_mask=mask_BT.to(self.device)
        ).logits
        log_probs_BT3 = logits_BT3.float().log_softmax(dim=-1).cpu()
        for row, (i, window) in enumerate(batch):
            at = [encoded[i].first[word] - window.start + 1 for word in window.words]
            yield log_probs_BT3[row, at].numpy()
