"""How much of what people ask for is a fact: the coverage of asked values by facts, at so many facts per 100 words."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from colmlm.model.annotate.bio import Span

if TYPE_CHECKING:
    from colmlm.model.annotate.spans import Tagged

PER_100_WORDS = (5.0, 10.0, 15.0, 20.0)
_ARTICLE = re.compile(r"\b(?:a|an|the)\b")
_SIGN = re.compile(r"[^\w\s]")
_LOWEST, _STEPS = 1e-4, 24  # the bisection for a threshold


@dataclass(frozen=True, slots=True)
class Coverage:
    """Shares of the asked values: those that are a fact, that overlap one, and that lie within one.

    `exact` is up to articles, case and punctuation, as SQuAD compares answers; `verbatim` is to the character.
    """

    per_100_words: float
    threshold: float | None
    asked: int
    exact: float
    verbatim: float
    overlap: float
    inside: float


def coverage(
    texts: Sequence[str],
    asked: Sequence[Sequence[Span]],
    found: Sequence[Sequence[Span]],
    threshold: float | None = None,
) -> Coverage:
    """Compares the values that people asked for in each text with the facts found there: sorted, without overlap."""
    exact = verbatim = overlap = inside = 0
    for text, values, facts in zip(texts, asked, found, strict=True):
        ends = [end for _, end in facts]
        for start, end in values:
            met = []
            at = bisect_right(ends, start)
            while at < len(facts) and facts[at][0] < end:
                met.append(facts[at])
                at += 1
            said = compared(text[start:end])
            overlap += bool(met)
            exact += any(compared(text[a:b]) == said for a, b in met)
            verbatim += (start, end) in met
            inside += any(a <= start and end <= b for a, b in met)
    total = sum(map(len, asked))
    words = sum(len(text.split()) for text in texts)
    shares = [round(part / total, 4) if total else 0.0 for part in (exact, verbatim, overlap, inside)]
    return Coverage(round(100 * sum(map(len, found)) / max(1, words), 2), threshold, total, *shares)


def coverage_curve(
    asked: Sequence[Sequence[Span]], tagged: Sequence[Tagged], densities: Sequence[float] = PER_100_WORDS
) -> list[Coverage]:
    """Measures the coverage at the thresholds that give so many facts per 100 words, or as many as there are."""
    texts = [text.text for text in tagged]
    curve = []
    for density in densities:
        threshold = threshold_for(tagged, density)
        curve.append(coverage(texts, asked, [text.spans(threshold) for text in tagged], threshold))
    return curve


def threshold_for(tagged: Sequence[Tagged], per_100_words: float) -> float:
    """Finds the threshold at which there are so many facts per 100 words, or the lowest where there never are."""
    words = sum(len(text.text.split()) for text in tagged)
    low, high = _LOWEST, 1 - _LOWEST
    for _ in range(_STEPS):
        middle = (low * high) ** 0.5 if high < 0.1 else (low + high) / 2
        many = 100 * sum(len(text.spans(middle)) for text in tagged) > per_100_words * words
        low, high = (middle, high) if many else (low, middle)
    return round(high, 4)


def compared(value: str) -> str:
    """Gives a value as SQuAD compares answers: without case, punctuation and articles."""
    return " ".join(_ARTICLE.sub(" ", _SIGN.sub("", value.lower())).split())
