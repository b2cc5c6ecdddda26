"""Wording: compares texts by their words, whatever their case, blanks, Unicode form, quotes, hyphens and markup.

Every search for erased texts uses it: for the texts of facts while they exist (`Phrases`), and for their digests
afterwards (`kb.facts.suppression`). A text is folded and cut into words: runs of letters and digits, each other sign
by itself, and each character of the scripts that write without blanks. Folding takes these steps:

- character references of HTML that end with a semicolon are read (`&nbsp;`, `&#39;`, `&amp;nbsp;`);
- quotes become `'` or `"`; hyphens, dashes and the minus sign become `-`;
- case, Unicode form (NFKC) and invisible characters are dropped;
- a backtick between letters becomes `'`.

The marks `*`, `_`, `~`, backticks and backslashes are signs like others, unless they are markup: they wrap words in
pairs (`**x**`), or a backslash escapes a sign. Of a value, marks of markup are dropped, and its own ones are needed
("A*", `x_y`). Of a text, marks of markup and underscores between letters count only where the value has such a mark.
A list's `*`, and markup beside a blank, begin and end nothing: "a *fast* one" does not say "A*".

A word that is cut by a hyphen at the end of a line, or by markup within it, is compared in pieces and in one piece.
Two texts agree where they have the same words; offsets are those of the original text. `LIMITS` names the rest.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from html import unescape
from html.entities import html5
from itertools import product
from typing import Any, NamedTuple, Protocol

from sqlalchemy import Boolean, ColumnElement, UnaryExpression, case, false, func, literal_column, or_, true
from sqlalchemy.sql.operators import custom_op

Span = tuple[int, int]
Reading = tuple[tuple[str, ...], int]  # successive words, and the number of the word after them

LIMITS = (
    "other words for it: translations, transliterations, inflected forms, abbreviations, numbers in words",
    "misspellings, letters without their accents, and letters that only look alike",
    "words split or joined in other ways than by a hyphen at the end of a line or by markup in pairs",
    "values cut by tags of HTML, by percent-encoding or by the escapes of a programming language",
    "texts in pictures, and in compressed or encoded data",
)

# Thai to Khmer, kana, Han and Hangul, in which no blank ends a name, or a particle follows it without one.
UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff"
)
_INVISIBLE = re.compile("[\u00ad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff]")
_APOSTROPHES = (
    "\u00b4\u02b9\u02bb\u02bc\u02bd\u02c8\u02ca\u02cb\u2018\u2019\u201a\u201b\u2032\u2035\u2039\u203a\uff07"
)
_QUOTES = "\u00ab\u00bb\u02ba\u201c\u201d\u201e\u201f\u2033\u2036\u301d\u301e\u301f\uff02"
_HYPHENS = "\u058a\u05be\u2010\u2011\u2012\u2013\u2014\u2015\u2043\u2212\ufe58\ufe63\uff0d"
_BLANKS = "\u00a0\u2007\u202f"
_MARKS = r"*_~`\\"
_LINE_ENDS = "\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"

_SIGNS = {
    ord(c): to
    for every, to in zip((_APOSTROPHES, _QUOTES, _HYPHENS, _BLANKS), "'\"- ", strict=True)
    for c in every
}
_SIGN = re.compile(f"[{_APOSTROPHES}{_QUOTES}{_HYPHENS}{_BLANKS}]")
_REFERENCE = re.compile(r"&(?:amp;)*(#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[a-zA-Z][a-zA-Z0-9]{1,31});")
_SOFT_HYPHEN_AT_END = re.compile(rf"\u00ad(?=[^\S{_LINE_ENDS}]*[{_LINE_ENDS}])")
_TICK = re.compile(r"(?<=[^\W_])`(?=[^\W_])")
_WORD = re.compile(rf"[{UNSPACED}]|[^\W_{UNSPACED}]+|[^\w\s]|_")
_MARK = re.compile(rf"[{_MARKS}]")
_LETTER = rf"[^\W\d_{UNSPACED}]"
_CUTTING = re.compile(rf"[*~]+|-[^\S{_LINE_ENDS}]*[{_LINE_ENDS}]\s*")
_CUT = re.compile(rf"(?<={_LETTER})(?:{_CUTTING.pattern})(?={_LETTER})")
_ASCII_WORD = re.compile(r"[a-z0-9]+")
_LISTING = re.compile(rf"(?:^|[{_LINE_ENDS}])[^\S{_LINE_ENDS}]*(\*)(?=[^\S{_LINE_ENDS}]\s*[^\s\\])")
_LISTED = re.compile(rf"^(?:\s|\\\s)*\*(?=[^\S{_LINE_ENDS}]\s*[^\s\\])")
_LETTER_OR_DIGIT = re.compile(r"[^\W_]")
# Runs of marks, escapes, and the blank lines over which no markup reaches.
_MARKING = re.compile(rf"\*+|_+|~+|`+|\\(?:[!-/:-@\[-`{{-~]|[^\S{_LINE_ENDS}]*[{_LINE_ENDS}])|\n[^\S\n]*\n")

# Earlier program versions compared such words, without reading references and signs. Their digests are still in use.
_WORD_BEFORE = re.compile(rf"[{UNSPACED}]|[^\W{UNSPACED}]+|[^\w\s]")
_OTHERWISE_BEFORE = re.compile(f"[&\u00ad{_MARKS}{_APOSTROPHES}{_QUOTES}{_HYPHENS}]")

LONGEST_SOUGHT_WORD = 40  # characters of a word that the server searches for
FEW_PHRASES = 20  # up to so many phrases, their first words are searched for before a text is cut into words
# Of a value with more cut words only two readings are compared: all of them in pieces, and all in one piece.
MANY_CUTS = 4
MANY_READINGS = 64  # of as many words of a text; those that leave out few marks, or keep few, come first
MANY_WRAPS = 16  # marks of markup between two words


class ComparedWord(NamedTuple):
    """A word in the form that is compared, and its place in the text."""

    said: str
    start: int
    end: int


class Finder(Protocol):
    """Finds certain texts within other texts."""

    def spans(self, text: str) -> list[Span]:
        """Find the spans where `text` says one of the sought texts, in order."""
        ...


class ComparedText(NamedTuple):
    """The words of a text, with cut words in pieces.

    `joined` maps the number of a first piece to the words that it begins, each in one piece with the number of the next
    word. `skipped` maps the number of a mark of markup that may be left out to that of the next word. A phrase of
    several words begins at no number in `no_first` and ends at none in `no_last`.
    """

    words: list[ComparedWord]
    joined: Mapping[int, list[tuple[str, int]]]
    skipped: Mapping[int, int]
    no_first: Collection[int] = ()
    no_last: Collection[int] = ()

    @classmethod
    def of(cls, text: str) -> ComparedText:
        """Cut a text into words."""
        return cls.of_folded(*_fold_text(text))

    @classmethod
    def of_folded(cls, folded: str, places: FoldedPlaces | None) -> ComparedText:
        """Cut a folded text into words."""
        found, markup = list(_WORD.finditer(folded)), WordMarkup.of(folded)
        joined = _join_cut_words(_cuts(folded, markup), found)
        return cls(_place_words(found, places), joined, *markup.number_marks(folded, found))

    def steps(self, at: int) -> Iterator[tuple[str, int]]:
        """Yield the words that can be read at number `at`, in pieces or in one piece, each with the next number."""
        if at < len(self.words):
            yield self.words[at].said, at + 1
            yield from self.joined.get(at, ())

    def read_words_from(self, at: int, size: int) -> list[Reading]:
        """Give every reading of `size` words from number `at` on, with the next number; at most `MANY_READINGS`."""
        if size > 1 and at in self.no_first:
            return []
        if not (self.joined or self.skipped or self.no_last):
            taken = tuple(word.said for word in self.words[at : at + size])
            return [(taken, at + size)] if len(taken) == size else []
        read: list[tuple[int, int, Reading]] = [(0, 0, ((), at))]
        for _ in range(size):
            read = [
                (kept + (begin in self.skipped), left + skips, ((*before, said), to))
                for kept, left, (before, then) in read
                for skips, begin in enumerate(self._begins(then) if before else [then])
                for said, to in self.steps(begin)
            ]
            if len(read) > MANY_READINGS:
                read.sort(key=lambda one: min(one[:2]))
                del read[MANY_READINGS:]
        return [reading for *_, reading in read if size == 1 or reading[1] - 1 not in self.no_last]

    def end_of(self, phrase: Sequence[str], at: int) -> int:
        """Give the number of the word behind this phrase; 0 where the text does not say it from word `at` on."""
        if len(phrase) > 1 and at in self.no_first:
            return 0
        if not (self.joined or self.skipped or self.no_last):
            end = at + len(phrase)
            return end if tuple(word.said for word in self.words[at:end]) == phrase else 0
        begins, ends = {at}, {0}
        for wanted in phrase:
            ends = {to for begin in begins for said, to in self.steps(begin) if said == wanted}
            begins = {begin for end in ends for begin in self._begins(end)}
        return max((end for end in ends if len(phrase) == 1 or end - 1 not in self.no_last), default=0)

    def _begins(self, at: int) -> list[int]:
        """Give the numbers of the words that may come next, as marks are left out or not."""
        begins = [at]
        while (after := self.skipped.get(begins[-1])) and len(begins) <= MANY_WRAPS:
            begins.append(after)
        return begins


class WordMarkup(NamedTuple):
    """The marks of a folded text that may be skipped: `wrapping` ones in values and texts, `others` in texts alone.

    `opening` and `closing` are the `wrapping` marks that wrap words in pairs.
    """

    wrapping: list[Span]
    others: list[Span]
    opening: list[Span]
    closing: list[Span]

    @classmethod
    def of(cls, folded: str) -> WordMarkup:
        """Find the marks that wrap words in pairs within a paragraph, escapes, and underscores between letters."""
        markup = cls([], [], [], [])
        if not _MARK.search(folded):
            return markup
        openers: dict[str, list[Span]] = {}
        last = worded = 0
        for found in _MARKING.finditer(folded):
            start, end = found.span()
            worded = last if _LETTER_OR_DIGIT.search(folded, last, start) else worded
            last = end
            if (sign := found[0][0]) == "\n":
                openers.clear()
            elif sign == "\\":
                markup._add_escape(folded, start)
            else:
                markup._add_run(folded, (start, end), openers.setdefault(sign, []), worded)
        return markup

    def number_marks(
        self, folded: str, found: Sequence[re.Match[str]]
    ) -> tuple[dict[int, int], set[int], set[int]]:
        """Give `skipped`, `no_first` and `no_last` of a `ComparedText` with these words."""
        if not _MARK.search(folded):
            return {}, set(), set()
        numbers = {match.start(): number for number, match in enumerate(found)}
        skipped = {
            numbers[start]: numbers[start] + end - start for start, end in (*self.wrapping, *self.others)
        }
        listing = {numbers[match.start(1)] for match in _LISTING.finditer(folded)}
        ended = {numbers[end - 1] for _, end in self.closing if folded[end : end + 1].isspace()}
        begun = {numbers[start] for start, _ in self.opening if folded[start - 1 : start].isspace()}
        return skipped, listing | ended, listing | begun

    def blank_out_marks(self, folded: str) -> str:
        """Give the text with blanks in place of markup that is no part of a value."""
        pieces: list[str] = []
        last = 0
        if listed := _LISTED.match(folded):
            folded = " " * listed.end() + folded[listed.end() :]
        for start, end in sorted(self.wrapping):
            pieces += (folded[last:start], " " * (end - start))
            last = end
        return "".join((*pieces, folded[last:]))

    def _add_escape(self, folded: str, at: int) -> None:
        """Note the backslash that escapes a sign as markup. One before another backslash may belong to a value."""
        escaped = folded[at + 1]
        (self.others if escaped == "\\" else self.wrapping).append((at, at + 1))
        if escaped == "_" and folded[at - 1 : at].isalnum() and folded[at + 2 : at + 3].isalnum():
            self.others.append((at + 1, at + 2))

    def _add_run(self, folded: str, run: Span, openers: list[Span], worded: int) -> None:
        """Pair a run of marks with open ones before it that a letter or digit follows, or let it open markup itself."""
        start, end = run
        opens, closes = _sides(folded, start, end)
        while closes and start < end and openers and openers[-1][1] <= worded:
            first, begun = openers.pop()
            size = min(end - start, begun - first)
            self.opening.append((first, first + size))
            self.closing.append((end - size, end))
            self.wrapping.extend((self.opening[-1], self.closing[-1]))
            end -= size
            if first + size < begun:
                openers.append((first + size, begun))
        if opens and start < end:
            openers.append((start, end))
        if folded[start] == "_" and _is_within(folded, *run):
            self.others.append(run)


def _is_within(folded: str, start: int, end: int) -> bool:
    return folded[start - 1 : start].isalnum() and folded[end : end + 1].isalnum()


def _sides(folded: str, start: int, end: int) -> tuple[bool, bool]:
    """Say whether a run of marks can open markup, and whether it can close it, by the characters beside it.

    Within a word two marks do ("J**ea**n"), but one does not, and none between digits ("5*3", "2**10", `x_y`).
    """
    before, after = folded[start - 1 : start], folded[end : end + 1]
    if _is_within(folded, start, end):
        both = folded[start] in "*~" and end - start > 1 and before.isalpha() and after.isalpha()
        return both, both
    opens = not before.isalnum() and bool(after.strip())
    closes = not after.isalnum() and bool(before.strip())
    return opens, closes


def words_of_text(text: str) -> list[ComparedWord]:
    """Give the words of a text without markup, with cut words in pieces."""
    folded, places = _fold_text(text)
    return _place_words(list(_WORD.finditer(WordMarkup.of(folded).blank_out_marks(folded))), places)


def words_before(text: str) -> list[ComparedWord] | None:
    """Give the words of a text as earlier program versions compared them; None where they are the same."""
    folded, places = _folded_letters(text)
    if not (_OTHERWISE_BEFORE.search(text) or _OTHERWISE_BEFORE.search(folded)):
        return None
    return _place_words(list(_WORD_BEFORE.finditer(folded)), None if places is None else FoldedPlaces(places))


def normalise_wording(text: str) -> str:
    """Give a text's words, joined by blanks, without markup and with cut words in pieces."""
    folded, _ = _fold_text(text)
    return " ".join(_WORD.findall(WordMarkup.of(folded).blank_out_marks(folded)))


def normalised_before(text: str) -> str:
    """Give a text's words, joined by blanks, as earlier program versions compared them."""
    return " ".join(_WORD_BEFORE.findall(_folded_letters(text)[0]))


def forms_of_text(text: str) -> tuple[str, ...]:
    """Give a text's words, joined by blanks, in every reading, the normalised one first. Equal texts share a form."""
    folded, _ = _fold_text(text)
    return _forms(folded, WordMarkup.of(folded))


def forms_said(text: str) -> tuple[str, ...]:
    """Give the forms of the values that a whole text says: its own, and those without marks that it may leave out."""
    folded, _ = _fold_text(text)
    markup = WordMarkup.of(folded)
    without = markup._replace(wrapping=markup.wrapping + markup.others)
    return tuple(dict.fromkeys((*_forms(folded, markup), *_forms(folded, without))))


def _forms(folded: str, markup: WordMarkup) -> tuple[str, ...]:
    value, cuts, either = markup.blank_out_marks(folded), _cuts(folded, markup), (False, True)
    few = len(cuts) <= MANY_CUTS
    choices = product(either, repeat=len(cuts)) if few else ((one,) * len(cuts) for one in either)
    return tuple(dict.fromkeys(" ".join(_WORD.findall(_remove_cuts(value, cuts, one))) for one in choices))


class Phrases:
    """Finds known texts as whole words: "1" is not found in "1981"."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._by_first: dict[str, list[tuple[str, ...]]] = {}
        for phrase in {tuple(form.split(" ")) for text in texts for form in forms_of_text(text) if form}:
            self._by_first.setdefault(phrase[0], []).append(phrase)
        for phrases in self._by_first.values():
            phrases.sort(key=len, reverse=True)

    def __bool__(self) -> bool:
        return bool(self._by_first)

    def spans(self, text: str) -> list[Span]:
        """Find the spans where `text` says a known text, the longest first and none within another."""
        folded, places = _fold_text(text)
        if not self._may_be_in(folded):
            return []
        said = ComparedText.of_folded(folded, places)
        found, end = [], 0
        for at, word in enumerate(said.words):
            if at < end or not (word.said in self._by_first or at in said.joined):
                continue
            if to := self._end_at(said, at):
                found.append((word.start, said.words[to - 1].end))
                end = to
        return found

    def _may_be_in(self, folded: str) -> bool:
        if not 0 < len(self._by_first) <= FEW_PHRASES:
            return bool(self._by_first)
        return any(first in folded for first in self._by_first) or any(_possible_cuts(folded))

    def _end_at(self, said: ComparedText, at: int) -> int:
        """Give the number of the word after the longest phrase from this word on, or 0 if there is none."""
        firsts = {first for first, _ in said.steps(at)}
        phrases = (phrase for first in firsts for phrase in self._by_first.get(first, ()))
        return max((said.end_of(phrase, at) for phrase in phrases), default=0)


class JoinedFinder:
    """Finds what any of several finders finds."""

    def __init__(self, *finders: Finder) -> None:
        self._finders = finders

    def spans(self, text: str) -> list[Span]:
        """Find the spans of all finders in `text`, in order; they may overlap."""
        return sorted(span for finder in self._finders for span in finder.spans(text))


def may_say(column: Any, texts: Iterable[str]) -> ColumnElement[bool]:
    """Give a condition (SQL) for rows whose column may say one of these texts; the caller compares these word by word.

    It searches for the longest plain ASCII word of each text, since a server's `lower` may know no other letters;
    where a text has none, or there are many texts, every row passes. So does a row with a character reference.
    """
    chosen = set()
    for form in {form for text in texts for form in forms_of_text(text) if form}:
        plain = [word for word in form.split(" ") if _ASCII_WORD.fullmatch(word)]
        chosen.add(max(plain, key=len, default="")[:LONGEST_SOUGHT_WORD])
    if not chosen:
        return false()
    if "" in chosen or len(chosen) > FEW_PHRASES:
        return true()
    is_ascii = func.octet_length(column) == func.char_length(column)
    is_composed = UnaryExpression(column, modifier=custom_op("IS NFKC NORMALIZED"), type_=Boolean())
    composed = case((is_composed, column), else_=func.normalize(column, literal_column("NFKC")))
    folded = func.lower(case((is_ascii, column), else_=_as_ascii(composed)))
    referring = case((func.strpos(column, "&") > 0, column.op("~")("&[#a-zA-Z][a-zA-Z0-9]*;")), else_=false())
    return or_(folded.op("~")("|".join(map(_with_gaps, sorted(chosen)))), referring)


@cache
def _skipped_in_words() -> str:
    """Give the characters that may stand within a word and are not compared: invisible ones, and parts of cuts.

    They are found at the first use, since to try every character takes too long for an import.
    """
    every = map(chr, range(1, 0x10000))
    return "".join(c for c in every if c.isspace() or c in "*~" or c in _HYPHENS or _INVISIBLE.match(c))


def _with_gaps(word: str) -> str:
    """Give a regular expression of PostgreSQL for a word that may be cut at any place."""
    return f"[{_skipped_in_words()}-]*".join(word)


def _as_ascii(composed: ColumnElement[str]) -> ColumnElement[str]:
    """Fold the only composed characters whose fold has letters of ASCII, which not every server's `lower` gives."""
    for letter, fold in (("ß", "ss"), ("ẞ", "ss"), ("İ", "i")):
        composed = func.replace(composed, letter, fold)
    return composed


def _place_words(found: Sequence[re.Match[str]], places: FoldedPlaces | None) -> list[ComparedWord]:
    if places is None:
        return [ComparedWord(m[0], *m.span()) for m in found]
    return [ComparedWord(m[0], *places.span(*m.span())) for m in found]


def _possible_cuts(folded: str) -> Iterator[Span]:
    """Yield the spans that may cut words in a folded text. Few texts have such signs, and to look for these is fast."""
    if "*" in folded or "~" in folded or "-" in folded:
        ends = (match.span() for match in _CUTTING.finditer(folded))
        yield from ((start, end) for start, end in ends if _CUT.match(folded, start))


def _cuts(folded: str, markup: WordMarkup) -> list[Span]:
    """Find what cuts words in a folded text: a hyphen at the end of a line, or marks that are all markup."""
    if not (cuts := list(_possible_cuts(folded))):
        return []
    wrapping = {at for start, end in markup.wrapping for at in range(start, end)}
    return [
        (start, end) for start, end in cuts if folded[start] == "-" or wrapping.issuperset(range(start, end))
    ]


def _join_cut_words(cuts: Sequence[Span], found: Sequence[re.Match[str]]) -> dict[int, list[tuple[str, int]]]:
    """Join the pieces of cut words: map the number of a first piece to each whole word and the next word's number."""
    if not cuts:
        return {}
    ending, starting = (
        {m.end(): n for n, m in enumerate(found)},
        {m.start(): n for n, m in enumerate(found)},
    )
    following = {ending[start]: starting[end] for start, end in cuts}
    joined: dict[int, list[tuple[str, int]]] = {}
    for first in following:
        whole, piece = found[first][0], first
        while (piece := following.get(piece, 0)) and len(joined.get(first, ())) < MANY_CUTS:
            whole += found[piece][0]
            joined.setdefault(first, []).append((whole, piece + 1))
    return joined


def _remove_cuts(folded: str, cuts: Sequence[Span], chosen: Sequence[bool]) -> str:
    """Give a folded text without the `chosen` ones of its `cuts`, such as a hyphen at the end of a line."""
    for (start, end), is_joined in reversed(list(zip(cuts, chosen, strict=True))):
        folded = folded[:start] + folded[end:] if is_joined else folded
    return folded


class FoldedPlaces(NamedTuple):
    """The offsets of a folded text's characters in the original, whose character references were read before folding.

    `folded` has each character's span in the text as read (None: the same). For each reference, `starts` has its start
    in the text as read, and `read` its end there with its start and end in the original.
    """

    folded: Sequence[Span] | None
    starts: Sequence[int] = ()
    read: Sequence[tuple[int, int, int]] = ()

    def span(self, start: int, end: int) -> Span:
        """Give the span in the original of a span of the folded text."""
        if self.folded is not None:
            start, end = self.folded[start][0], self.folded[end - 1][1]
        return self._original_span(start)[0], self._original_span(end - 1)[1]

    def _original_span(self, at: int) -> Span:
        """Give the span in the original of a character of the text as read."""
        if not (number := bisect_right(self.starts, at)):
            return at, at + 1
        end, original, original_end = self.read[number - 1]
        return (
            (original, original_end) if at < end else (original_end + at - end, original_end + at - end + 1)
        )


def _fold_text(text: str) -> tuple[str, FoldedPlaces | None]:
    """Give the text in the form that is compared, and each character's place in the original (None: the same)."""
    plain, starts, read = _read(text)
    if not plain.isascii():
        plain = _SOFT_HYPHEN_AT_END.sub("-", plain)
        plain = _SIGN.sub(_sign, plain)
    folded, places = _folded_letters(plain)
    if places is not None:  # composing makes some of these signs
        folded = folded.translate(_SIGNS)
    if "`" in folded:
        folded = _TICK.sub("'", folded)
    return folded, None if places is None and not read else FoldedPlaces(places, starts, read)


def _read(text: str) -> tuple[str, list[int], list[tuple[int, int, int]]]:
    """Replace the character references of a text; give it with the `starts` and `read` of its `FoldedPlaces`."""
    if "&" not in text or not (found := list(_REFERENCE.finditer(text))):
        return text, [], []
    pieces: list[str] = []
    starts: list[int] = []
    read: list[tuple[int, int, int]] = []
    last = length = 0
    for match in found:
        start, end = match.span()
        if said := _character(match):
            starts.append(length := length + start - last)
            pieces += (text[last:start], said)
            length += len(said)
            read.append((length, start, end))
            last = end
    return "".join((*pieces, text[last:])), starts, read


def _sign(found: re.Match[str]) -> str:
    return _SIGNS[ord(found[0])]


def _character(reference: re.Match[str]) -> str:
    name = reference[1]
    return unescape(f"&{name};") if name[0] == "#" else html5.get(f"{name};", reference[0])


def _folded_letters(text: str) -> tuple[str, list[Span] | None]:
    """Fold case and Unicode form, and drop invisible characters; give each character's place (None: the same)."""
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
    """Yield the spans of pieces that fold independently: a character and those that combine with it."""
    start = 0
    for at in range(1, len(text)):
        if not _is_combining(text[at]):
            yield start, at
            start = at
    yield start, len(text)


@lru_cache(4096)
def _is_combining(character: str) -> bool:
    """Say whether a character combines with the one before it: a mark, a jamo, or an invisible one."""
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
