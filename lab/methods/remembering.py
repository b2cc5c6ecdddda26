"""A reader and an encoder that do nothing twice, so that several ways of answering cost little more than one.

What is asked first takes as long as it does without them, so the way that is asked first can be timed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from colmlm.cli.composition.model_encoder import ModelEncoder
from colmlm.cli.composition.runtime import Runtime
from colmlm.kb.answers.answering import Answering
from colmlm.kb.answers.confidence import Confidence
from colmlm.kb.answers.reading import JudgedReader, Passage, PassageReading
from colmlm.kb.lookup.questions import Questions
from colmlm.model.lm.checkpoint import Checkpoint


def remembering_answers(runtime: Runtime, *, keys: bool) -> Answering:
    """Gives the product's answers, which read and encode nothing twice; without `keys` sentences are found by words."""
    questions = Questions(runtime.kb, [RememberingEncoder(runtime.checkpoint)]) if keys else None
    return Answering(runtime.kb, questions, RememberingReader(runtime.reader), runtime.sentence_encoder)


@dataclass(frozen=True, slots=True)
class RememberingReader:
    """A `kb.answers.reading.JudgedReader`."""

    reader: JudgedReader
    _known: dict[tuple[str, Passage], PassageReading] = field(default_factory=dict)

    @property
    def confidence(self) -> Confidence:
        return self.reader.confidence

    @property
    def digest(self) -> str:
        return self.reader.digest

    def read(self, question: str, windows: Sequence[Passage]) -> list[PassageReading]:
        new = [one for one in dict.fromkeys(windows) if (question, one) not in self._known]
        if new:
            for one, reading in zip(new, self.reader.read(question, new), strict=True):
                self._known[question, one] = reading
        return [self._known[question, one] for one in windows]

    def read_all(self, asked: Sequence[tuple[str, Sequence[Passage]]]) -> list[list[PassageReading]]:
        return [self.read(question, windows) for question, windows in asked]


class RememberingEncoder(ModelEncoder):
    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__(checkpoint)
        self._known: dict[str, NDArray[np.float32]] = {}

    def encode_questions(self, questions: Sequence[str]) -> NDArray[np.float32]:
        new = [one for one in dict.fromkeys(questions) if one not in self._known]
        if new:
            self._known.update(zip(new, super().encode_questions(new), strict=True))
        return np.stack([self._known[one] for one in questions])
