"""Windows of a text as they are read: a sentence with the one before it, and other cuts around a value."""

from __future__ import annotations

import random
from collections.abc import Sequence

from colmlm.kb.texts.sentences import sentence_ends
from colmlm.model.annotate.bio import Span


def sentences_of(text: str) -> list[Span]:
    """Gives the sentences of a text without outer blanks; blank ones are left out."""
    bounds = zip((0, *(ends := sentence_ends(text))), ends, strict=False)
    stripped = (_stripped(text, start, end) for start, end in bounds)
    return [span for span in stripped if span[0] < span[1]]


def windows_of(sentences: Sequence[Span]) -> list[Span]:
    """Gives the window of each sentence: from the beginning of the one before it to its own end."""
    return [(sentences[max(0, n - 1)][0], end) for n, (_, end) in enumerate(sentences)]


def usual_window(sentences: Sequence[Span], gold: Span) -> Span:
    """Gives the window of the sentence that holds `gold`, or of the sentences."""
    first, last = _held(sentences, gold)
    return sentences[max(0, first - 1)][0], sentences[last][1]


def window_around(text: str, sentences: Sequence[Span], gold: Span, rng: random.Random) -> Span:
    """Draws a window that holds `gold`: mostly its sentence with the one before it.

    The others are cuts that a search may make as well: the sentence alone, with the one after it, with both, or a
    stretch that begins and ends at any word.
    """
    first, last = _held(sentences, gold)
    before, after = max(0, first - 1), min(len(sentences) - 1, last + 1)
    drawn = rng.random()
    if drawn < 0.55:
        return usual_window(sentences, gold)
    if drawn < 0.70:
        return sentences[first][0], sentences[after][1]
    if drawn < 0.80:
        return sentences[first][0], sentences[last][1]
    if drawn < 0.90:
        return sentences[before][0], sentences[after][1]
    start = text.rfind(" ", 0, max(0, gold[0] - rng.randrange(300))) + 1
    end = text.find(" ", min(len(text), gold[1] + rng.randrange(300)))
    return start, len(text) if end < 0 else end


def _held(sentences: Sequence[Span], gold: Span) -> tuple[int, int]:
    """Gives the first and the last sentence that hold a part of `gold`."""
    held = [n for n, (start, end) in enumerate(sentences) if start < gold[1] and end > gold[0]]
    return held[0], held[-1]


def _stripped(text: str, start: int, end: int) -> Span:
    said = text[start:end]
    return start + len(said) - len(said.lstrip()), end - len(said) + len(said.rstrip())
