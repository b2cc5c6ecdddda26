"""The sentence splitter of the whole project. It follows rules and uses no model, so it splits the same everywhere.

A sentence ends at ``.``, ``!``, ``?`` or ``…`` (with any quotes and brackets that close there) if blanks and then a
capital letter or a digit follow, at the full stop of ``。！？``, and at an empty line. It does not end after an
abbreviation of a title, a month or a reference, nor after an initial ("J. R. R. Tolkien", "the U.S. Navy").

Limits: a sentence that begins with a small letter is joined to the one before it, and one that ends in an initial
("vitamin C.") to the one after it. Both make a sentence too long, never too short.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from string import whitespace

_OPENERS, _CLOSERS = "\"'“‘«(\\[", "\"'”’»)\\]"


_BREAK = re.compile(
    rf"(?P<stop>[.!?…])[{_CLOSERS}]*\s+(?=[{_OPENERS}]*[^\W_a-z])|[。！？][{_CLOSERS}」』]*\s*|\n[^\S\n]*\n\s*"
)

_BEHIND_MARK = f"!！{_CLOSERS}」』"

_ABBREVIATIONS = (
    "approx aug ca capt cf col dec dr ed eds feb fig figs fr ft gen gov hon jan lt mr mrs ms mt no nos nov oct"
    " p pp pres prof rep rev sen sep sept sgt st vol vols vs"
)

_ABBREVIATED = frozenset(_ABBREVIATIONS.split())

_LAST_WORD = re.compile(r"[^\s(\[\"'“‘]+$")

_LONGEST_WORD = 40


def sentence_ends(text: str) -> list[int]:
    """Give the offset at which each sentence ends and the next begins, ascending; the last is the length of the text.

    The blanks between two sentences belong to the first. An empty text has none.
    """
    ends = [
        found.end()
        for found in _BREAK.finditer(text)
        if found.group("stop") != "." or not _is_abbreviation_stop(text, found.start())
    ]
    if text and (not ends or ends[-1] != len(text)):
        ends.append(len(text))
    return ends


def is_question(text: str) -> bool:
    """Tell whether a text ends in a question mark, maybe with exclamation marks, quotes or brackets behind it."""
    bare = text.rstrip(_BEHIND_MARK + whitespace)
    return bare.endswith(("?", "？"))


def sentence_around(ends: Sequence[int], start: int, end: int) -> tuple[int, int]:
    """Give the bounds of the sentence, or sentences, that hold ``text[start:end]``; `ends` is from `sentence_ends`."""
    before = bisect_right(ends, start)
    after = min(bisect_left(ends, end), len(ends) - 1)
    return (ends[before - 1] if before else 0), ends[after]


def _is_abbreviation_stop(text: str, stop: int) -> bool:
    """Tell whether the full stop at `stop` belongs to an abbreviation or an initial."""
    found = _LAST_WORD.search(text[max(0, stop - _LONGEST_WORD) : stop])
    if found is None:
        return False
    _, dot, last = found.group().rpartition(".")
    initial = len(last) == 1 and (last.isupper() or (last.isalpha() and dot != ""))
    return initial or last.lower() in _ABBREVIATED
