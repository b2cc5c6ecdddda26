"""BIO tags of words: from spans to tags, and from the tags' probabilities back to spans (section 3.3).

A span is a pair of offsets in Unicode code points, so its value is a stretch of the text whatever the model says.
The tagged unit is the word as the tokenizer splits it: no span begins or ends within one.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Span = tuple[int, int]

TAGS = ("O", "B", "I")
OUTSIDE, BEGIN, INSIDE = range(3)
_OPENER_OF = {")": "(", "]": "[", "}": "{", "»": "«", "”": "“", "’": "‘"}
_CLOSER_OF = {opener: closer for closer, opener in _OPENER_OF.items()}
_BELONGS = frozenset("#@&%‰§†′″*/\\")  # punctuation that is part of what it stands beside
_INITIALS = re.compile(r"(?:\w\.){2,}$")


def tags_of(words: Sequence[Span], spans: Sequence[Span]) -> list[int]:
    """The tag of every word; both sequences are sorted and free of overlap.

    A word that a span covers in part belongs to it whole; one that two spans share belongs to the first.
    """
    tags = [OUTSIDE] * len(words)
    at = 0
    for start, end in spans:
        while at < len(words) and words[at][1] <= start:
            at += 1
        tag = BEGIN
        while at < len(words) and words[at][0] < end:
            tags[at], tag = tag, INSIDE
            at += 1
    return tags


def best_tags(log_probs_N3: NDArray[np.floating], threshold: float = 0.5) -> list[int]:
    """The likeliest sequence of tags in which no I follows an O or begins the text (Viterbi).

    `threshold` trades precision for recall: a word by itself counts as outside unless its odds of not being so
    are at least t to 1 - t. A higher threshold never tags more words.
    """
    if not 0 < threshold < 1:
        raise ValueError(f"threshold {threshold} is not between 0 and 1")
    bias = math.log(threshold / (1 - threshold))
    best = [0.0, -math.inf, -math.inf]  # before the text: as after an O
    back: list[tuple[int, int, int]] = []
    for outside, begin, inside in log_probs_N3.tolist():
        last = max(range(3), key=best.__getitem__)
        into = BEGIN if best[BEGIN] >= best[INSIDE] else INSIDE
        back.append((last, last, into))
        best = [best[last] + outside + bias, best[last] + begin, best[into] + inside]
    tags: list[int] = []
    tag = max(range(3), key=best.__getitem__)
    for step in reversed(back):
        tags.append(tag)
        tag = step[tag]
    return tags[::-1]


def spans_of(text: str, words: Sequence[Span], tags: Sequence[int]) -> list[Span]:
    """The spans that valid tags mark, trimmed, sorted and apart; what is only punctuation is left out."""
    spans: list[Span] = []
    reached = 0
    for first, (word, tag) in enumerate(zip(words, tags, strict=True)):
        if tag != BEGIN:
            continue
        last = first
        while last + 1 < len(tags) and tags[last + 1] == INSIDE:
            last += 1
        span = trim(text, max(word[0], reached), words[last][1])
        if span is not None:
            spans.append(span)
            reached = span[1]
    return spans


def trim(text: str, start: int, end: int) -> Span | None:
    """The span without blanks and outer punctuation, its last letter with its combining marks; None if nothing is left.

    What belongs to a value stays: a sign before a number, a percent sign, a bracket whose partner is inside, the
    last point of initials ("U.S.").
    """
    while start < end < len(text) and unicodedata.category(text[end])[0] == "M":
        end += 1
    while start < end:
        if _dispensable_last(text, start, end):
            end -= 1
        elif _dispensable_first(text, start, end):
            start += 1
        else:
            break
    said = any(unicodedata.category(character)[0] in "LNS" for character in text[start:end])
    return (start, end) if said else None


def _dispensable_first(text: str, start: int, end: int) -> bool:
    first, category = text[start], unicodedata.category(text[start])
    if category[0] in "ZCM" or first.isspace():
        return True
    if category[0] != "P" or first in _BELONGS:
        return False
    if first in "-.":
        return not text[start + 1 : end][:1].isdigit()
    return first not in _CLOSER_OF or _CLOSER_OF[first] not in text[start + 1 : end - 1]


def _dispensable_last(text: str, start: int, end: int) -> bool:
    last, category = text[end - 1], unicodedata.category(text[end - 1])
    if category[0] in "ZC" or last.isspace():
        return True
    if category[0] != "P" or last in _BELONGS:
        return False
    if last == ".":
        return not _INITIALS.search(text, start, end)
    opener = _OPENER_OF.get(last)
    return opener is None or text.count(opener, start, end) < text.count(last, start, end)
