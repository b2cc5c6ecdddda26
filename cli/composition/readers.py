"""The reader of passages: where it is, and the confidence that was fitted to it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from colmlm.cli.output import count_of
from colmlm.cli.settings import UserSettings
from colmlm.kb.answers.reading import Confidence, JudgedReader, Passage, PassageReading

if TYPE_CHECKING:
    from colmlm.kb.answers.records import AnswerThreshold
    from colmlm.model.reader.reader import CascadeReader, ExtractiveReader

CONFIDENCE = "confidence.json"


def reader_at(user: UserSettings, named: Path | None) -> Path:
    """Give the directory of the reader: what was named, that of the settings, or the released one.

    A released reader, such as `reader-mpnet`, may be named by its name alone.
    """
    from colmlm.model.annotate.checkpoint import RELEASED_READER

    wanted = named or user.reader or RELEASED_READER
    if wanted.exists() or wanted.name != str(wanted):
        return wanted
    return released if (released := RELEASED_READER.parent / wanted.name).is_dir() else wanted


def verifying_reader_at(user: UserSettings) -> Path:
    """Give the directory of the reader that verifies questions: that of the settings, or the small one."""
    from colmlm.model.annotate.checkpoint import SMALL_READER

    return SMALL_READER if user.reader is None else reader_at(user, None)


@dataclass(frozen=True, slots=True)
class FittedReader:
    """The model's reader with the confidence that was fitted to it; a `kb.answers.reading.JudgedReader`."""

    model: ExtractiveReader | CascadeReader
    confidence: Confidence
    digest: str

    def read(self, question: str, windows: Sequence[Passage]) -> list[PassageReading]:
        found: list[PassageReading] = self.model.read(question, windows)
        return found

    def read_all(self, asked: Sequence[tuple[str, Sequence[Passage]]]) -> list[list[PassageReading]]:
        found: list[list[PassageReading]] = self.model.read_all(asked)
        return found


def reader(path: Path, bases: Path, confidence: Confidence | None = None) -> JudgedReader:
    """Load a reader, which takes a second or two, with the confidence in its directory unless another is given.

    `bases` is the directory of base models. Raises `CheckpointError` if the reader or its confidence cannot be read.
    """
    from colmlm.model.reader.reader import load_reader

    fitted = confidence or confidence_of_reader(path)
    return FittedReader(load_reader(path, bases), fitted, digest_of(path, fitted))


def confidence_of_reader(path: Path) -> Confidence:
    """Read the confidence file of a reader. Raises `AnnotatorError` if it cannot be read."""
    from colmlm.model.annotate.config import AnnotatorError

    if not path.is_dir():
        raise AnnotatorError(f"there is no reader in {path}")
    try:
        return Confidence.load(path / CONFIDENCE)
    except (OSError, ValueError) as error:
        raise AnnotatorError(
            f"{path / CONFIDENCE} cannot be read ({error}); fit it by `colmlm-lab evaluate confidence`"
        ) from error


def digest_of(path: Path, confidence: Confidence) -> str:
    """Give the SHA-256 of a reader's description, which has the digests of its weights, and of the confidence."""
    from colmlm.model.annotate.checkpoint import ANNOTATOR_FILE

    described = (path / ANNOTATOR_FILE).read_bytes() if (path / ANNOTATOR_FILE).is_file() else b""
    said = json.dumps(asdict(confidence), sort_keys=True).encode()
    return hashlib.sha256(described + said).hexdigest()


def describe_threshold(found: AnswerThreshold) -> str:
    """Describe the threshold of answers and its calibration in a sentence."""
    if not found.calibrated or found.calibration is None:
        return f"Threshold {found.threshold:.3f}, as shipped: not calibrated for this base."
    measured = found.calibration.measured
    return (
        f"Threshold {found.threshold:.3f}, calibrated for {measured.rate:.1%} wrong on "
        f"{count_of(measured.answerable, 'question')} (change {found.calibration.seq}; shipped: {found.shipped:.3f})."
    )
