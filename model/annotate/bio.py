"""BIO tags of words: from spans to tags, and from the tags' probabilities back to spans (section 3.3).

A span is a pair of offsets in Unicode code points, so its value is always a stretch of the text. The tagged unit is the
word as the tokenizer splits it: no span begins or ends within one.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

Span = tuple[int, int]

TAGS = ("O", "B", "I")
OUTSIDE, BEGIN, INSIDE = range(3)
_OPENER_OF = {")": "(", "]": "[", "}": "{", "»": "«", "”": "“", "’": "‘"}
_CLOSER_OF = {opener: closer for closer, opener in _OPENER_OF.items()}
_BELONGS = frozenset("#@&%‰§†′″*/\\")  # punctuation that belongs to the number or word beside it
_INITIALS = re.compile(r"(?:\w\.){2,}$")


def tags_of(words: Sequence[Span], spans: Sequence[Span]) -> list[int]:
    """Tag every word; both sequences are sorted and do not overlap.

    A word that a span covers in part belongs to that span; one that two spans share belongs to the first.
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
    """Find the likeliest sequence of tags in which no I follows an O or begins the text (Viterbi).

    The tags' probabilities are read as those of a chain: a span continues over a word with the probability of I there,
    given that the word before is in a span. So a span's length does not depend on the probability that it is one, which
    matters where only some of the facts were marked in training. `threshold` trades precision for recall: at t, a span
    begins at a word where the odds of that are at least t to 1 - t. A higher threshold never gives more spans.
    """
    if not 0 < threshold < 1:
        raise ValueError(f"threshold {threshold} is not between 0 and 1")
    price = math.log(threshold / (1 - threshold))
    out, within = 0.0, -math.inf  # the best scores so far, ending outside and inside a span
    back: list[tuple[bool, bool]] = []  # for each word: a span ends before it, one continues over it
    for ends, begins, goes_on in chain_scores(log_probs_N3):
        ended = within + ends > out
        rest = within + ends if ended else out
        fresh, longer = rest + begins - price, within + goes_on
        back.append((ended, longer >= fresh))
        out, within = rest + math.log1p(-math.exp(begins)), max(fresh, longer)
    return _trace_tags(back, within > out)


def chain_scores(log_probs_N3: NDArray[np.floating]) -> Iterator[tuple[float, float, float]]:
    """Yield for each word the log-probabilities that a span ends before it, begins at it, or continues over it.

    The beginning is given that no span continues, the others that a span holds the word before.
    """
    tiny = 1e-9
    before = 0.0
    for outside, begin, inside in np.exp(np.asarray(log_probs_N3, dtype=np.float64)).tolist():
        goes_on = min(max(inside / max(before, tiny), tiny), 1 - tiny) if before else tiny
        begins = min(max(begin / max(begin + outside, tiny), tiny), 1 - tiny)
        yield math.log1p(-goes_on), math.log(begins), math.log(goes_on)
        before = begin + inside


def _trace_tags(back: Sequence[tuple[bool, bool]], is_within: bool) -> list[int]:
    """Follow the best sequence of tags back from its end."""
    tags: list[int] = []
    for ended, longer in reversed(back):
        tags.append((INSIDE if longer else BEGIN) if is_within else OUTSIDE)
        is_within = True if is_within and longer else ended
    return tags[::-1]


def spans_of(text: str, words: Sequence[Span], tags: Sequence[int]) -> list[Span]:
    """Give the spans that valid tags mark: trimmed, sorted, without overlap, and not of punctuation only."""
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
    """Trim blanks and outer punctuation, keeping the last letter's combining marks; give None if nothing is left.

    Punctuation that belongs to the value stays: a sign before a number, a percent sign, a bracket whose partner is
    inside, the last point of initials ("U.S.").
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
