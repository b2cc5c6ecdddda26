"""Encoders by name: a checkpoint of the model, or a sentence encoder, as the baselines use that query in words."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from colmlm.cli.composition.runtime import Runtime
from colmlm.kb.keys.records import CheckpointInfo

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from colmlm.kb.corpus.format import AnnotatedDocument
    from colmlm.kb.keys.rekey import Encoder
    from colmlm.model.lm.encoder import SentenceEncoder

_REGISTERED = "encoder:"  # starts the path under which a sentence encoder is registered


class EncoderName(StrEnum):
    """The sentence encoder all-MiniLM-L6-v2, on a fact's question (else on its sentence), or always on the sentence."""

    minilm = "minilm"
    minilm_sentences = "minilm-sentences"


ByEncoder = Annotated[
    EncoderName | None,
    typer.Option(
        "--encoder",
        help="Instead of a checkpoint: all-MiniLM-L6-v2 on the facts' questions, or on their sentences.",
    ),
]


class SentenceKeys:
    """Makes keys with a sentence encoder; a `kb.keys.rekey.Encoder`."""

    def __init__(self, name: EncoderName, encoder: SentenceEncoder) -> None:
        self.sentences = encoder
        self.checkpoint = CheckpointInfo(
            checkpoint_id=encoder.checkpoint_id,
            name=encoder.name,
            dim=encoder.dim,
            path=f"{_REGISTERED}{name}",
            tokenizer_hash=encoder.tokenizer_hash,
        )

    @classmethod
    def named(cls, name: EncoderName) -> SentenceKeys:
        from colmlm.model.lm.encoder import SentenceEncoder

        keys = "question" if name is EncoderName.minilm else "sentence"
        return cls(name, SentenceEncoder(keys=keys))

    def encode_documents(self, documents: Sequence[AnnotatedDocument]) -> list[NDArray[np.float32]]:
        return self.sentences.encode_documents(documents)

    def encode_questions(self, questions: Sequence[str]) -> NDArray[np.float32]:
        rows: NDArray[np.float32] = self.sentences.encode_questions(questions)
        return rows

    def encode_contexts(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return self.sentences.encode_contexts(texts)


def chosen(runtime: Runtime, name: EncoderName | None, checkpoint: Path | None) -> Encoder:
    """Give the sentence encoder of this name, else the settings' checkpoint. Refuses a name with a checkpoint."""
    if name is None:
        return runtime.encoder
    if checkpoint is not None:
        raise typer.BadParameter("name an encoder or a checkpoint, not both.", param_hint="--encoder")
    return SentenceKeys.named(name)


def keys_are_questions(encoder: Encoder) -> bool:
    """Tell whether a fact's key encodes its own question, so that questions cannot calibrate a threshold."""
    return isinstance(encoder, SentenceKeys) and encoder.sentences.keys == "question"


def registered(runtime: Runtime, path: str | None, elsewhere: Path | None) -> Encoder:
    """Load the encoder that was registered under `path`, or is `elsewhere` now; by default that of the settings."""
    if elsewhere is None and path is not None and path.startswith(_REGISTERED):
        return SentenceKeys.named(EncoderName(path.removeprefix(_REGISTERED)))
    found = elsewhere or (Path(path) if path and Path(path).is_dir() else None)
    return runtime.encoder_at(found)
