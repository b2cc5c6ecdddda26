"""The port through which questions are read in passages: knowledge bases name it, and a model is behind it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from colmlm.kb.answers.confidence import Confidence

MOST_SPANS = 30


class Passage(NamedTuple):
    """A stretch of a document that may hold an answer, with the document's title, or an empty one."""

    title: str
    text: str


class PassageReading(NamedTuple):
    """What a reader made of one question in one passage.

    `spans` are the likeliest answers as ``(start, end, score)``, best first and at most `MOST_SPANS`: offsets in code
    points of the passage's text, which cut no word. `none` is the score of "the answer is not in here" on the same
    scale; both are sums of two logits.
    """

    spans: tuple[tuple[int, int, float], ...]
    none: float

    @property
    def margin(self) -> float:
        """By how much the best span is likelier than none, in logits; of a passage without words minus infinity."""
        return self.spans[0][2] - self.none if self.spans else float("-inf")


class Reader(Protocol):
    """Reads questions in passages."""

    def read(self, question: str, windows: Sequence[Passage]) -> list[PassageReading]:
        """Read the question in each of the windows, all of them at once, and give a reading of each."""
        ...


class JudgedReader(Reader, Protocol):
    """A reader with the `confidence` that was fitted to its scores, and a `digest` of both."""

    @property
    def confidence(self) -> Confidence: ...

    @property
    def digest(self) -> str: ...

    def read_all(self, asked: Sequence[tuple[str, Sequence[Passage]]]) -> list[list[PassageReading]]:
        """Read several questions at once, each in passages of its own."""
        ...
