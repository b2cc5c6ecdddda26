"""A document cut into chunks of so many tokens, as the seed annotator reads it (appendix, annotation prompt)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from colmlm.kb.texts.searched import sentence_ends

CHUNK_TOKENS = 512

# Endpoints count tokens differently, so this estimates: a word of seven letters is about one token, a sign one.
_PIECE = re.compile(r"[A-Za-z]{1,7}|[0-9]{1,3}|[^\sA-Za-z0-9]")


def rough_tokens(text: str) -> int:
    """Estimates how many tokens a text has."""
    return sum(1 for _ in _PIECE.finditer(text))


def chunks(text: str, size: int = CHUNK_TOKENS) -> Iterator[tuple[int, int]]:
    """Yields the offsets of chunks of at most `size` tokens, in order, without the blanks between them.

    A chunk ends where a sentence ends. Only a sentence that is too long by itself is cut, at a blank if there is one.
    """
    start = reached = tokens = 0
    for end in sentence_ends(text):
        here = rough_tokens(text[reached:end])
        if tokens and tokens + here > size:
            yield from _stripped(text, start, reached)
            start, tokens = reached, 0
        while here > size:
            cut = _cut(text, start, end, size)
            yield from _stripped(text, start, cut)
            start, here = cut, rough_tokens(text[cut:end])
        tokens += here
        reached = end
    yield from _stripped(text, start, reached)


def _stripped(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    piece = text[start:end]
    if piece.strip():
        yield start + len(piece) - len(piece.lstrip()), start + len(piece.rstrip())


def _cut(text: str, start: int, end: int, size: int) -> int:
    """Finds where to cut a sentence that is too long: after `size` tokens, at the blank before that if there is one."""
    pieces = _PIECE.finditer(text, start, end)
    limit = next(found.end() for number, found in enumerate(pieces, start=1) if number == size)
    blank = max(text.rfind(" ", start, limit), text.rfind("\n", start, limit))
    return blank + 1 if blank > start else limit
