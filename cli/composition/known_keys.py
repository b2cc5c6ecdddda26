"""Keys that come with the program: those of the demo corpus by the released checkpoint, made once and for all.

A key depends on the weights and on what it is made of, and on nothing else. So a file of keys names its checkpoint, and
each of its entries the digest of the document or the question it was made of; what differs in either is encoded anew.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from colmlm.kb.corpus.format import AnnotatedDocument, to_record
from colmlm.kb.keys.rekey import Encoder

Floats = NDArray[np.float32]
T = TypeVar("T")

_CHECKPOINT = "checkpoint"


def with_known_keys(encoder: Encoder, path: Path) -> Encoder:
    """Give an encoder that first looks into a file of keys, or the encoder itself where those are of another."""
    try:
        with safe_open(path, framework="numpy") as file:
            if (file.metadata() or {}).get(_CHECKPOINT) != encoder.checkpoint.checkpoint_id:
                return encoder
            return _KnownKeys(encoder, {name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
    except (OSError, SafetensorError):  # then the keys are made, which takes longer and gives the same
        return encoder


class Remembering:
    """An encoder that remembers all keys it makes, to be written into a file; a `kb.keys.rekey.Encoder`."""

    def __init__(self, encoder: Encoder) -> None:
        self.checkpoint, self._encoder = encoder.checkpoint, encoder
        self._made: dict[str, NDArray[np.float16]] = {}

    def encode_documents(self, documents: Sequence[AnnotatedDocument]) -> list[Floats]:
        made = self._encoder.encode_documents(documents)
        self._remember(map(_document, documents), made)
        return made

    def encode_questions(self, questions: Sequence[str]) -> Floats:
        made = self._encoder.encode_questions(questions)
        self._remember(map(_question, questions), made)
        return made

    def encode_contexts(self, texts: Sequence[str]) -> Floats:
        return self._encoder.encode_contexts(texts)

    def write(self, path: Path) -> None:
        """Write the keys as float16, the precision in which a base stores them."""
        save_file(self._made, path, {_CHECKPOINT: self.checkpoint.checkpoint_id})

    def _remember(self, names: Iterable[str], made: Iterable[Floats]) -> None:
        self._made |= {
            name: np.ascontiguousarray(keys, np.float16) for name, keys in zip(names, made, strict=True)
        }


class _KnownKeys:
    """An encoder that encodes only what `known` lacks; a `kb.keys.rekey.Encoder`."""

    def __init__(self, encoder: Encoder, known: Mapping[str, NDArray[np.float16]]) -> None:
        self.checkpoint, self._encoder, self._known = encoder.checkpoint, encoder, known

    def encode_documents(self, documents: Sequence[AnnotatedDocument]) -> list[Floats]:
        return self._each(documents, _document, self._encoder.encode_documents)

    def encode_questions(self, questions: Sequence[str]) -> Floats:
        rows = self._each(questions, _question, lambda others: list(self._encoder.encode_questions(others)))
        return np.stack(rows) if rows else self._encoder.encode_questions([])

    def encode_contexts(self, texts: Sequence[str]) -> Floats:
        return self._encoder.encode_contexts(texts)

    def _each(
        self, asked: Sequence[T], name: Callable[[T], str], encode: Callable[[Sequence[T]], list[Floats]]
    ) -> list[Floats]:
        found = [self._known.get(name(one)) for one in asked]
        others = [one for one, keys in zip(asked, found, strict=True) if keys is None]
        made = iter(encode(others) if others else ())
        return [next(made) if keys is None else keys.astype(np.float32) for keys in found]


def _document(document: AnnotatedDocument) -> str:
    return _digest("document", json.dumps(to_record(document), sort_keys=True))


def _question(question: str) -> str:
    return _digest("question", question)


def _digest(kind: str, made_of: str) -> str:
    return f"{kind} {hashlib.sha256(made_of.encode()).hexdigest()}"
