"""Completes spans: none cuts a number, a date, a name or a quoted title, and none ends in words that say nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence

from colmlm.model.annotate.bio import Span
from colmlm.model.annotate.wholes import Wholes

_FIRST = re.compile(r"\s*(and|or|the|an?)\s+(?=\S)", re.IGNORECASE)
_LAST = re.compile(
    r"[\s,;:(]+(a|an|and|as|at|but|by|for|from|in|into|of|on|or|than|the|to|which|who|with)\s*\Z"
)
_BREAK = re.compile(r"\s*\n[ \t\r]*\n\s*")  # between a heading or a paragraph and the next one
_MOST_ROUNDS = 10  # two spans that became one may cut a whole that neither did
_LEFT_ALONE = frozenset(("what", "when", "where", "which", "who", "whom", "whose", "why", "how"))  # "The Who"


def whole_spans(text: str, spans: Sequence[Span], wholes: Wholes | None = None) -> list[Span]:
    """Gives sorted spans without overlap completed to wholes and narrowed; those that then overlap are one. Of a span
    that goes on in another paragraph only the longest part is taken.

    What it gives it leaves as it is. `wholes` are those of the text, where they are known.
    """
    wholes = wholes or Wholes(text)
    for _ in range(_MOST_ROUNDS):
        before, spans = list(spans), _completed(text, spans, wholes)
        if spans == before:
            break
    return list(spans)


def _completed(text: str, spans: Sequence[Span], wholes: Wholes) -> list[Span]:
    completed: list[Span] = []
    for start, end in spans:
        start, end = wholes.around(*_in_one_paragraph(text, start, end))
        if completed and start < completed[-1][1]:
            completed[-1] = (completed[-1][0], max(end, completed[-1][1]))
        else:
            completed.append((start, end))
    return [narrow(text, start, end, wholes) for start, end in completed]


def _in_one_paragraph(text: str, start: int, end: int) -> Span:
    breaks = [found.span() for found in _BREAK.finditer(text, start, end)]
    parts = zip([start, *(last for _, last in breaks)], [*(first for first, _ in breaks), end], strict=True)
    return max(parts, key=lambda part: part[1] - part[0])


def narrow(text: str, start: int, end: int, wholes: Wholes) -> Span:
    """Takes blanks, articles and "and" off the beginning, and prepositions off the end, but nothing off a whole."""
    end = start + len(text[start:end].rstrip())
    while (
        (found := _LAST.search(text, start, end))
        and found.start() > start
        and _is_whole(wholes, *found.span(1))
    ):
        end = found.start()
    while (found := _FIRST.match(text, start, end)) and _is_whole(wholes, *found.span(1)):
        if text[found.end() : end].lower() in _LEFT_ALONE:
            break
        start = found.end()
    return end - len(text[start:end].lstrip()), end


def _is_whole(wholes: Wholes, start: int, end: int) -> bool:
    return wholes.at(start) == (start, end)
