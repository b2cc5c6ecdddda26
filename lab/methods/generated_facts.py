"""Documents of made-up facts, as many as are wanted. Nobody has learnt what they say, no two towns are namesakes."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from colmlm.kb.corpus.format import AnnotatedDocument, FactSpan

_SYLLABLES = tuple(f"{consonant}{vowel}" for consonant in "bdfgklmnprstvz" for vowel in "aiou")
_NUM_WORDS = len(_SYLLABLES) ** 3
_STRIDE = 7919  # a prime, so that neighbouring numbers have names that differ in every syllable
_TRADES = ("coopers", "dyers", "glaziers", "masons", "millers", "potters", "smiths", "tanners", "weavers")
_WARES = ("barges", "bells", "candles", "carpets", "clocks", "knives", "lamps", "paper", "ropes", "sails")

# Each piece goes before a value, which is of a kind; the question asks for it.
_PIECES = (
    ("{town} lies in ", "land", "In which land does {town} lie?"),
    (", on the river ", "name", "On which river does {town} lie?"),
    (". Founded by ", "person", "Who founded {town}?"),
    (" in ", "year", "When was {town} founded?"),
    (", it has ", "number", "How many people does {town} have?"),
    (" people. Its mayor is ", "person", "Who is the mayor of {town}?"),
    (", its school is named after ", "person", "After whom is the school of {town} named?"),
    (", its bridge was built by ", "person", "Who built the bridge of {town}?"),
    (" in ", "year", "When was the bridge of {town} built?"),
    (". It is known for its ", "ware", "What is {town} known for?"),
    (" and for the guild of ", "trade", "Which guild is {town} known for?"),
    (". The next town is ", "name", "Which town is next to {town}?"),
)


def generated(num_facts: int, asked: int, seed: int = 0) -> Iterator[AnnotatedDocument]:
    """Makes documents with so many facts or some more, of which `asked`, evenly spread, have a question."""
    random = Random(seed)
    every = max(1, num_facts // asked)
    for number in range(-(-num_facts // len(_PIECES))):
        yield _town(number, random, every)


def _town(number: int, random: Random, every: int) -> AnnotatedDocument:
    town, text, spans = _word(number), "", []
    for place, (before, kind, question) in enumerate(_PIECES):
        text += before.format(town=town)
        value = _value(kind, random)
        is_asked = (number * len(_PIECES) + place) % every == 0
        spans.append(
            FactSpan(
                len(text), len(text) + len(value), value, question.format(town=town) if is_asked else None
            )
        )
        text += value
    return AnnotatedDocument(f"town-{number}", f"{text}.", tuple(spans), title=town)


def _value(kind: str, random: Random) -> str:
    match kind:
        case "land":
            return _word(_NUM_WORDS - 1 - random.randrange(40))
        case "year":
            return str(random.randrange(900, 2000))
        case "number":
            return f"{random.randrange(300, 90_000):,}"
        case "ware":
            return random.choice(_WARES)
        case "trade":
            return random.choice(_TRADES)
        case "person":
            return f"{_word(random.randrange(_NUM_WORDS))} {_word(random.randrange(_NUM_WORDS))}"
        case _:
            return _word(random.randrange(_NUM_WORDS))


def _word(number: int) -> str:
    syllables, rest = [], number * _STRIDE % _NUM_WORDS
    for _ in range(3):
        rest, one = divmod(rest, len(_SYLLABLES))
        syllables.append(_SYLLABLES[one])
    return "".join(syllables).capitalize()
