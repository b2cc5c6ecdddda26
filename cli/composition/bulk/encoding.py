"""Encodes many questions on Ray, for measurements that ask all of them."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from colmlm.cli.composition.bulk.messages import EncodingBy
from colmlm.kb.corpus.format import AnnotatedDocument
from colmlm.kb.keys.records import CheckpointInfo

if TYPE_CHECKING:
    from colmlm.cli.composition.runtime import Runtime
    from colmlm.kb.keys.rekey import Encoder
from colmlm.cli.composition.bulk.spreading import Spreading, spreading_of

_ROW = 128  # questions, of about one length, since those that are encoded together are padded to the longest


@dataclass(frozen=True, slots=True)
class EncoderElsewhere:
    """An encoder whose questions were encoded by the workers of Ray beforehand. It encodes all else itself."""

    encoder: Encoder
    queries: dict[str, NDArray[np.float32]]

    @property
    def checkpoint(self) -> CheckpointInfo:
        return self.encoder.checkpoint

    def encode_documents(self, documents: Sequence[AnnotatedDocument]) -> list[NDArray[np.float32]]:
        return self.encoder.encode_documents(documents)

    def encode_questions(self, questions: Sequence[str]) -> NDArray[np.float32]:
        if all(question in self.queries for question in questions):
            return np.stack([self.queries[question] for question in questions])
        return self.encoder.encode_questions(questions)

    def encode_contexts(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return self.encoder.encode_contexts(texts)


def with_questions(runtime: Runtime, encoder: Encoder, keyset_id: int, questions: Sequence[str]) -> Encoder:
    """Have questions encoded by the encoder of a keyset, where the settings name a place for bulk work."""
    if not questions or (spreading := spreading_of(runtime)) is None:
        return encoder
    made_by = encoder.checkpoint
    by = EncodingBy(runtime.kb.log.database_id(), keyset_id, made_by.checkpoint_id)
    return EncoderElsewhere(encoder, _encoded(spreading, by, made_by.dim, questions))


def _encoded(
    spreading: Spreading, by: EncodingBy, dim: int, questions: Sequence[str]
) -> dict[str, NDArray[np.float32]]:
    left = iter(sorted(set(questions), key=len, reverse=True))
    rows = list(iter(lambda: list(islice(left, _ROW)), []))
    numbered = [{"number": number, "questions": row} for number, row in enumerate(rows)]
    queries: dict[str, NDArray[np.float32]] = {}
    with closing(spreading.outcomes("encode", by, numbered)) as outcomes:
        for outcome in filter(None, outcomes):
            made = np.frombuffer(b64decode(outcome["queries"]), np.float32).reshape(-1, dim)
            queries |= zip(rows[outcome["number"]], made, strict=True)
    return queries
