"""Keys of facts and questions: the hidden states at ``<FACT>`` and ``<FACT-q>`` (section 3.2, building the index)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from colmlm.kb.corpus.format import AnnotatedDocument
from colmlm.model.lm.checkpoint import Checkpoint
from colmlm.model.lm.config import CheckpointError
from colmlm.model.lm.language_model import unit
from colmlm.model.text.tokens import Encoded, padded_batches


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of a document that fits the context, and the facts whose keys are read from it."""

    document: int
    encoded: Encoded
    facts: tuple[int, ...]
    positions: tuple[int, ...]


class KeyEncoder:
    """Makes keys with one checkpoint. One pass over a document gives the keys of all its facts.

    `batch_tokens` bounds the padded tokens of a forward; sequences of similar length share one. A document longer than
    `window` tokens is read in windows that overlap by half; each fact is read in the first window that reaches it,
    which leaves it at least half a window of context. Raises `CheckpointError` for a model of a method that asks in
    words, or not at all.
    """

    def __init__(self, checkpoint: Checkpoint, *, batch_tokens: int = 4096, window: int = 2048) -> None:
        markup = checkpoint.tokenizer.markup
        if markup.key is None:
            raise CheckpointError(
                f"{checkpoint.config.name}: a model of method {markup.method} makes no keys; those of the methods that "
                "ask in words come from `colmlm keysets create --encoder minilm`"
            )
        self.checkpoint = checkpoint
        self.batch_tokens = batch_tokens
        self.window = min(window, int(checkpoint.lm.causal.config.max_position_embeddings))

    @property
    def checkpoint_id(self) -> str:
        return self.checkpoint.checkpoint_id

    @property
    def dim(self) -> int:
        return self.checkpoint.lm.dim

    def encode_documents(self, documents: Sequence[AnnotatedDocument]) -> list[NDArray[np.float32]]:
        """Gives for each document a [num_facts, dim] array of unit rows, in the order of `document.facts`."""
        windows = [w for number, d in enumerate(documents) if d.facts for w in self._windows(number, d)]
        keys = [np.zeros((len(d.facts), self.dim), dtype=np.float32) for d in documents]
        at_markers = self._at_markers([w.encoded for w in windows], [w.positions for w in windows])
        for window, rows in zip(windows, at_markers, strict=True):
            keys[window.document][list(window.facts)] = rows
        return keys

    def encode_questions(self, questions: Sequence[str]) -> NDArray[np.float32]:
        """Gives [n, dim] unit rows, read at ``<FACT-q>`` after each question."""
        encoded = [self.checkpoint.tokenizer.question(question) for question in questions]
        rows = self._at_markers(encoded, [e.fact_positions for e in encoded])
        return np.concatenate(rows) if rows else np.zeros((0, self.dim), dtype=np.float32)

    def encode_contexts(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Gives [n, dim] unit rows, read at a ``<FACT>`` after each text: the queries that a decoder would send there.

        Of a text longer than the window the end is kept.
        """
        encoded = [self.checkpoint.tokenizer.context(text, self.window) for text in texts]
        rows = self._at_markers(encoded, [e.fact_positions for e in encoded])
        return np.concatenate(rows) if rows else np.zeros((0, self.dim), dtype=np.float32)

    def batches(self, documents: Sequence[AnnotatedDocument]) -> tuple[int, list[Tensor]]:
        """Gives what `encode_documents` feeds the model: the number of tokens, and the padded batches [B, T]."""
        sequences = [
            w.encoded for number, d in enumerate(documents) if d.facts for w in self._windows(number, d)
        ]
        padded = padded_batches(sequences, max_tokens=self.batch_tokens)
        return sum(map(len, sequences)), [ids_BT for _, ids_BT in padded]

    @torch.inference_mode()
    def _at_markers(
        self, sequences: Sequence[Encoded], positions: Sequence[tuple[int, ...]]
    ) -> list[NDArray[np.float32]]:
        states = self.checkpoint.lm.forward_sequences(sequences, max_tokens=self.batch_tokens, keep=positions)
        return [unit(state).cpu().numpy() for state in states]

    def _windows(self, number: int, document: AnnotatedDocument) -> list[Window]:
        encoded = self.checkpoint.tokenizer.document(document, close=False)
        # Tokens after the last marker cannot change a key, since attention is causal.
        encoded = _cut(encoded, 0, encoded.fact_positions[-1] + 1)
        if len(encoded) <= self.window:
            return [Window(number, encoded, tuple(range(len(document.facts))), encoded.fact_positions)]
        windows: list[Window] = []
        half = self.window // 2
        chosen: dict[int, list[int]] = {}
        for fact, position in enumerate(encoded.fact_positions):
            chosen.setdefault(max(0, position - self.window + half) // half * half, []).append(fact)
        for start, facts in chosen.items():
            positions = tuple(encoded.fact_positions[f] - start for f in facts)
            windows.append(Window(number, _cut(encoded, start, start + self.window), tuple(facts), positions))
        return windows


def _cut(encoded: Encoded, start: int, end: int) -> Encoded:
    positions = tuple(p - start for p in encoded.fact_positions if start <= p < end)
    return Encoded(encoded.ids[start:end], positions, encoded.masked[start:end])
