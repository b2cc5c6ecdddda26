"""Vectors of facts, questions and sentences, by a decoder's states or by all-MiniLM-L6-v2.

A decoder's keys are its hidden states at ``<FACT>`` and ``<FACT-q>`` (section 3.2, building the index).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from transformers import AutoModel
from transformers.utils import logging as transformers_logging

from colmlm.kb.corpus.format import AnnotatedDocument, FactSpan
from colmlm.kb.texts.sentences import sentence_around, sentence_ends
from colmlm.model.lm.checkpoint import WEIGHTS, Checkpoint, compute_device
from colmlm.model.lm.config import MINILM, CheckpointError, file_digest
from colmlm.model.lm.language_model import unit
from colmlm.model.text.tokens import EncodedText, WordTokenizer, length_batches


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of a document that fits the context, and the facts whose keys are read from it."""

    document: int
    encoded: EncodedText
    facts: tuple[int, ...]
    positions: tuple[int, ...]


class KeyEncoder:
    """Make keys with one checkpoint. One pass over a document gives the keys of all its facts.

    `batch_tokens` bounds the padded tokens of a forward (None: what suits the device); sequences of similar length
    share one. A document longer than `window` tokens is read in windows that overlap by half; each fact is read in the
    first window that reaches it, which leaves it at least half a window of context. By default a window is as long as
    the sequences of the training, and 2,048 tokens at least. Raises `CheckpointError` for a model of a method that asks
    in words, or not at all.
    """

    def __init__(
        self, checkpoint: Checkpoint, *, batch_tokens: int | None = None, window: int | None = None
    ) -> None:
        markup = checkpoint.tokenizer.markup
        if markup.key is None:
            raise CheckpointError(
                f"{checkpoint.config.name}: a model of method {markup.method} makes no keys; those of the methods that "
                "ask in words come from `colmlm keysets create --encoder minilm`"
            )
        self.checkpoint = checkpoint
        self.batch_tokens = batch_tokens
        window = window or max(2048, checkpoint.config.trained_length)
        self.window = min(window, int(checkpoint.lm.causal.config.max_position_embeddings))

    @property
    def checkpoint_id(self) -> str:
        return self.checkpoint.checkpoint_id

    @property
    def dim(self) -> int:
        return self.checkpoint.lm.dim

    def encode_documents(self, documents: Sequence[AnnotatedDocument]) -> list[NDArray[np.float32]]:
        """Give for each document a [num_facts, dim] array of unit rows, in the order of `document.facts`."""
        windows = self._windows_of(documents)
        keys = [np.zeros((len(d.facts), self.dim), dtype=np.float32) for d in documents]
        rows_MD = self._at_markers([w.encoded for w in windows], [w.positions for w in windows])
        at = 0
        for window in windows:
            keys[window.document][list(window.facts)] = rows_MD[at : at + len(window.facts)]
            at += len(window.facts)
        return keys

    def encode_questions(self, questions: Sequence[str]) -> NDArray[np.float32]:
        """Give [n, dim] unit rows, read at ``<FACT-q>`` after each question."""
        encoded = [self.checkpoint.tokenizer.question(question) for question in questions]
        return self._at_markers(encoded, [e.fact_positions for e in encoded])

    def encode_contexts(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Give [n, dim] unit rows, read at a ``<FACT>`` after each text: the queries that a decoder would send there.

        Of a text longer than the window the end is kept.
        """
        encoded = [self.checkpoint.tokenizer.context(text, self.window) for text in texts]
        return self._at_markers(encoded, [e.fact_positions for e in encoded])

    @torch.inference_mode()
    def _at_markers(
        self, sequences: Sequence[EncodedText], positions: Sequence[tuple[int, ...]]
    ) -> NDArray[np.float32]:
        """Give the states at these token positions as unit rows [M, dim] in host memory, one sequence after another."""
        states_MD = self.checkpoint.lm.states_at(sequences, positions, max_tokens=self.batch_tokens)
        rows_MD: NDArray[np.float32] = unit(states_MD).cpu().numpy()
        return rows_MD

    def _windows_of(self, documents: Sequence[AnnotatedDocument]) -> list[Window]:
        """Give the windows of the documents that have facts; what follows the last fact of one is not encoded."""
        numbers = [number for number, document in enumerate(documents) if document.facts]
        cut = [replace(one, text=one.text[: one.facts[-1].end]) for one in (documents[n] for n in numbers)]
        encoded = self.checkpoint.tokenizer.documents(cut, close=False)
        return [w for n, one in zip(numbers, encoded, strict=True) for w in self._windows(n, one)]

    def _windows(self, number: int, encoded: EncodedText) -> list[Window]:
        # Tokens after the last marker cannot change a key, since attention is causal.
        encoded = _cut_sequence(encoded, 0, encoded.fact_positions[-1] + 1)
        if len(encoded) <= self.window:
            return [
                Window(number, encoded, tuple(range(len(encoded.fact_positions))), encoded.fact_positions)
            ]
        windows: list[Window] = []
        half = self.window // 2
        chosen: dict[int, list[int]] = {}
        for fact, position in enumerate(encoded.fact_positions):
            chosen.setdefault(max(0, position - self.window + half) // half * half, []).append(fact)
        for start, facts in chosen.items():
            positions = tuple(encoded.fact_positions[f] - start for f in facts)
            windows.append(
                Window(number, _cut_sequence(encoded, start, start + self.window), tuple(facts), positions)
            )
        return windows


def _cut_sequence(encoded: EncodedText, start: int, end: int) -> EncodedText:
    positions = tuple(p - start for p in encoded.fact_positions if start <= p < end)
    return EncodedText(encoded.ids[start:end], positions, encoded.masked[start:end])


# Sentence encoders. One makes keys and queries in place of the decoder's states, for LMLM-Asker and Rel-LMLM.
#
# The queries of these methods are words (a question, or an entity and a relation), so their keys are sentence
# vectors of the same kind of words. The paper uses jina-embeddings-v5-text-nano cut to 512 dimensions (appendix A,
# retrieval indexes); this project uses all-MiniLM-L6-v2, which comes as a wheel.

KEYS = ("question", "sentence")
MAX_TOKENS = 256  # the length that the model was trained on; of a longer text the beginning is read

Floats = NDArray[np.float32]


def sentence_of(text: str, span: FactSpan) -> str:
    """Give the sentence (or sentences) that `span` lies in."""
    start, stop = sentence_around(sentence_ends(text), span.start, span.end)
    return text[start:stop].strip()


def _last_sentence(text: str) -> str:
    ends = sentence_ends(text)
    return text[ends[-2] :] if len(ends) > 1 else text


class SentenceEncoder:
    """A BERT-like encoder that gives mean-pooled, unit-norm sentence vectors.

    `keys` says which text the key of a document's fact is made from: with "question" the fact's question (also an
    entity and a relation on two lines), or its sentence if it has none; with "sentence" the sentence that holds the
    span. These are two spaces of keys, so `checkpoint_id` digests the weights and `keys`.
    """

    def __init__(
        self, directory: Path | None = None, *, keys: str = "sentence", batch_tokens: int | None = None
    ) -> None:
        if keys not in KEYS:
            raise ValueError(f"keys {keys!r} are none of {', '.join(KEYS)}; choose one of them")
        directory = directory or MINILM.directory() / "model"
        self.keys = keys
        self.batch_tokens = batch_tokens
        self.device = compute_device()
        transformers_logging.disable_progress_bar()
        self.model = AutoModel.from_pretrained(directory, local_files_only=True).eval().to(self.device)
        self.tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(MAX_TOKENS)
        self.tokenizer_hash = file_digest(directory / "tokenizer.json")
        parts = f"{file_digest(directory / WEIGHTS)}:{self.tokenizer_hash}:{keys}"
        self.checkpoint_id = hashlib.sha256(parts.encode()).hexdigest()[:16]

    @property
    def dim(self) -> int:
        return int(self.model.config.hidden_size)

    @property
    def name(self) -> str:
        return f"{MINILM.model} of {self.keys}s"

    def encode_documents(self, documents: Sequence[AnnotatedDocument]) -> list[Floats]:
        """Give for each document a [num_facts, dim] array of unit rows, in the order of its facts."""
        texts = [self.key_text(document, span) for document in documents for span in document.facts]
        rows = iter(self.encode_questions(texts))
        return [
            np.array([next(rows) for _ in document.facts], dtype=np.float32).reshape(-1, self.dim)
            for document in documents
        ]

    def key_text(self, document: AnnotatedDocument, span: FactSpan) -> str:
        """Give the text that the key of this fact is made from."""
        if self.keys == "question" and span.question:
            return span.question
        return sentence_of(document.text, span)

    def encode_contexts(self, texts: Sequence[str]) -> Floats:
        """Encode each text's last sentence to [n, dim] unit rows: the queries where the model has written none."""
        return self.encode_questions([_last_sentence(text.strip()) for text in texts])

    def encode_questions(self, questions: Sequence[str]) -> Floats:
        """Encode questions to [n, dim] unit rows. One of several lines (entity, relation) is read as one line."""
        encoded = self.tokenizer.encode_batch([" ".join(question.split()) for question in questions])
        return mean_rows(self.model, [one.ids for one in encoded], 0, self.batch_tokens)


@torch.inference_mode()
def mean_rows(
    model: Any, sequences: Sequence[Sequence[int]], pad: int, max_tokens: int | None = None
) -> Floats:
    """Compute [N, D] unit rows: each sequence's mean of last-layer states. Similar lengths share a forward pass."""
    device, lengths = model.device, list(map(len, sequences))
    kept, order = [torch.empty(0, model.config.hidden_size, device=device)], list[int]()
    for batch in length_batches(lengths, device=device, max_tokens=max_tokens):
        mask_BT = batch.mask(lengths, device)
        states_BTD = model(
            input_ids=batch.pad(sequences, pad, device), attention_mask=mask_BT
        ).last_hidden_state
        weights_BT1 = mask_BT[:, :, None].float()
        means_BD = (states_BTD * weights_BT1).sum(dim=1) / weights_BT1.sum(dim=1)
        kept.append(means_BD[: len(batch.numbers)])
        order += batch.numbers
    rows_ND = np.empty((len(sequences), model.config.hidden_size), dtype=np.float32)
    rows_ND[order] = unit(torch.cat(kept)).cpu().numpy()
    return rows_ND


MOST_TOKENS = 160


@dataclass(frozen=True, slots=True)
class MeanSentenceEncoder:
    """Encode sentences and questions by all-MiniLM-L6-v2: what means nearly the same has a cosine near 1.

    A vector is the mean of the last layer over a text's tokens, with length 1, as the model was trained to be compared.
    """

    model: Any
    tokenizer: WordTokenizer
    encoder: int = 1  # another number for another model, or another text of a sentence

    @classmethod
    def load(cls) -> Self:
        """Load the sentence encoder MiniLM, which a dependency of this program brings."""
        directory = MINILM.directory() / "model"
        transformers_logging.disable_progress_bar()
        model = AutoModel.from_pretrained(directory, local_files_only=True).eval().to(compute_device())
        return cls(model, WordTokenizer.load(directory / "tokenizer.json"))

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Encode texts, [N, d]; those of similar length together."""
        framed = [self.tokenizer.frame_ids(ids[:MOST_TOKENS]) for ids in self.tokenizer.encode_each(texts)]
        return mean_rows(self.model, framed, self.tokenizer.pad)
