"""Searched texts: the stretches by which a text is found, and the words it is found by.

What they give is stored (`kb.facts.sentences`), so a change of these rules, or of those in `kb.texts.sentences`,
needs a migration that writes the sentences anew.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from itertools import pairwise

from colmlm.kb.texts.sentences import sentence_ends
from colmlm.kb.texts.wording import UNSPACED, Span

MOST_WORDS = 60
MOST_CHARACTERS = 500  # at most 2,000 bytes, which PostgreSQL still takes for one word

_BLANKLESS = re.compile(r"\S+")
_SEARCHED = re.compile(rf"[{UNSPACED}]|[^\W_{UNSPACED}]+")
_ASCII_SEARCHED = re.compile("[a-z0-9]+")  # the same, and faster
# Accents, as few questions have them, and what does not show.
_DROPPED = re.compile(
    "[\u0300-\u036f\u00ad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff]"
)


def searched_words(text: str) -> str:
    """Gives the words of a text with a blank between them: letters and digits, without capitals and accents.

    It says nothing that a server's locale could read in another way.
    """
    if text.isascii():
        return " ".join(_ASCII_SEARCHED.findall(text.lower()))
    return " ".join(_SEARCHED.findall(_folded(text)))


def _folded(text: str) -> str:
    bare = _DROPPED.sub("", unicodedata.normalize("NFKD", text)).casefold()
    return unicodedata.normalize("NFKC", bare)


def searched_spans(text: str) -> list[Span]:
    """Gives the spans of a text's sentences. They cover it without a gap, and none is blank; a blank text has none.

    A sentence of more than 60 words or 500 characters, without the blanks around it, is cut into several.
    """
    spans: list[Span] = []
    start = 0
    for end in sentence_ends(text):
        if not text[start:end].isspace():
            spans += parts(text, start, end)
            start = end
    return spans


def parts(text: str, start: int, end: int) -> list[Span]:
    """Cuts what stands between two offsets, which is not blank, into parts of 60 words and 500 characters at most."""
    if end - start <= MOST_CHARACTERS and len(text[start:end].split()) <= MOST_WORDS:
        return [(start, end)]
    words = [piece for found in _BLANKLESS.finditer(text, start, end) for piece in _split(*found.span())]
    pieces = -(-len(words) // MOST_WORDS)
    most = -(-len(words) // pieces)
    starts, first, count = [start], words[0][0], 0
    for word, stop in words:
        if count == most or stop - first > MOST_CHARACTERS:
            starts.append(word)
            first, count = word, 0
        count += 1
    return list(pairwise([*starts, end]))


def _split(start: int, end: int) -> Iterator[Span]:
    """Splits a word that is too long by itself."""
    for at in range(start, end, MOST_CHARACTERS):
        yield at, min(at + MOST_CHARACTERS, end)


def quoted(lexeme: str) -> str:
    """Quotes a lexeme for a query of text search."""
    return "'" + lexeme.replace("\\", "\\\\").replace("'", "''") + "'"
