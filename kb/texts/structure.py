"""The structure of a plain text: headings, questions, lead-ins, table headers and terms, and what stands under each.

A sentence of a document often says little without its heading, the question of its FAQ, the lead-in of its list, the
header of its table or the term that it explains. These rules find them by the lines of the text alone, so that they
hold for texts of every format. They give offsets and no words, so nothing here can keep what an erasure removes.

What follows from the structure is stored (`kb.texts.searched`, `kb.facts.sentences`), so a change of these rules needs
a migration that writes the sentences anew.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from sys import maxsize
from typing import NamedTuple

Span = tuple[int, int]

LONGEST_HEADING, MOST_HEADING_WORDS = 110, 14
LONGEST_TERM_WORDS = 8
MANY = 4  # short blocks one after another, which are items and no headings
LONGEST_LEAD, MOST_LED = 200, 400  # characters of one leading line, and of all that lead a sentence

_LINE = re.compile(r"[^\n]*\S[^\n]*")
_BULLET = re.compile(r"\s*(?:[-*+•‣▪–]|\(?[0-9]{1,3}[.)]|\(?[a-zA-Z][.)])\s+\S")
_NUMBERED = re.compile(
    r"(?:§\s*|(?:section|chapter|article|part|appendix)\s+)?([0-9]+(?:\.[0-9]+)*)[.):]?\s+\S", re.IGNORECASE
)
_UNDERLINE = re.compile(r"\s*([=\-~^\"*+#.])\1{2,}\s*")
_MARKED = re.compile(r"\s*(={1,5}|#{1,6})\s+\S")
_ASKED = re.compile(r"\s*Q(?:uestion)?\s*[0-9]*\s*[.:)]", re.IGNORECASE)
_CELL = " | "
_UNNUMBERED = 100  # the level of a heading without a number: below every one that has one


class _Line(NamedTuple):
    """A line that is not blank. `opens` and `closes` say whether blank lines are before and behind it."""

    start: int
    end: int
    indent: int
    text: str
    opens: bool
    closes: bool

    @property
    def span(self) -> Span:
        return self.start, self.end


@dataclass(frozen=True, slots=True)
class TextStructure:
    """The headings of a text, and its leading lines: `leads[n]`, outermost first, lead it from `offsets[n]` on."""

    headings: tuple[Span, ...] = ()
    offsets: tuple[int, ...] = ()
    leads: tuple[tuple[Span, ...], ...] = ()

    def led_by(self, offset: int) -> tuple[Span, ...]:
        """Give the lines, such as headings, that lead the text at an offset, outermost first."""
        at = bisect_right(self.offsets, offset) - 1
        return self.leads[at] if at >= 0 else ()

    def section_of(self, offset: int) -> int:
        """Give the offset at which the section of an offset begins: its heading, or 0 before all headings."""
        at = bisect_right(self.headings, (offset, maxsize)) - 1
        return self.headings[at][0] if at >= 0 else 0

    def heading_at(self, offset: int) -> Span | None:
        """Give the heading, with a line that underlines it, around an offset; None where there is none."""
        at = bisect_right(self.headings, (offset, maxsize)) - 1
        return self.headings[at] if at >= 0 and offset < self.headings[at][1] else None


def structure_of(text: str) -> TextStructure:
    """Find the structure of a text, in one pass over its lines."""
    lines = _lines(text)
    found = _StructureFinder(text, lines)
    for number in range(len(lines)):
        found.take(number)
    return found.structure()


def is_section_number(text: str, start: int, end: int) -> bool:
    """Tell whether ``text[start:end]`` is the number of a section or an item, which answers nothing."""
    said = text[start:end].strip()
    if not re.fullmatch(r"(?:§\s*)?[0-9]+(?:\.[0-9]+)*[.)]?|\(?[a-z][.)]", said):
        return False
    line = text[text.rfind("\n", 0, start) + 1 : start]
    follows = text[end : end + 3]
    leads_line = not line.strip() and bool(re.match(r"[.):]?\s+[^\W\d_]", follows))
    is_referred = re.search(
        r"(?:section|chapter|clause|article|paragraph|appendix|§)s?\s*$", line, re.IGNORECASE
    )
    return bool(is_referred) or (leads_line and ("." in said or ")" in said or follows[:1] in ".)"))


def _lines(text: str) -> list[_Line]:
    found = [match.span() for match in _LINE.finditer(text)]
    lines = []
    for number, (start, end) in enumerate(found):
        said = text[start:end]
        bare = said.strip()
        indent = len(said) - len(said.lstrip())
        begin = start + indent
        before = found[number - 1][1] if number else 0
        after = found[number + 1][0] if number + 1 < len(found) else len(text)
        opens = not number or text.count("\n", before, start) > 1
        closes = number + 1 == len(found) or text.count("\n", end, after) > 1
        lines.append(_Line(begin, begin + len(bare), indent, bare, opens, closes))
    return lines


@dataclass(slots=True)
class _StructureFinder:
    """Walks over the lines of a text, and notes its headings and the offsets at which the leading lines change."""

    text: str
    lines: Sequence[_Line]
    path: list[tuple[int, Span]] = field(default_factory=list)
    lead: Span | None = None
    headings: list[Span] = field(default_factory=list)
    noted: dict[int, tuple[Span, ...]] = field(default_factory=dict)
    after_heading: bool = False
    in_list: bool = False

    def take(self, number: int) -> None:
        line = self.lines[number]
        if _UNDERLINE.fullmatch(line.text):
            if self.after_heading and self.headings[-1][1] == self.lines[number - 1].end:
                self.headings[-1] = (self.headings[-1][0], line.end)
            return
        level = self._level(number)
        if level is not None:
            self._open(number, level)
            return
        if line.opens and not (self.in_list and _BULLET.match(line.text)):
            self._begin(number)
        self._note(line.start)
        self.after_heading = False
        self._lead_of_next(number)

    def structure(self) -> TextStructure:
        offsets = sorted(self.noted)
        kept_offsets, kept = [], list[tuple[Span, ...]]()
        for offset in offsets:
            leads = self.noted[offset]
            if not kept or kept[-1] != leads:
                kept_offsets.append(offset)
                kept.append(leads)
        return TextStructure(tuple(self.headings), tuple(kept_offsets), tuple(kept))

    def _open(self, number: int, level: int) -> None:
        """Begin the section of a heading of this level.

        One without a number is beside the last heading, below one right before it, and above one right behind it.
        """
        line = self.lines[number]
        if level == _UNNUMBERED and self.path:
            if self.after_heading:
                level = self.path[-1][0] + 1
            elif number + 1 == len(self.lines) or self._level(number + 1) is None:
                level = max(level, self.path[-1][0])
        while self.path and self.path[-1][0] >= level:
            self.path.pop()
        self.lead, self.in_list = None, False
        self._note(line.start)
        self.path.append((level, line.span))
        self.headings.append(line.span)
        self._note(line.end)
        self.after_heading = True

    def _begin(self, number: int) -> None:
        """Begin a block of text at a line. The lead of the block before ends, unless its list begins here."""
        line, before = self.lines[number], self.lines[number - 1] if number else None
        self.lead, self.in_list = None, False
        leads = before is not None and before.text.endswith(":") and not self.after_heading
        if before is not None and leads and (_BULLET.match(line.text) or line.indent > before.indent):
            self.lead, self.in_list = self._line_of(before), True

    def _lead_of_next(self, number: int) -> None:
        """Let a line lead the lines behind it in its block, where it is a lead-in, the header of a table or a term."""
        line = self.lines[number]
        if line.closes:
            return
        after = self.lines[number + 1]
        if _CELL in line.text and _CELL in after.text:
            if line.opens:
                self.lead = self._line_of(line)
        elif line.text.endswith(":") and not self._is_asked_with(line):
            self.lead, self.in_list = self._line_of(line), True
        elif self._is_term(line, after):
            self.lead = self._line_of(line)

    def _is_term(self, line: _Line, after: _Line) -> bool:
        """Tell whether a line is a term that the next one explains."""
        if _UNDERLINE.fullmatch(after.text) or _BULLET.match(after.text):
            return False
        num_words = len(line.text.split())
        is_short = num_words <= LONGEST_TERM_WORDS and line.text[-1] not in ".,;!"
        if not is_short or _BULLET.match(line.text):
            return False
        return after.indent > line.indent or (
            len(after.text.split()) >= max(6, 2 * num_words)
            and after.text[-1] in ".!"
            and after.text[0].isupper()
        )

    def _is_asked_with(self, line: _Line) -> bool:
        return bool(_ASKED.match(line.text)) and "?" in line.text

    def _level(self, number: int) -> int | None:
        """Give the level of a heading, the least for the outermost; None for a line that is no heading."""
        line = self.lines[number]
        if (marked := _MARKED.match(line.text)) and not line.text.endswith("."):
            return len(marked.group(1))
        after = self.lines[number + 1] if number + 1 < len(self.lines) else None
        if after is None or not line.opens or not _may_head(line.text):
            return None
        if not line.closes:
            if _UNDERLINE.fullmatch(after.text) and abs(len(after.text) - len(line.text)) <= 3:
                return 1 + '=-~^"*+#.'.index(after.text[0])
            if line.text.isupper() and not line.indent and after.indent:
                return 1
            if line.text.endswith("?") and (line.text[0].isupper() or _ASKED.match(line.text)):
                return _UNNUMBERED + 1
            return None
        if numbered := _NUMBERED.match(line.text):
            return 10 + numbered.group(1).count(".")
        if _BULLET.match(line.text) or not (
            line.text[0].isupper() or line.text[0].isdigit() or line.text[0] in "\"'“‘(`-"
        ):
            return None
        if self._is_one_of_many(number):
            return None
        return _UNNUMBERED

    def _is_one_of_many(self, number: int) -> bool:
        """Tell whether a short block stands among others, so that they are items and no headings."""

        return self._count_short_blocks(number, -1) + self._count_short_blocks(number, 1) - 1 >= MANY

    def _count_short_blocks(self, number: int, step: int) -> int:
        """Count the successive short blocks from a line on, in one direction (`step`), up to one more than `MANY`."""
        count = 0
        while 0 <= number < len(self.lines) and count <= MANY:
            line = self.lines[number]
            if not (line.opens and line.closes and _may_head(line.text)) or line.text.endswith("?"):
                break
            count, number = count + 1, number + step
        return count

    def _line_of(self, line: _Line) -> Span:
        return max(line.start, line.end - LONGEST_LEAD), line.end

    def _note(self, offset: int) -> None:
        leads = [span for _, span in self.path]
        if self.lead is not None:
            leads.append(self.lead)
        self.noted[offset] = tuple(_fitting(leads))


def _may_head(said: str) -> bool:
    """Tell whether a line is short enough for a heading, has a letter, and does not end in a stop."""
    if len(said) > LONGEST_HEADING or len(said.split()) > MOST_HEADING_WORDS or _CELL in said:
        return False
    return said[-1] not in ".,;:!…|" and any(character.isalpha() for character in said)


def _fitting(leads: Sequence[Span]) -> list[Span]:
    """Keep the lines that lead a sentence from the innermost outwards, up to `MOST_LED` characters."""
    kept: list[Span] = []
    room = MOST_LED
    for start, end in reversed(leads):
        room -= end - start
        if room < 0:
            break
        kept.append((start, end))
    return kept[::-1]
