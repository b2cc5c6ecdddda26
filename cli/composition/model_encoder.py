"""A checkpoint for the knowledge base: its description, and the keys that it makes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from colmlm.kb.keys.records import CheckpointInfo

if TYPE_CHECKING:
    from colmlm.kb.corpus.format import AnnotatedDocument
    from colmlm.model.lm.checkpoint import Checkpoint


def describe(checkpoint: Checkpoint) -> CheckpointInfo:
    """Give the description of a checkpoint that the knowledge base stores."""
    trained_on = checkpoint.config.training.get("data_sha256")
    return CheckpointInfo(
        checkpoint_id=checkpoint.checkpoint_id,
        name=checkpoint.config.name,
        dim=checkpoint.config.dim,
        path=str(checkpoint.path) if checkpoint.path else None,
        tokenizer_hash=checkpoint.tokenizer_hash,
        trained_on=str(trained_on) if trained_on else None,
    )


class ModelEncoder:
    """Makes keys with a checkpoint; a `kb.keys.rekey.Encoder` and an `api.ports.QuestionEncoder`."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        from colmlm.model.lm.encoder import KeyEncoder

        self.checkpoint = describe(checkpoint)
        self._keys = KeyEncoder(checkpoint)

    def encode_documents(self, documents: Sequence[AnnotatedDocument]) -> list[NDArray[np.float32]]:
        return self._keys.encode_documents(documents)

    def encode_questions(self, questions: Sequence[str]) -> NDArray[np.float32]:
        return self._keys.encode_questions(questions)

    def encode_contexts(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return self._keys.encode_contexts(texts)
