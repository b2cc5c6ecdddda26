"""The port of a reader, a model that finds answers in passages, and the probability that an answer is right.

A logistic model of a few numbers gives that probability from the scores of the search and the reader. Its weights are
fitted to the reader, on questions of other texts (`lab.evaluate.confidence`), and come with it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple, Protocol, Self


@dataclass(frozen=True, slots=True)
class PlaceEvidence:
    """The numbers that speak for a place: the reader's logit above that of "nothing here", its lead over the best other
    text, its share among all spans that were read, how near the search found its sentence by key, by words (BM25 as a
    share of the best) and by vectors, its rank among the windows, the share of the question's words that its window
    has, and its length in characters.
    """

    margin: float
    lead: float
    share: float
    nearness: float
    words: float
    likeness: float
    rank: float
    heard: float
    length: float


@dataclass(frozen=True, slots=True)
class PassageEvidence:
    """The numbers that speak for a passage: the margin of the best span in its window, its lead over the best window
    elsewhere, the share of that span among those of the window, the figures of the search as in `PlaceEvidence`
    (`nearness` to `heard`), and whether the question asks for more than a few words.
    """

    margin: float
    lead: float
    share: float
    nearness: float
    words: float
    likeness: float
    rank: float
    heard: float
    several: float


NAMES = tuple(PlaceEvidence.__dataclass_fields__)
PASSAGE_NAMES = tuple(PassageEvidence.__dataclass_fields__)


@dataclass(frozen=True, slots=True)
class FittedModel:
    """A logistic model: a weight for each number after scaling, a bias, and the `threshold`, the probability from which
    an answer is given by default. `search` is the weight of the search's score beside the reader's margin when places
    are ordered.
    """

    search: float
    bias: float
    weights: Mapping[str, float]
    means: Mapping[str, float]
    scales: Mapping[str, float]
    threshold: float

    def probability_of(self, evidence: PlaceEvidence | PassageEvidence) -> float:
        """Give the probability, from 0 to 1, that the answer with this evidence is right."""
        values = asdict(evidence)
        sum_ = self.bias + sum(
            weight * (values[name] - self.means[name]) / self.scales[name]
            for name, weight in self.weights.items()
        )
        return 1 / (1 + math.exp(-max(-60.0, min(60.0, sum_))))


@dataclass(frozen=True, slots=True)
class Confidence(FittedModel):
    """The logistic models fitted to a reader: this one for spans, and `passage` for passages (None: it gives none)."""

    passage: FittedModel | None = None

    def passage_threshold(self, threshold: float) -> float:
        """Give the threshold of passages that goes with a threshold of spans; above 1 if no passages are given.

        Both are shifted by the same difference of logits from their fitted values, so one number sets both. With 0
        every passage is given, with 1 none.
        """
        if self.passage is None:
            return 2.0
        if threshold == self.threshold:
            return self.passage.threshold
        if not 0 < threshold < 1:
            return 2.0 * threshold
        return _shift_probability(self.passage.threshold, _logit(threshold) - _logit(self.threshold))

    def span_threshold_of(self, score: float) -> float:
        """Give the highest threshold of spans at which a passage of this probability is still given as answer."""
        if self.passage is None:
            return 0.0
        return _shift_probability(score, _logit(self.threshold) - _logit(self.passage.threshold))

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read the models of a reader from a file. Raises `ValueError` if it has none, or models of other numbers."""
        try:
            read = json.loads(path.read_text(encoding="utf-8"))
            passage = read.pop("passage", None)
            loaded = cls(**read, passage=None if passage is None else FittedModel(**passage))
        except (TypeError, AttributeError) as error:
            raise ValueError(f"{path}: no confidence model ({error}); fit it again") from error
        wanted = {NAMES: loaded} | ({} if loaded.passage is None else {PASSAGE_NAMES: loaded.passage})
        for names, model in wanted.items():
            if set(model.weights) != set(names):
                raise ValueError(f"{path}: fitted on other numbers than {', '.join(names)}; fit it again")
        return loaded

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=1, sort_keys=True) + "\n", encoding="utf-8")


def _logit(probability: float) -> float:
    bounded = min(max(probability, 1e-9), 1 - 1e-9)
    return math.log(bounded / (1 - bounded))


def _shift_probability(probability: float, logits: float) -> float:
    """Give the probability whose logit is that of `probability` plus `logits`."""
    return 1 / (1 + math.exp(-_logit(probability) - logits))


UNFITTED = Confidence(
    search=0.0,
    bias=0.0,
    weights={name: float(name == "margin") for name in NAMES},
    means=dict.fromkeys(NAMES, 0.0),
    scales=dict.fromkeys(NAMES, 1.0),
    threshold=0.5,
)
"""The reader's own judgement: an answer is given where its logit is above that of "nothing here answers"."""


MOST_SPANS = 30


class Passage(NamedTuple):
    """A stretch of a document that may hold an answer, with the document's title, or an empty one."""

    title: str
    text: str


class PassageReading(NamedTuple):
    """A reader's scores for one question in one passage.

    `spans` are the likeliest answers as ``(start, end, score)``, best first and at most `MOST_SPANS`: offsets in code
    points of the passage's text, which cut no word. `none` is the score of "the answer is not in here" on the same
    scale; both are sums of two logits.
    """

    spans: tuple[tuple[int, int, float], ...]
    none: float

    @property
    def margin(self) -> float:
        """The score of the best span minus that of "no answer here", in logits; minus infinity if there is no span."""
        return self.spans[0][2] - self.none if self.spans else float("-inf")


class Reader(Protocol):
    """A reader: finds the words that answer a question in each of some passages, with scores."""

    def read(self, question: str, windows: Sequence[Passage]) -> list[PassageReading]:
        """Read the question in each of the windows, all of them at once, and give a reading of each."""
        ...

    def read_all(self, asked: Sequence[tuple[str, Sequence[Passage]]]) -> list[list[PassageReading]]:
        """Read several questions at once, each in passages of its own; give the readings of each question."""
        ...


class JudgedReader(Reader, Protocol):
    """A reader with the `confidence` that was fitted to its scores, and a `digest` of both."""

    @property
    def confidence(self) -> Confidence: ...

    @property
    def digest(self) -> str: ...
