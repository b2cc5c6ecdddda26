"""Names of people: finds who is named in a text, in other spellings too, and keeps apart what is not sure.

A name is read as given names and a surname. Sure are both together: in either order ("Keller, Maria"), with middle
names or initials, with letters written otherwise (ü as ue or u), hyphens or blanks, in capitals, over a line's end, and
as in addresses ("maria.keller@"). Not sure are initials, one of the names alone, a name with one letter changed, and
names that may be longer than they look: "Anna Maria Keller", "Maria Keller-Brandt". Each has its `doubt`.

Words are compared as in `kb.texts.wording`, and then without accents. Nothing here knows which names exist: a capital
letter beside a name counts as part of it, unless the word is a title or among `PLAIN`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, func, or_

from colmlm.kb.texts.wording import words_of_text

DOUBTS = {
    "initials": "initials stand for a name",
    "surname": "the surname alone",
    "first-name": "the first name alone",
    "spelling": "a name is spelt with one letter more, less or otherwise",
    "longer": "another name stands directly before or after it",
    "order": "the names may belong to two people of a list",
    "apart": "a blank line or another sign stands between the names",
    "overlap": "the fact stands where the text has such a name",
    "sentence": "the fact stands in a sentence that names the person",
}


def _word_set(words: str) -> frozenset[str]:
    return frozenset(words.split())


TITLES = _word_set(
    """
    dr prof professor professorin mr mrs ms miss mx sir dame lord lady herr frau fräulein hr fr dipl ing mag med
    phil jur phd mba llm bsc msc md madame mme mlle monsieur señor señora sra sr signor signora sig dott docteur
    rev hon
    """
)
# Words that stand before or after a name without being one, where the case of letters does not tell.
PLAIN = _word_set(
    """
    a about after all also although always am an and any are as asked at author be because been before but by
    called can ceo chair chairman chairwoman colleague contact could customer cto dear did director do does
    doctor editor email employee engineer ever for founder from had has have he head hello her here hi him his
    how i if in into is it its lady lawyer like manager may met might minister must my mum mother name named no
    nor not nurse of officer on once only or our owner patient person president regarding said saw says
    secretary see she should since so spokesperson spokeswoman student subject teacher tell than thanks that the
    their them then there they this to told uncle aunt until was we were what when where whether which while who
    whom whose why will with wrote would yes yet you your aber alle als auch auf aus autorin bei beim bin bis
    das dass dem den der des die doch du ein eine einem einen einer er es fragt für geschäftsführerin hallo hat
    hatte im ingenieurin ist ja kollegin kundin lehrerin liebe lieber mit nach neben nein nicht noch ob oder
    patientin schreibt sehr seit sich sie sind sowie thema über um und uns unser unter vom von vor wann war
    waren warum weil wenn wer werden wie wir wird wo zu zum zur ärztin à au avec aux ce cette chez dans de elle
    en est et il la le les mais ou où par pour qui sa se son sous sur un une con como del el ella esta este las
    los para pero por que quien sin su sus una y che chi da dal dalla di e gli lo nel nella non per più quando
    si sono suo uno january february march april june july august september october november december monday
    tuesday wednesday thursday friday saturday sunday today yesterday tomorrow heute gestern morgen
    """
)
# What makes a place or a firm of a surname before it.
PLACES = _word_set(
    """
    street st road rd avenue ave lane square court house hall park hill bridge school university prize award
    foundation gmbh ag kg inc ltd llc corp company co group straße strasse str platz weg gasse allee haus hof
    verlag stiftung schule preis institut rue via calle plaza
    """
)
_SPECIAL = str.maketrans(
    {"ø": "o", "ł": "l", "đ": "d", "ð": "d", "þ": "th", "æ": "ae", "œ": "oe", "ı": "i", "ß": "ss"}
)
_GERMAN = str.maketrans({"ä": "ae", "ö": "oe", "ü": "ue", "å": "aa", "ø": "oe"})
_JOINING = frozenset("-'")
_ADDRESS = frozenset("._-+")  # what may join the names of an address
_SHORT_LINE = 40  # characters; the last word of a shorter line is not read together with the next line
_NAME = re.compile(r"[^\W\d_][^\W\d_'’\-.]*(?:['’\-.][^\W\d_]*)*\.?")
_BLANK_LINE = re.compile(r"\n[^\S\n]*\n")
_BLANKS = re.compile(r"(?:\s|[*_~`]|&(?:nbsp|#160|#xa0);)+")  # with markup that wraps a word
_MOST_MIDDLE = 3


class NameSpan(NamedTuple):
    """A stretch of a text that names the person. `doubt` is a key of `DOUBTS`, or None where it is sure."""

    start: int
    end: int
    doubt: str | None


class _Word(NamedTuple):
    """A word of a text: its spellings, its text as written, its place, and the text between it and the word before."""

    forms: frozenset[str]
    shown: str
    start: int
    end: int
    gap: str

    @property
    def is_letters(self) -> bool:
        return self.shown[:1].isalpha()

    @property
    def is_capitalised(self) -> bool:
        return self.shown[:1].isupper()


_Part = tuple[frozenset[str], ...]  # a name in its pieces ("Anna-Lena" has two), each in its spellings


@lru_cache(8192)
def spellings_of(word: str) -> frozenset[str]:
    """Give the spellings of a folded word without accents, one of them with German umlauts written as "ue"."""
    german = unicodedata.normalize("NFC", word).translate(_GERMAN)
    return frozenset(_without_accents(one) for one in (word, german))


def _without_accents(word: str) -> str:
    apart = unicodedata.normalize("NFD", word.translate(_SPECIAL))
    return "".join(c for c in apart if unicodedata.category(c)[0] != "M")


def _part_of(name: str) -> _Part:
    return tuple(spellings_of(word.said) for word in words_of_text(name) if word.said[0].isalnum())


def _join_pieces(part: _Part) -> frozenset[str]:
    """Give the spellings of a part whose pieces are written together."""
    return frozenset("".join(one) for one in product(*part))


@dataclass(frozen=True, slots=True)
class PersonName:
    """A name to find: the first names it may have, its middle names and its surname; or a `phrase` as it stands."""

    given: tuple[_Part, ...] = ()
    middle: tuple[_Part, ...] = ()
    surname: _Part = ()
    phrase: _Part = ()

    @classmethod
    def parse(cls, name: str) -> PersonName:
        """Parse a name. One that is not two words or more of letters becomes a `phrase`."""
        first, comma, rest = name.partition(",")
        words = f"{rest} {first}".split() if comma and rest.strip() else name.split()
        words = [word for word in words if word.rstrip(".").casefold() not in TITLES] or words
        if len(words) < 2 or not all(_NAME.fullmatch(word) for word in words):
            return cls(phrase=_part_of(name))
        if comma and rest.strip():
            begin = len(words) - len(first.split())
        else:
            begin = len(words) - 1
            while begin > 1 and words[begin - 1].islower():  # "von", "de la"
                begin -= 1
        given, *middle = (_part_of(word) for word in words[:begin])
        surname = tuple(piece for word in words[begin:] for piece in _part_of(word))
        both = ((*given, *middle[0]),) if middle else ()  # "Anna Lena" is "Annalena", too
        return cls((*both, given), tuple(middle), surname)

    @property
    def is_full(self) -> bool:
        return bool(self.given and self.surname)


@dataclass(frozen=True, slots=True)
class PersonFinder:
    """Finds a person in texts, by a name and other spellings of it or other names."""

    names: tuple[PersonName, ...]
    _joined_names: frozenset[str] = field(default=frozenset())
    _needles: tuple[str, ...] = ()

    @classmethod
    def of(cls, name: str, also: Iterable[str] = ()) -> PersonFinder:
        """Make a finder. A further name of a single word is another first name, too ("Mia" for Maria Keller)."""
        first, *others = (PersonName.parse(one) for one in (name, *also))
        short = tuple(one.phrase for one in others if len(one.phrase) == 1 and _is_word(one.phrase))
        if first.is_full:
            first = PersonName((*first.given, *short), first.middle, first.surname)
        names = (first, *others)
        joined = {
            "".join(pair)
            for one in names
            if one.is_full
            for given in one.given
            for pair in (
                *product(_join_pieces(given), _join_pieces(one.surname)),
                *product(_join_pieces(one.surname), _join_pieces(given)),
            )
        }
        needles = {
            form
            for one in names
            for part in (*one.given, one.surname, one.phrase)
            if part
            for form in part[-1]
        }
        return cls(names, frozenset(joined), tuple(sorted(needles)))

    def condition(self, column: Any) -> ColumnElement[bool]:
        """Give a condition (SQL) for rows whose column may name the person; the caller compares these word by word."""
        plain = [needle for needle in self._needles if needle.isascii()]
        spelt = column.op("~*")("|".join(map(re.escape, plain))) if plain else func.length(column) < 0
        signs = or_(
            func.strpos(column, "-\n") > 0, func.strpos(column, "\\") > 0, func.strpos(column, "&") > 0
        )
        return or_(spelt, func.octet_length(column) != func.char_length(column), signs)

    def spans(self, text: str) -> list[NameSpan]:
        """Find the spans of a text that name the person, in order. Of overlapping ones, a sure and long one counts."""
        plain = _without_accents(text.casefold())
        if (
            not any(n in plain for n in self._needles)
            and not re.search(r"[-\u00ad]\s*\n|&", text)
            and text.isascii()
        ):
            return []
        words = list(_words(text.replace("%20", "   ")))
        found = [
            span for name in self.names for span in _NameSearch(text, words, name, self._joined_names).spans()
        ]
        found.sort(key=lambda one: (one.doubt is not None, one.start - one.end, one.start))
        chosen: list[NameSpan] = []
        for span in found:
            if all(span.end <= one.start or one.end <= span.start for one in chosen):
                chosen.append(span)
        return sorted(chosen)


def _is_word(part: _Part) -> bool:
    return all(form.isalpha() for form in part[0])


def _words(text: str) -> Iterator[_Word]:
    """Cut a text into words. A word cut by a hyphen at a line's end is one."""
    end = 0
    found = words_of_text(text)
    at = 0
    while at < len(found):
        said, start, stop = found[at]
        while (
            at + 2 < len(found)
            and found[at + 1].said == "-"
            and found[at + 1].start == stop
            and "\n" in text[found[at + 1].end : found[at + 2].start]
            and text[found[at + 2].start].islower()
        ):
            said, stop, at = said + found[at + 2].said, found[at + 2].end, at + 2
        yield _Word(spellings_of(said), text[start:stop], start, stop, text[end:start])
        end, at = stop, at + 1


@dataclass(frozen=True, slots=True)
class _NameSearch:
    """A search for one name in the words of one text."""

    text: str
    words: Sequence[_Word]
    name: PersonName
    joined_names: frozenset[str]

    def spans(self) -> Iterator[NameSpan]:
        for at in range(len(self.words)):
            if self.name.phrase:
                yield from self._phrase(at)
            elif self.name.is_full:
                yield from self._given_first(at)
                yield from self._surname_first(at)
                yield from self._written_together(at)
                yield from self._single_names(at)

    def _span(self, first: int, end: int, doubt: str | None) -> NameSpan:
        return NameSpan(self.words[first].start, self.words[end - 1].end, doubt)

    def _phrase(self, at: int) -> Iterator[NameSpan]:
        if end := self._end_of(self.name.phrase, at):
            single = end - at == 1 and _is_word(self.name.phrase)
            alone = not single or not (self._name_before(at) or self._name_after(end))
            clear = alone and not (self._tied_before(at) or self._tied_after(end))
            yield self._span(at, end, None if clear else "longer")

    def _given_first(self, at: int) -> Iterator[NameSpan]:
        for given in self.name.given:
            for begin, doubt in self._first_ends(given, at):
                for then, apart in self._after_middle(begin):
                    for end, further in self._ends(self.name.surname, then, exact=doubt == "spelling"):
                        unsure = doubt or further or apart or self._surroundings(at, end)
                        yield self._span(at, end, unsure)

    def _surname_first(self, at: int) -> Iterator[NameSpan]:
        for begin, doubt in self._first_ends(self.name.surname, at, initials=False):
            is_listed = self._shown_at(begin) == ","
            then = begin + 1 if is_listed else begin
            apart = None if is_listed else self._gap_doubt(begin)
            if apart == "no":
                if self._is_joining_sign(begin):
                    then, apart = begin + 1, None
                elif self._shown_at(begin) in (";", "|"):
                    then, apart = begin + 1, "apart"
                else:
                    continue
            for given in self.name.given:
                for end, further in self._first_ends(given, then):
                    last = self._initials_after(end)
                    unsure = doubt or further or apart
                    if self._name_before(at) or self._name_after(last):
                        unsure = unsure or "order"
                    yield self._span(at, last, unsure or self._surroundings(at, last))

    def _written_together(self, at: int) -> Iterator[NameSpan]:
        word = self.words[at]
        if word.forms & self.joined_names:
            yield self._span(at, at + 1, self._surroundings(at, at + 1))
        elif any(
            form[:1] == one[:1] and form[1:] in _join_pieces(self.name.surname)
            for form in word.forms
            for given in self.name.given
            for one in given[0]
        ):
            yield self._span(at, at + 1, "initials")

    def _single_names(self, at: int) -> Iterator[NameSpan]:
        for part, doubt in (
            (self.name.surname, "surname"),
            *((one, "first-name") for one in self.name.given),
        ):
            end = self._end_of(part, at)
            if not end or not self.words[at].is_capitalised or self._tied_before(at) or self._tied_after(end):
                continue
            if self._name_before(at) or (self._name_after(end) and doubt == "first-name"):
                continue
            if self._is_near(end) and self.words[end].forms & PLACES:
                continue
            if (
                self._shown_at(at - 1) == "." and at > 1 and len(self._shown_at(at - 2)) == 1
            ):  # the initial of another
                continue
            yield self._span(at, end, doubt)

    # Parts of a name.

    def _shown_at(self, at: int) -> str:
        return self.words[at].shown if 0 <= at < len(self.words) else ""

    def _end_of(self, part: _Part, at: int) -> int:
        """Give the number of the word behind a part of the name that begins at word `at`; 0 where it does not."""
        if at >= len(self.words) or not part:
            return 0
        if len(part) > 1 and self.words[at].forms & _join_pieces(part):
            return at + 1
        for n, piece in enumerate(part):
            if n and self._shown_at(at) in _JOINING | {"’"}:
                at += 1
            if at >= len(self.words) or not self.words[at].forms & piece:
                return 0
            if n and _BLANK_LINE.search(self.words[at].gap):
                return 0
            at += 1
        return at

    def _first_ends(self, part: _Part, at: int, *, initials: bool = True) -> Iterator[tuple[int, str | None]]:
        """Yield the word number behind a part of the name at `at`, with a doubt where it is misspelt or an initial."""
        if end := self._end_of(part, at):
            yield end, None
        elif at < len(self.words):
            if len(part) == 1 and self._is_near_spelling(part, at):
                yield at + 1, "spelling"
            shown = self._shown_at(at)
            if initials and len(shown) == 1 and any(form[:1] in self.words[at].forms for form in part[0]):
                yield (
                    (at + 2 if self._shown_at(at + 1) == "." and not self.words[at + 1].gap else at + 1),
                    "initials",
                )

    def _ends(self, part: _Part, at: int, *, exact: bool) -> Iterator[tuple[int, str | None]]:
        """Yield the word number behind the name's last part at `at`, with a doubt; unless `exact`, also if misspelt."""
        if end := self._end_of(part, at):
            yield end, None
        elif not exact and len(part) == 1 and self._is_near_spelling(part, at):
            yield at + 1, "spelling"

    def _after_middle(self, at: int) -> Iterator[tuple[int, str | None]]:
        """Yield the words at which the surname may begin, with a doubt: here, or behind middle names and initials."""
        apart: str | None = None
        for count in range(_MOST_MIDDLE + 1):
            doubt = self._gap_doubt(at)
            if (
                doubt == "no"
                and self._shown_at(at - 1) == "."
                and at < len(self.words)
                and not self.words[at].gap
            ):
                doubt = None  # "M.Keller"
            if doubt == "no" and self._is_joining_sign(at):
                yield at + 1, apart
                doubt, at = None, at + 1
            elif doubt == "no":
                if self._shown_at(at) in ("|", ";"):
                    yield at + 1, "apart"
                return
            else:
                yield at, apart or doubt
            apart = apart or doubt
            if count == _MOST_MIDDLE or not (end := self._end_of_middle(at)):
                return
            at = end

    def _end_of_middle(self, at: int) -> int:
        """Give the word number behind a middle name or initial at `at`, the name's own or any in capitals; else 0."""
        for part in self.name.middle:
            if end := self._end_of(part, at):
                return end
        if at >= len(self.words) or not self.words[at].is_capitalised:
            return 0
        word = self.words[at]
        if len(word.shown) == 1:
            return at + 2 if self._shown_at(at + 1) == "." and not self.words[at + 1].gap else at + 1
        own = (
            self.name.middle
            and self._shown_at(at + 1) == "."
            and any(p[0] & word.forms for p in self.name.middle)
        )
        is_name = word.is_letters and not word.forms & (PLAIN | TITLES)
        return at + 1 if is_name or own else 0

    def _initials_after(self, at: int) -> int:
        """Give the word number behind the middle names and initials that follow a name with its surname first."""
        for part in self.name.middle:
            at = self._end_of(part, at) or at
        while self._is_near(at) and len(self._shown_at(at)) == 1 and self.words[at].is_capitalised:
            at = at + 2 if self._shown_at(at + 1) == "." else at + 1
        return at

    def _is_near_spelling(self, part: _Part, at: int) -> bool:
        """Say whether word `at` differs in one letter from a part of the name, both of four letters or more."""
        return at < len(self.words) and any(
            _is_one_typo_off(a, b) for a in self.words[at].forms for b in part[0] if min(len(a), len(b)) >= 4
        )

    # What stands around a name.

    def _gap_doubt(self, at: int) -> str | None:
        """Judge the gap before a word: None for blanks, "apart" for a blank line, "no" where no letters adjoin."""
        if at >= len(self.words):
            return "no"
        gap = self.words[at].gap
        if not _BLANKS.fullmatch(gap) or not self.words[at].is_letters:
            return "no"
        return "apart" if _BLANK_LINE.search(gap) else None

    def _is_joining_sign(self, at: int) -> bool:
        """Say whether word `at` is a sign that joins two names without blanks, as in an address."""
        return (
            at + 1 < len(self.words)
            and self._shown_at(at) in _ADDRESS
            and not self.words[at].gap
            and not self.words[at + 1].gap
        )

    def _is_near(self, at: int) -> bool:
        """Say whether only blanks, and no blank line, are between this word and the one before."""
        return 0 < at < len(self.words) and self._gap_doubt(at) is None

    def _name_before(self, at: int) -> bool:
        """Say whether the word before may be another name of the same person."""
        if not self._is_near(at):
            if at > 1 and self._shown_at(at - 1) == "." and self.words[at].gap in (" ", "\u00a0"):
                before = self.words[at - 2]
                return len(before.shown) == 1 and before.is_capitalised and not before.forms & TITLES
            return False
        before = self.words[at - 1]
        if not before.is_letters or before.forms & (PLAIN | TITLES):
            return False
        if "\n" in self.words[at].gap:
            line = self.text.rfind("\n", 0, before.end) + 1
            if before.end - line < _SHORT_LINE:
                return False
        here = self.words[at].shown
        return before.is_capitalised if here[:1].isupper() and not here.isupper() else True

    def _name_after(self, end: int) -> bool:
        """Say whether word `end` may be another name or, as "Street" does, make a place of the name before it."""
        if not self._is_near(end) or "\n" in self.words[end].gap:
            return False
        after, before = self.words[end], self._shown_at(end - 1)
        if after.forms & PLACES:
            return True
        if before.isupper() and len(before) > 1 and after.shown.isupper():
            return False
        return after.is_capitalised and not after.forms & (PLAIN | TITLES)

    def _tied_before(self, at: int) -> bool:
        """Say whether a hyphen or another sign ties a word to the front of word `at`."""
        tied = (
            at > 1
            and self._shown_at(at - 1) in _ADDRESS
            and not self.words[at].gap
            and not self.words[at - 1].gap
        )
        return tied and self.words[at - 2].is_letters

    def _tied_after(self, end: int) -> bool:
        """Say whether a hyphen, or the sign of an address, ties word `end` and one behind it to the name."""
        if end + 1 >= len(self.words) or self.words[end].gap or self.words[end + 1].gap:
            return False
        sign = self._shown_at(end)
        inner = any(self._shown_at(n) == sign for n in (end - 2,)) and sign in _ADDRESS
        return (sign == "-" or inner) and self.words[end + 1].is_letters

    def _surroundings(self, at: int, end: int) -> str | None:
        longer = (
            self._tied_before(at) or self._tied_after(end) or self._name_before(at) or self._name_after(end)
        )
        return "longer" if longer else None


def _is_one_typo_off(a: str, b: str) -> bool:
    """Tell whether two words differ by one letter, or by two neighbouring letters that are swapped."""
    if a == b or abs(len(a) - len(b)) > 1:
        return False
    start = next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    rest_a, rest_b = a[start:], b[start:]
    if len(a) == len(b):
        return rest_a[1:] == rest_b[1:] or (rest_a[:2] == rest_b[1::-1] and rest_a[2:] == rest_b[2:])
    return rest_a[1:] == rest_b or rest_a == rest_b[1:]
