"""Wording: compares texts by their words, whatever their case, blanks and Unicode form.

Every search for erased texts uses it: for the texts of facts while they exist (`Phrases`), and for their digests
afterwards (`kb.facts.erased_texts`). A text is folded (NFKC, case, no invisible characters) and cut into words:
runs of letters and digits, each other sign by itself, and each character of the scripts that write without blanks. Two
texts agree where they have the same words; offsets are those of the original text.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, lru_cache
from typing import Any, NamedTuple, Protocol

from sqlalchemy import ColumnElement, case, func, literal_column, true

Span = tuple[int, int]

# Thai to Khmer, kana, Han and Hangul, in which no blank ends a name, or a particle follows it without one.
UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff"
)
_WORD = re.compile(rf"[{UNSPACED}]|[^\W{UNSPACED}]+|[^\w\s]")
_INVISIBLE = re.compile("[\u00ad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff]")
_ASCII_WORD = re.compile(r"[a-z0-9]+")


FEW = 20  # up to so many phrases, their first words are searched for before a text is cut into words


class ComparedWord(NamedTuple):
    """A word in the form that is compared, and its place in the text."""

    said: str
    start: int
    end: int


class Finder(Protocol):
    """Finds certain texts within other texts."""

    def spans(self, text: str) -> list[Span]:
        """Finds the spans where `text` says one of them, in order."""
        ...


def words(text: str) -> list[ComparedWord]:
    """Gives the words of a text."""
    folded, places = _folded(text)
    found = ((m[0], *m.span()) for m in _WORD.finditer(folded))
    if places is None:
        return [ComparedWord(said, start, end) for said, start, end in found]
    return [ComparedWord(said, places[start][0], places[end - 1][1]) for said, start, end in found]


def normalised(text: str) -> str:
    """Gives the text's words alone, which are the same for any two texts that say the same."""
    return " ".join(_WORD.findall(_folded(text)[0]))


class Phrases:
    """Finds known texts as whole words: "1" is not found in "1981"."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._by_first: dict[str, list[tuple[str, ...]]] = {}
        for phrase in {tuple(word.said for word in words(text)) for text in texts} - {()}:
            self._by_first.setdefault(phrase[0], []).append(phrase)
        for phrases in self._by_first.values():
            phrases.sort(key=len, reverse=True)

    def __bool__(self) -> bool:
        return bool(self._by_first)

    def spans(self, text: str) -> list[Span]:
        """Finds the spans where `text` says one of them, the longest first and none within another."""
        if self._by_first and len(self._by_first) <= FEW:
            folded, _ = _folded(text)
            if not any(first in folded for first in self._by_first):
                return []
        said, found, at = words(text), [], 0
        while at < len(said):
            length = self._length_at(said, at)
            if length:
                found.append((said[at].start, said[at + length - 1].end))
            at += length or 1
        return found

    def _length_at(self, said: Sequence[ComparedWord], at: int) -> int:
        for phrase in self._by_first.get(said[at].said, ()):
            if phrase == tuple(word.said for word in said[at : at + len(phrase)]):
                return len(phrase)
        return 0


class Together:
    """Finds what any of several finders finds."""

    def __init__(self, *finders: Finder) -> None:
        self._finders = finders

    def spans(self, text: str) -> list[Span]:
        """Finds the spans of all finders in `text`, in order; they may overlap."""
        return sorted(span for finder in self._finders for span in finder.spans(text))


def may_say(column: Any, texts: Iterable[str]) -> ColumnElement[bool]:
    """Gives a condition (SQL) for rows whose column may say one of these texts; the caller compares these word by word.

    It searches for the longest plain ASCII word of each text, since a server's `lower` may know no other letters;
    where a text has none, or there are many texts, every row passes.
    """
    chosen = set()
    for text in texts:
        plain = [word.said for word in words(text) if _ASCII_WORD.fullmatch(word.said)]
        chosen.add(max(plain, key=len, default=""))
    if not chosen:
        return ~true()
    if "" in chosen or len(chosen) > FEW:
        return true()
    composed = func.translate(func.normalize(column, literal_column("NFKC")), _invisibles(), "")
    is_ascii = func.octet_length(column) == func.char_length(column)
    folded = func.lower(case((is_ascii, column), else_=_as_ascii(composed)))
    return folded.op("~")("|".join(sorted(chosen)))


def _as_ascii(composed: ColumnElement[str]) -> ColumnElement[str]:
    """Folds the only composed characters whose fold has letters of ASCII, which not every server's `lower` gives."""
    for sharp in "ßẞ":
        composed = func.replace(composed, sharp, "ss")
    return func.translate(composed, "İ", "i")


@cache
def _invisibles() -> str:
    """Every character that is not compared; to try them all takes too long for an import."""
    return "".join(chr(c) for c in range(0x10000) if _INVISIBLE.match(chr(c)))


def _folded(text: str) -> tuple[str, list[Span] | None]:
    """Gives the text in the form that is compared, and each character's place in the original (None: the same)."""
    if text.isascii():
        return text.lower(), None
    simple = text.casefold()
    # Folding either makes a text longer or leaves its characters in their places.
    if (
        len(simple) == len(text)
        and unicodedata.is_normalized("NFKC", text)
        and unicodedata.is_normalized("NFKC", simple)
        and not _INVISIBLE.search(text)
    ):
        return simple, None
    folded: list[str] = []
    places: list[Span] = []
    for start, end in _clusters(text):
        piece = _fold(text[start:end])
        folded.append(piece)
        places += [(start, end)] * len(piece)
    return "".join(folded), places


def _clusters(text: str) -> Iterator[Span]:
    """Yields the spans of pieces that fold independently: a character and those that combine with it."""
    start = 0
    for at in range(1, len(text)):
        if not _joins(text[at]):
            yield start, at
            start = at
    yield start, len(text)


@lru_cache(4096)
def _joins(character: str) -> bool:
    """Says whether a character combines with the one before it: a mark, a jamo, or an invisible one."""
    return (
        unicodedata.category(character)[0] == "M"
        or "\u1160" <= character <= "\u11ff"
        or character in "\uff9e\uff9f"
        or _INVISIBLE.match(character) is not None
    )


@lru_cache(4096)
def _fold(piece: str) -> str:
    composed = unicodedata.normalize("NFKC", _INVISIBLE.sub("", piece))
    return unicodedata.normalize("NFKC", composed.casefold())
