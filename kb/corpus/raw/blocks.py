"""Joins blocks of text, as Markdown and HTML have them, to one plain text."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

HARD_BREAK = "\v"  # a line end that is kept
CELL_END = " | "
_BLANKS = re.compile(r"[ \t\n]+")


@dataclass(slots=True)
class Blocks:
    """Collects pieces of text into blocks: an empty line separates paragraphs, and a line end rows and items."""

    _blocks: list[tuple[str, str]] = field(default_factory=list)
    _pieces: list[str] = field(default_factory=list)

    def add(self, piece: str) -> None:
        """Adds text to the open block."""
        self._pieces.append(piece)

    def strip_end(self, piece: str) -> None:
        """Removes this piece again where it was added last."""
        if self._pieces and self._pieces[-1] == piece:
            self._pieces.pop()

    def close(self, *, after: str = "\n\n", verbatim: bool = False) -> str:
        """Ends the open block; `after` separates it from the next. Runs of blanks in it become one, unless verbatim."""
        text = "".join(self._pieces)
        self._pieces.clear()
        if verbatim:
            text = text.strip("\n")
        else:
            lines = (_BLANKS.sub(" ", line).strip() for line in text.split("\v"))
            text = "\n".join(line for line in lines if line)
        if text.strip():
            self._blocks.append((text, after))
        elif self._blocks and len(after) > len(self._blocks[-1][1]):
            self._blocks[-1] = (self._blocks[-1][0], after)
        return text

    def drop_first(self, text: str) -> None:
        """Drops the first block where it equals this text, a heading that became the title."""
        if self._blocks and self._blocks[0][0] == text:
            del self._blocks[0]

    def text(self) -> str:
        self.close()
        whole = "".join(text + after for text, after in self._blocks)
        return whole.rstrip("\n")
