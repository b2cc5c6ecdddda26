"""Pieces of a file: its documents and refusals one by one, as the readers of files yield them."""

from __future__ import annotations

from typing import NamedTuple

from colmlm.kb.corpus.format import Parsed, Refusal


class ReadPiece(NamedTuple):
    """What was read from one line, row or file; `parsed` is None where there is nothing yet.

    `reached` is its end as an offset in the file, in bytes.
    """

    parsed: Parsed | None
    line: int
    reached: int


def refused(document: str, reason: str, line: int = 0, reached: int = 0) -> ReadPiece:
    """Gives the piece that refuses a document, a line or a file."""
    return ReadPiece(Parsed(None, (Refusal(document, 0, reason),)), line, reached)
