"""Makes keys without a model: a direction that depends only on the text, so that rekeys take no minutes.

Checkpoints have the same directions, each turned in its own way: a map between their keys can be found, as between
those of a checkpoint and of one that was trained on from it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from colmlm.kb.corpus.format import AnnotatedDocument
from colmlm.kb.keys.records import CheckpointInfo

Vectors = npt.NDArray[np.float32]

DIM = 32


@dataclass(frozen=True, slots=True)
class HashEncoder:
    """Keys a fact by its question, which then finds it with a score of about 1; any other question scores far below.

    Another `number` is another checkpoint, with a space of its own.
    """

    number: int

    @property
    def checkpoint(self) -> CheckpointInfo:
        return CheckpointInfo(f"faults-{self.number}", f"hash encoder {self.number}", DIM)

    def encode_documents(self, documents: Sequence[AnnotatedDocument]) -> list[Vectors]:
        return [self.encode_questions([str(span.question) for span in d.facts]) for d in documents]

    def encode_questions(self, questions: Sequence[str]) -> Vectors:
        rows = [_direction(question) for question in questions]
        return np.stack(rows) @ _turn(self.number) if rows else np.empty((0, DIM), np.float32)

    def encode_contexts(self, texts: Sequence[str]) -> Vectors:
        return self.encode_questions(texts)


@lru_cache(maxsize=10_000)
def _direction(text: str) -> Vectors:
    seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8])
    vector = np.random.default_rng(seed).standard_normal(DIM)
    return (vector / np.linalg.norm(vector)).astype(np.float32)


@lru_cache
def _turn(number: int) -> Vectors:
    """Give the rotation, or reflection, [d, d] that makes the space of a checkpoint."""
    turn, _ = np.linalg.qr(np.random.default_rng(number).standard_normal((DIM, DIM)))
    return turn.astype(np.float32)


ENCODERS = (HashEncoder(0), HashEncoder(1))
