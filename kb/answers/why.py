"""Why nothing is said to a question, in a sentence that tells whoever asked what to do about it."""

from __future__ import annotations

import re
import unicodedata

from sqlalchemy import text
from sqlalchemy.orm import Session

DELETED = "What would answer it was deleted."
COMPARES = "It asks to compare, and an answer quotes one place. What is said of each is in the passages."
NOT_LATIN = "It is asked in other letters than English has, and only English is read here."

_WORD = re.compile(r"[^\W\d_]+")
_FEWEST = 2  # words of grammar that tell a language
# The words of grammar of a language are those that its dictionary drops.
_LANGUAGES = text("""
SELECT initcap(language) AS language, count(*) AS number
FROM unnest(ARRAY['english', 'german', 'french', 'spanish', 'italian', 'portuguese', 'dutch', 'swedish', 'danish',
                  'norwegian', 'finnish', 'hungarian', 'turkish']) AS language
CROSS JOIN unnest(CAST(:words AS text[])) AS word
WHERE ts_lexize(CAST('pg_catalog.' || language || '_stem' AS regdictionary), word) = '{}'
GROUP BY language ORDER BY number DESC, language
""")


def why_silent(
    session: Session, question: str, *, withheld: bool, is_comparison: bool, score: float, threshold: float
) -> str | None:
    """Give the reason for an answer that says nothing; None where no place was found at all."""
    if withheld:
        return DELETED
    if is_comparison:
        return COMPARES
    if (foreign := in_another_language(session, question)) is not None:
        return foreign
    if score:
        return f"The likeliest place scores {score:.2f}, and an answer needs {threshold:.2f}."
    return None


def in_another_language(session: Session, question: str) -> str | None:
    """Say that a question is asked in another language than English; None where that is not plain."""
    letters = [character for character in question if character.isalpha()]
    latin = sum(unicodedata.name(character, "").startswith("LATIN") for character in letters)
    if letters and latin < len(letters) / 2:
        return NOT_LATIN
    words = sorted({word.casefold() for word in _WORD.findall(question)})
    counted = {row.language: row.number for row in session.execute(_LANGUAGES, {"words": words})}
    of_english = counted.pop("English", 0)
    language, number = next(iter(counted.items()), ("", 0))
    if number < _FEWEST or number <= 2 * of_english:
        return None
    return f"It seems to be asked in {language}, and only English is read here."
