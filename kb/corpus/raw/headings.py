"""The title that a text gives itself where its format has none: a line "Title:" at its beginning, or a heading."""

from __future__ import annotations

import re

_LONGEST, _MOST_WORDS = 100, 12
_SAID = re.compile(r"\A\s*(?:\S[^\n]*\n){0,9}?title:[ \t]*(\S[^\n]*)$", re.IGNORECASE | re.MULTILINE)
_FIRST = re.compile(r"\A\s*(\S[^\n]*)\n(?:[ \t]*[=\-~*_#]{3,}[ \t]*\n|[ \t]*\n)\s*\S")
_STOPS = (".", ",", ";", ":", "!", "…")


def heading(text: str) -> str | None:
    """Gives the first line where it looks like a heading: short, without a stop, and apart from the text below it."""
    if (said := _SAID.match(text)) is not None and (title := _short(said.group(1))):
        return title
    first = _FIRST.match(text)
    title = _short(first.group(1)) if first else None
    return None if title is None or title.endswith(_STOPS) else title


def _short(line: str) -> str | None:
    """Gives a line without blanks and signs around it, or None if it is too long to be a title or has no letter."""
    title = " ".join(line.split()).strip("#=*_~ ")
    fits = len(title) <= _LONGEST and len(title.split()) <= _MOST_WORDS
    return title if fits and any(character.isalpha() for character in title) else None
