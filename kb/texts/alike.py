"""Alike: tells whether a text says a value, also where it words a number, a date or a name in another way.

A text becomes its *terms*: words without case, accents, articles and plural; numbers in digits; a date as its year,
month and day. "March 14, 1879" and "14.3.1879" have the same terms, and "12,480" those of "12480". The rules are made
for English.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Literal

Wording = Literal["same", "longer"]

_IN_ORDER = """
    january february march april may june july august september october november december
    zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen
    eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety
    first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth
"""
_ALL = _IN_ORDER.split()
_MONTHS, _SMALL, _TENS, _ORDINALS = _ALL[:12], _ALL[12:32], _ALL[32:40], _ALL[40:]
_MONTH = "|".join(f"{month}|{month[:3]}\\.?" for month in _MONTHS) + "|sept\\.?"
_DAY, _YEAR = r"(?P<d>\d{1,2})(?:st|nd|rd|th)?", r"(?P<y>\d{3,4})"
_DATES = tuple(
    re.compile(rf"\b(?:{form})(?!\w)")
    for form in (
        r"(?P<y>\d{4})-(?P<n>\d{2})-(?P<d>\d{2})",
        r"(?P<d>\d{1,2})\.\s?(?P<n>\d{1,2})\.\s?(?P<y>\d{4})",
        rf"(?P<m>{_MONTH})\s+{_DAY},?\s+{_YEAR}",
        rf"{_DAY}\s+(?:of\s+)?(?P<m>{_MONTH}),?\s+{_YEAR}",
        rf"(?P<m>{_MONTH}),?\s+(?:of\s+)?{_YEAR}",
        rf"(?P<m>{_MONTH})\s+{_DAY}",
        rf"{_DAY}\s+(?:of\s+)?(?P<m>{_MONTH})",
    )
)
_NUMBERS = {word: n for n, word in enumerate(_SMALL)} | {word: 10 * n for n, word in enumerate(_TENS, 2)}
_SCALES = {"hundred": 100, "thousand": 1_000, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_SAID_OTHERWISE = (
    {word: f"{n}th" for n, word in enumerate(_ORDINALS, 1)}
    | dict.fromkeys(("percent", "pct"), "%")
    | dict.fromkeys(("dollar", "dollars", "usd"), "$")
    | dict.fromkeys(("kilometer", "kilometers", "kilometre", "kilometres"), "km")
    | dict.fromkeys(("meter", "meters", "metre", "metres"), "m")
    | {"feet": "ft", "foot": "ft", "miles": "mile", "&": "and", "saint": "st"}
)
_ARTICLES = frozenset(("a", "an", "the"))
_GROUPED = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_INITIALS = re.compile(r"\b(?:\w\.){2,}")
_MONEY = re.compile(r"([$£€])\s?(\d[\d.]*(?:\s(?:million|billion|trillion))?)")
_TERM = re.compile(r"\d+(?:\.\d+)?(?:st|nd|rd|th)?(?!\w)|\w+|[%$£€&]")
_NUMERAL = re.compile(r"\d+(?:\.\d+)?")


def compare_wording(value: str, text: str) -> Wording | None:
    """Compare a value with a text: "same" in any wording, "longer" where the text contains the value, else None.

    A name may be short ("Curie" of "Marie Curie"); whether it is the same person's is not known here.
    """
    wanted, said = terms_of(value), terms_of(text)
    if not wanted or not said:
        return None
    if sorted(wanted) == sorted(said) or _is_short(value, text) or _is_short(text, value):
        return "same"
    return "longer" if _index_of_part(wanted, said) >= 0 else None


@lru_cache(4096)
def terms_of(text: str) -> tuple[str, ...]:
    """Give the words of a text in order, with one form for each number, date, amount and plural, without articles."""
    plain = "".join(c for c in unicodedata.normalize("NFKD", text.casefold()) if not unicodedata.combining(c))
    plain = _GROUPED.sub("", plain.replace("’", "'").replace("per cent", "%"))
    plain = _INITIALS.sub(lambda found: found[0].replace(".", ""), plain).replace("'s ", " ")
    plain = _MONEY.sub(r"\2 \1", plain)
    for form in _DATES:
        plain = form.sub(_date, plain)
    return tuple(_join_numbers([_term(word) for word in _TERM.findall(plain) if word not in _ARTICLES]))


def _date(found: re.Match[str]) -> str:
    parts = found.groupdict()
    month = (
        int(parts["n"]) if parts.get("n") else 1 + [m[:3] for m in _MONTHS].index((parts.get("m") or "")[:3])
    )
    said = [parts.get("y"), f"month{month}", f"day{int(parts['d'])}" if parts.get("d") else None]
    return " ".join(part for part in said if part)


def _term(word: str) -> str:
    if word in _SAID_OTHERWISE:
        return _SAID_OTHERWISE[word]
    if word[0].isdigit():
        return re.sub("(?:st|nd|rd)$", "th", word)
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


def _join_numbers(words: Sequence[str]) -> Iterator[str]:
    """Yield the words, with one number in place of each run of words and digits that write a number."""
    run: list[str] = []
    for word in (*words, ""):
        if word in _NUMBERS or word in _SCALES or _NUMERAL.fullmatch(word):
            if run and not _goes_on(run[-1], word):
                yield _write_number(run)
                run = []
            run.append(word)
        elif run and word == "and" and run[-1] in _SCALES:
            continue
        else:
            if run:
                yield _write_number(run)
                run = []
            if word:
                yield word


def _goes_on(before: str, word: str) -> bool:
    if word in _SCALES:
        return True
    return before in _SCALES or (before in _TENS and word in _SMALL[1:10])


def _write_number(run: Sequence[str]) -> str:
    total = part = 0.0
    for word in run:
        if word not in _SCALES:
            part += _NUMBERS[word] if word in _NUMBERS else float(word)
        elif word == "hundred":
            part = max(part, 1.0) * 100
        else:
            total, part = total + max(part, 1.0) * _SCALES[word], 0.0
    return f"{total + part:.10g}" if total + part < 1e10 else f"{total + part:.0f}"


def _is_short(name: str, short: str) -> bool:
    """Tell whether `short` is a short form of `name`, which has several words: some of them, or their initials."""
    words = [word for word in re.findall(r"\w+", name) if word.casefold() not in _ARTICLES]
    if len(words) < 2 or not words[0][0].isupper() or not words[-1][0].isupper():
        return False
    said: list[str] = re.findall(r"\w+", short)
    if len(said) == 1 and len(said[0]) > 1 and said[0].isupper():
        return said[0] == "".join(word[0] for word in words if word[0].isupper())
    whole, part = terms_of(name), terms_of(short)
    if not part or len(part) >= len(whole) + (len(part[0]) == 1) or not said[-1][0].isupper():
        return False
    if not any(len(term) > 2 and term.isalpha() for term in part):
        return False
    if len(part[0]) == 1 and len(part) > 1:  # "M. Curie"
        return whole[0].startswith(part[0]) and part[-1] == whole[-1]
    return _index_of_part(part, whole) >= 0


def _index_of_part(part: Sequence[str], whole: Sequence[str]) -> int:
    """Give the index at which `part` begins in `whole`; -1 where it is not in there."""
    width = len(part)
    return next((n for n in range(len(whole) - width + 1) if whole[n : n + width] == part), -1)
