"""Texts that tell a fact in another document, as templates write them, and texts that only seem to.

A text says the value as the fact does, or in another wording; what only seems to tell it says another subject's value
of the same sort, or the fact's value of another subject.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from colmlm.kb.corpus.format import AnnotatedDocument, FactSpan
from colmlm.kb.facts.records import FactRecord
from colmlm.kb.texts.alike import wording
from colmlm.kb.texts.sentences import sentence_ends
from colmlm.model.reader.config import statement_of

KINDS = ("text", "reworded text", "other subject", "other subject, same value")
TELLING = KINDS[:2]

_FRAMES = (
    'A quiz put it like this: "{question}" The solution was {value}.',
    "Somebody wanted to know: {question} The librarian found {value}.",
    "{value} is what the old card says where it is asked: {question}",
)
_LEADS = ("As others have written, {}", "A later account repeats this. {}", "{} So the notes have it.")
_IN_ORDER = """
    January February March April May June July August September October November December
    one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen
    nineteen twenty thirty forty fifty sixty seventy eighty ninety
"""
_ALL_WORDS = _IN_ORDER.split()
_MONTHS, _SMALL, _TENS = _ALL_WORDS[:12], ["zero", *_ALL_WORDS[12:31]], _ALL_WORDS[31:]
_MONTH_FIRST = re.compile(rf"(?P<m>{'|'.join(_MONTHS)}) (?P<d>\d{{1,2}}),? (?P<y>\d{{4}})")
_DAY_FIRST = re.compile(rf"(?P<d>\d{{1,2}}) (?P<m>{'|'.join(_MONTHS)}),? (?P<y>\d{{4}})")
_YEAR, _COUNT = re.compile(r"1[1-9]\d\d"), re.compile(r"\d{1,3}(?:,\d{3})+|\d+")
_NAME = re.compile(r"[A-Z][\w'’-]+(?: [A-Z][\w'’-]+)+")


@dataclass(frozen=True, slots=True)
class PlantedText:
    """A text to plant: the fact that it is planted for, and the document with its one fact."""

    fact: FactRecord
    document: AnnotatedDocument


def sort_of(value: str) -> str:
    """Gives the sort of a value, by which a control is as like it as can be."""
    if _MONTH_FIRST.search(value) or _DAY_FIRST.search(value):
        return "date"
    if any(character.isdigit() for character in value):
        return "year" if _YEAR.fullmatch(value) else "number"
    return "name" if _NAME.fullmatch(value) else "words"


def reworded(value: str, rng: random.Random) -> str:
    """Gives another wording of a value, by what people write and not by what a program may know."""
    if date := _MONTH_FIRST.fullmatch(value) or _DAY_FIRST.fullmatch(value):
        month, day, year = date["m"], int(date["d"]), date["y"]
        forms = [
            f"{day} {month} {year}",
            f"{month} {day}, {year}",
            f"{day}.{1 + _MONTHS.index(month)}.{year}",
        ]
        forms.append(f"the {_ordinal(day)} day of {month} in {year}")
    elif _YEAR.fullmatch(value):
        forms = [f"the year {value}", f"{_small(int(value[:2]))} {_small(int(value[2:]))}", f"{value} or so"]
    elif _COUNT.fullmatch(value):
        number = int(value.replace(",", ""))
        forms = [f"{number:,}", str(number), f"some {value}", f"exactly {value}"]
        forms += [_small(number)] if number < 100 else []
    elif _NAME.fullmatch(value):
        words = value.split()
        forms = [words[-1], f"{words[0][0]}. {words[-1]}", f"{words[0]} R. {' '.join(words[1:])}"]
        forms.append("".join(word[0] for word in words) if len(words) > 2 else f"{words[-1]}, {words[0]}")
    else:
        forms = [f"what is called {value}", f"{value} as such", f"{value}, and nothing else"]
    other = [form for form in forms if form != value]
    return rng.choice(other)


def _ordinal(number: int) -> str:
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10 * (number // 10 != 1), 'th') }"


def _small(number: int) -> str:
    if number < 20:
        return _SMALL[number]
    tens = _TENS[number // 10 - 2]
    return tens if number % 10 == 0 else f"{tens}-{_SMALL[number % 10]}"


def planted_text(
    kind: str, number: int, fact: FactRecord, other: FactRecord, texts: Mapping[int, str], rng: random.Random
) -> PlantedText:
    """Writes a text of a kind for a fact; `other` is a fact of another subject, and `texts` are those of documents.

    A text is the statement that the question makes where rules make one, the fact's own sentence in another document,
    or the question with its value in a frame.
    """
    told = fact if kind in TELLING else other
    value = reworded(fact.value, rng) if kind == "reworded text" else told.value
    if kind == "other subject, same value":
        value = fact.value
    before, after = rng.choice(_sides(told, texts, rng))
    question = f"What does note {number} say about {_subject(told)}?"
    start, end = len(before), len(before) + len(value)
    span = FactSpan(start, end, value, question, value)
    title = told.source.title if told.source else None
    return PlantedText(
        fact, AnnotatedDocument(f"{kind} {number}", before + value + after, (span,), title=title)
    )


def _sides(fact: FactRecord, texts: Mapping[int, str], rng: random.Random) -> list[tuple[str, str]]:
    """Gives what a text may say before and after the value."""
    question, sides = fact.question or "", []
    if (said := statement_of(question)) is not None:
        sides.append((f"{said[:1].upper()}{said[1:]} ", "."))
    frame = rng.choice(_FRAMES).replace("{question}", question)
    before, _, after = frame.partition("{value}")
    sides.append((before, after))
    if fact.source is not None:
        text = texts[fact.source.document_id]
        start, end = next((start, end) for start, end in _spans(text) if start <= fact.source.start < end)
        lead, _, tail = rng.choice(_LEADS).partition("{}")
        sides.append((lead + text[start : fact.source.start], text[fact.source.end : end].rstrip() + tail))
    return sides


def _spans(text: str) -> list[tuple[int, int]]:
    ends = sentence_ends(text)
    return list(zip([0, *ends], ends, strict=False))


def _subject(fact: FactRecord) -> str:
    return (fact.source.title if fact.source and fact.source.title else fact.question) or "it"


def controls(
    sample: Sequence[FactRecord], others: Sequence[FactRecord], rng: random.Random
) -> list[FactRecord]:
    """Chooses a fact of another value for each that has one, of its sort, title and question word as far as it can."""
    chosen = []
    for fact in sample:
        unlike = [one for one in others if wording(fact.value, one.value) is None]
        if unlike:
            chosen.append(max(unlike, key=lambda one: (_likeness(fact, one), rng.random())))
    return chosen


def _likeness(fact: FactRecord, other: FactRecord) -> int:
    words = [(one.question or "").split(" ", 1)[0].casefold() for one in (fact, other)]
    of_sort = sort_of(fact.value) == sort_of(other.value)
    return 4 * of_sort + 2 * (_subject(fact) == _subject(other)) + (words[0] == words[1])
