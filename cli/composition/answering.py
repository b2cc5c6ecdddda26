"""The reader of passages, with the confidence that was fitted to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from colmlm.kb.answers.confidence import Confidence
from colmlm.kb.answers.reading import JudgedReader, Passage, PassageReading

if TYPE_CHECKING:
    from colmlm.model.reader.reader import ExtractiveReader

CONFIDENCE = "confidence.json"


@dataclass(frozen=True, slots=True)
class FittedReader:
    """The model's reader with the confidence that was fitted to it; a `kb.answers.reading.JudgedReader`."""

    model: ExtractiveReader
    confidence: Confidence

    def read(self, question: str, windows: Sequence[Passage]) -> list[PassageReading]:
        found: list[PassageReading] = self.model.read(question, windows)
        return found


def reader(path: Path, bases: Path, confidence: Confidence | None = None) -> JudgedReader:
    """Loads a reader, which takes a second or two, with the confidence beside it unless another is given.

    `bases` is the directory of base models. Raises `CheckpointError` where one of the two cannot be read.
    """
    from colmlm.model.lm.config import CheckpointError
    from colmlm.model.reader.reader import ExtractiveReader

    try:
        fitted = confidence or Confidence.load(path / CONFIDENCE)
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{path / CONFIDENCE} cannot be read ({error}); fit it by `colmlm evaluate confidence`"
        ) from error
    return FittedReader(ExtractiveReader.load(path, bases), fitted)
