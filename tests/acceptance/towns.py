"""Documents of two facts each, whose names are made up: no word of a value is ever said of anything else."""

from __future__ import annotations

from tests.kb.corpora import AnnotatedDocument, document

_SYLLABLES = tuple(f"{consonant}{vowel}" for consonant in "bdfgklmnprstvz" for vowel in "aiou")
_NUM_WORDS = len(_SYLLABLES) ** 3
_STRIDE = 7919  # a prime, so that neighbouring numbers have words that differ in every syllable


def name(number: int) -> str:
    """Gives the name of a person, two words that no other number has."""
    return f"{_word(2 * number)} {_word(2 * number + 1)}"


def town(number: int) -> AnnotatedDocument:
    """Makes the document of a town with the facts ``2 * number`` and ``2 * number + 1``, in sentences of their own."""
    leader, builder = 2 * number, 2 * number + 1
    return document(
        f"town{number}",
        f"{_subject(leader)} is led by ",
        (name(leader), question(leader)),
        f". The bridge {_subject(builder)} there was built by ",
        (name(builder), question(builder)),
        ".",
    )


def question(fact: int) -> str:
    """Gives the question that a fact of a town answers. Only its subject stands in the document as it is asked."""
    return f"Who {'constructed' if fact % 2 else 'leads'} {_subject(fact)}?"


def _subject(fact: int) -> str:
    """Gives the name of what a fact is about: a town, or the bridge there."""
    return _word(_NUM_WORDS - 1 - fact)


def _word(number: int) -> str:
    syllables, rest = [], number * _STRIDE % _NUM_WORDS
    for _ in range(3):
        rest, one = divmod(rest, len(_SYLLABLES))
        syllables.append(_SYLLABLES[one])
    return "".join(syllables).capitalize()
