"""Words as the checks of annotations compare them: content words by their root, numbers by their digits.

Rules and no model: the result is the same everywhere and cheap enough for every question of a corpus. The rules are
made for English; in other languages of the Latin alphabet the roots are coarser, and a text without spaces is one long
word.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

_TOKEN = re.compile(
    r"(?P<number>\d+(?:,\d{3})*)(?:(?:st|nd|rd|th|s)\b)?|(?P<word>[^\W\d_]+(?:['’][^\W\d_]+)*)"
)
_POSSESSIVE = re.compile(r"['’]s?$")
_ENDINGS = ("ations", "ation", "ings", "ing", "ied", "ies", "ers", "ed", "er", "es", "ly", "e", "s", "y")
_LEAST_ROOT, _MOST_ROOT = 3, 6
_MONTH_NAMES = "january february march april may june july august september october november december sept"
_MONTHS = frozenset(_MONTH_NAMES.split())

# These may be in any question: grammar, question words, and verbs that only form a question.
_ORDINARY = """
    a about after against all also am among an and any are around as at be became become been before began begin
    being belong belonged belongs between by call called can come comes contain contains consist consists could did do
    does done during each far first for found from gave get give given had happen happened has have he her him his
    how if in include included includes into is it its kind know known last like located made make many may me mean
    means member more most much my name named names near no nor not of often old on one only or other our out over
    own part people refer referred refers regarded said same say since serve served serves she should so some sort stand
    stands such tall term than that the their them then there these they this those through to took type types under
    until up upon use used uses using was we well were what when where which while who whom whose why will with
    within without word would year years you your
    age amount area born capital city color colour company country date day death decade did die died distance
    event example field founded founding group height job language length located location long month nationality
    number occupation ocean organisation organization person place position profession purpose reason region
    relation result role size start started state subject team time title town village war way week weigh weight wide
"""
ORDINARY = frozenset(_ORDINARY.split())


@dataclass(frozen=True, slots=True)
class Word:
    """One word or number of a text.

    `key` is what is compared: the digits of a number (thousands without commas), the root of a word. `folded` is the
    word itself without accents, case and possessive.
    """

    key: str
    folded: str
    start: int
    end: int
    is_number: bool
    is_capitalised: bool

    @property
    def is_ordinary(self) -> bool:
        return self.folded in ORDINARY


def words(text: str) -> Iterator[Word]:
    """Yields the words and numbers of a text, in order; a hyphen parts words, "19th" and "1990s" are numbers."""
    for found in _TOKEN.finditer(text):
        if number := found.group("number"):
            digits = number.replace(",", "")
            yield Word(digits, digits, found.start(), found.end(), True, False)
            continue
        word = _POSSESSIVE.sub("", found.group("word"))
        plain = fold(word)
        yield Word(root(plain), plain, found.start(), found.end(), False, word[:1].isupper())


def telling(text: str) -> frozenset[str]:
    """Give the keys of the words of a text that are not ordinary."""
    return frozenset(word.key for word in words(text) if not word.is_ordinary)


def fold(word: str) -> str:
    """Removes case and accents from the word."""
    if word.isascii():
        return word.lower()
    parts = unicodedata.normalize("NFKD", word)
    return "".join(part for part in parts if not unicodedata.combining(part)).casefold()


def root(folded: str) -> str:
    """Gives the form that related words share: without a common ending, cut at six letters; a month at three.

    "discovered" and "discovery" have one root, as have "city" and "cities", "Sep" and "September"; "won" and "win" do
    not.
    """
    if folded in _MONTHS:
        return folded[:3]
    for ending in _ENDINGS:
        if folded.endswith(ending) and len(folded) - len(ending) >= _LEAST_ROOT:
            folded = folded.removesuffix(ending)
            break
    return folded[:_MOST_ROOT]
