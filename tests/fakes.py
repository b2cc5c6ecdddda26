"""Working stand-ins for what needs a model: small, deterministic, and true to the real one's contract."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from colmlm.kb.answers.reading import (
    PASSAGE_NAMES,
    UNFITTED,
    Confidence,
    FittedModel,
    Passage,
    PassageReading,
)
from colmlm.kb.corpus.format import AnnotatedDocument
from colmlm.kb.keys.calibration import Calibration
from colmlm.kb.keys.records import CheckpointInfo, KeysetRecord
from colmlm.kb.service import KnowledgeBase

Vectors = npt.NDArray[np.float32]

DIM = 32


def unit_vector(text: str, dim: int = DIM) -> Vectors:
    """Gives a direction that depends on `text` alone. Two texts are nearly orthogonal."""
    seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8])
    vector = np.random.default_rng(seed).standard_normal(dim)
    return (vector / np.linalg.norm(vector)).astype(np.float32)


@dataclass(slots=True)
class FakeEncoder:
    """Makes keys by hash: a fact's from its question if it has one, otherwise from the text before its span.

    So the question of a fact finds it with a score of about 1, and anything else scores about 0. `salt` makes another
    checkpoint with an unrelated key space, which is registered at a folder of this `home` if there is one (`salt_at`).
    """

    salt: str = ""
    dim: int = DIM
    calls: list[int] = field(default_factory=list)
    home: Path | None = None

    @property
    def checkpoint(self) -> CheckpointInfo:
        path = None if self.home is None else str(self.home / f"salt-{self.salt}")
        return CheckpointInfo(f"fake{self.salt}", f"fake model {self.salt}".strip(), self.dim, path)

    def encode_documents(self, documents: Sequence[AnnotatedDocument]) -> list[Vectors]:
        self.calls.append(len(documents))
        return [self._stack([span.question or d.text[: span.start] for span in d.facts]) for d in documents]

    def encode_questions(self, questions: Sequence[str]) -> Vectors:
        return self._stack(questions)

    def encode_contexts(self, texts: Sequence[str]) -> Vectors:
        """Encodes a text that ends in a question as that question, as in a prompt; any other text as it is."""
        return self._stack(
            [text.strip().removeprefix("Question: ").removesuffix(" Answer:") for text in texts]
        )

    def _stack(self, texts: Sequence[str]) -> Vectors:
        rows = [self.vector(text) for text in texts]
        return np.stack(rows) if rows else np.empty((0, self.dim), np.float32)

    def vector(self, text: str) -> Vectors:
        return unit_vector(f"{self.salt}/{text}", self.dim)


def salt_at(path: Path) -> str:
    """Gives the salt of the checkpoint that is registered at this folder."""
    return path.name.removeprefix("salt-")


@dataclass(slots=True)
class TurnedEncoder(FakeEncoder):
    """A checkpoint trained further from the one without a salt: its keys are the other's, turned, and a little off."""

    salt: str = "turned"

    def vector(self, text: str) -> Vectors:
        turn, _ = np.linalg.qr(np.random.default_rng(7).standard_normal((self.dim, self.dim)))
        off = FakeEncoder.vector(self, text)
        vector = unit_vector(f"/{text}", self.dim) @ turn.astype(np.float32) + 0.1 * off
        return np.asarray(vector / np.linalg.norm(vector), dtype=np.float32)


@dataclass(slots=True)
class WordEncoder(FakeEncoder):
    """Makes keys from a question's words in any order: texts with common words are near, as with a real model."""

    dim: int = 64
    words: dict[str, Vectors] = field(default_factory=dict)

    def vector(self, text: str) -> Vectors:
        words = [word.strip("?:.,!'\"").lower() for word in text.split()]
        content = {word for word in words if word and f" {word} " not in _FUNCTION_WORDS}
        for word in content - set(self.words):
            self.words[word] = unit_vector(f"{self.salt}/{word}", self.dim)
        total = np.sum([self.words[word] for word in sorted(content)], axis=0)
        return np.asarray(total / np.linalg.norm(total), dtype=np.float32)


# Words that may be in any question and say nothing of its subject.
_FUNCTION_WORDS = (
    " a an answer by did do for in is it know me of on question tell the to was were what when which who you "
)


def measured(threshold: float) -> Calibration:
    """Makes a calibration that might have chosen this threshold."""
    return Calibration(threshold, 0.0, 0.0, 1.0, 2)


def activated(kb: KnowledgeBase, keyset_id: int) -> KeysetRecord:
    """Activates the keyset without a gate."""
    return kb.keysets.activate(keyset_id, force=True)


SURE_OF_PASSAGES = FittedModel(
    search=0.0,
    bias=0.0,
    weights={name: float(name == "margin") for name in PASSAGE_NAMES},
    means=dict.fromkeys(PASSAGE_NAMES, 0.0),
    scales=dict.fromkeys(PASSAGE_NAMES, 1.0),
    threshold=0.5,
)


@dataclass(slots=True)
class NearReader:
    """Reads by rule: a value is a run of capitalised words or numbers that the question lacks, and the nearer it stands
    behind a word of the question, the likelier it answers. Without such a word nothing does.

    `meanwhile` is called while it reads.
    """

    meanwhile: Callable[[], object] = lambda: None
    confidence: Confidence = UNFITTED
    digest: str = "near"

    def read(self, question: str, windows: Sequence[Passage]) -> list[PassageReading]:
        self.meanwhile()
        asked = {
            word.lower()
            for word in _WORD.findall(question)
            if f" {word.lower()} " not in f"{_FUNCTION_WORDS}has "
        }
        return [self._one(asked, window.text) for window in windows]

    def read_all(self, asked: Sequence[tuple[str, Sequence[Passage]]]) -> list[list[PassageReading]]:
        return [self.read(question, windows) for question, windows in asked]

    def _one(self, asked: set[str], text: str) -> PassageReading:
        heard = [found.end() for found in _WORD.finditer(text) if found[0].lower() in asked]
        spans = []
        for found in _VALUE.finditer(text):
            behind = [end for end in heard if end <= found.start()]
            if behind and not asked & {word.lower() for word in _WORD.findall(found[0])}:
                spans.append(
                    (found.start(), found.end(), 10.0 + len(behind) - (found.start() - behind[-1]) / 10)
                )
        return PassageReading(tuple(sorted(spans, key=lambda span: -span[2])), 5.0)


@dataclass(slots=True)
class SayingReader:
    """Answers with `said` wherever a window has it, and with nothing elsewhere."""

    said: str
    confidence: Confidence = UNFITTED
    digest: str = "saying"

    def read(self, question: str, windows: Sequence[Passage]) -> list[PassageReading]:
        return [self._one(window.text.find(self.said)) for window in windows]

    def read_all(self, asked: Sequence[tuple[str, Sequence[Passage]]]) -> list[list[PassageReading]]:
        return [self.read(*one) for one in asked]

    def _one(self, at: int) -> PassageReading:
        return PassageReading(((at, at + len(self.said), 10.0),) if at >= 0 else (), 5.0)


_WORD = re.compile(r"\w+")
_VALUE = re.compile(r"(?:[A-Z]\w*|[\d,]+(?: m)?)(?: (?:[A-Z]\w*|[\d,]+))*")
