"""A text that facts are searched for: its words as the database reads them, and conditions (SQL) that find them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, func, literal
from sqlalchemy.dialects.postgresql import TSQUERY
from sqlalchemy.orm import InstrumentedAttribute, Session

from colmlm.kb.errors import InvalidQuery
from colmlm.kb.store.database import connection_of
from colmlm.kb.tables import SentenceRow
from colmlm.kb.texts.searched import quoted, searched_words

MOST_WORDS = 100
BEGINNING = 3  # characters from which on a word is also sought as the beginning of longer ones

_WORDS = b"SELECT lower(%s), tsvector_to_array(words_of(%s))"
_STEMS = b"SELECT word, tsvector_to_array(to_tsvector('pg_catalog.english', word)) FROM unnest(%s::text[]) AS w (word)"


@dataclass(frozen=True, slots=True)
class SoughtText:
    """A text, lowered, with its words: as values and questions have them, and by the `stems` that sentences have.

    Without words it is sought literally, in values and questions. `last` is the last word where it may go on.
    """

    text: str
    words: tuple[str, ...] = ()
    stems: tuple[tuple[str, ...], ...] = ()
    last: str = ""

    @classmethod
    def read(cls, session: Session, said: str, *, literally: bool = False) -> SoughtText:
        """Raises `InvalidQuery` where no text holds it."""
        if "\x00" in said:
            raise InvalidQuery("a text holds no NUL character")
        said = said if literally else said.strip()
        ((text, words),) = connection_of(session).execute(_WORDS, (said, said)).fetchall()
        if literally:
            return cls(text)
        read = searched_words(said).split(" ")[:MOST_WORDS]
        stems = stems_of(session, read)
        last = read[-1] if len(read[-1]) >= BEGINNING and stems.get(read[-1]) else ""
        known = (stems.get(word) for word in dict.fromkeys(read))
        return cls(text, tuple(map(_singular, words[:MOST_WORDS])), tuple(filter(None, known)), last)

    def within(self, column: InstrumentedAttribute[Any]) -> ColumnElement[bool]:
        """Gives whether a value or question has every word, or where there is none, the text as it stands."""
        if not self.words:
            return self.as_it_stands(column)
        return func.words_of(column).op("@@")(_query(map(_beginning, self.words)))

    def as_it_stands(self, column: InstrumentedAttribute[Any]) -> ColumnElement[bool]:
        return column.icontains(self.text, autoescape=True)

    def of_sentences(self) -> ColumnElement[bool] | None:
        """Gives whether a sentence, with its title, has every word in some form; None where no word says anything."""
        if not self.stems:
            return None
        *whole, last = (" & ".join(map(quoted, stems)) for stems in self.stems)
        return SentenceRow.words.op("@@")(_query([*whole, self._going_on(last)]))

    def _going_on(self, last: str) -> str:
        """Gives a query of the last word: in some form, or as the beginning of another."""
        return f"({last} | {_beginning(self.last)})" if self.last else last

    def pattern(self) -> re.Pattern[str]:
        """Gives a pattern of what `within` finds."""
        if not self.words:
            return re.compile(re.escape(self.text), re.IGNORECASE)
        words = (re.escape(word) + (r"(?![^\W_])" if len(word) < BEGINNING else "s?") for word in self.words)
        return re.compile(rf"(?<![^\W_])(?:{'|'.join(words)})", re.IGNORECASE)


def stems_of(session: Session, words: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Gives the stems of words, as those of sentences are kept; a word that says nothing has none."""
    asked = list(dict.fromkeys(filter(None, words)))
    return {word: tuple(stems) for word, stems in connection_of(session).execute(_STEMS, (asked,))}


def _singular(word: str) -> str:
    """Gives a word without a final s, so that it is also the beginning of its singular."""
    return word[:-1] if len(word) > BEGINNING and word.endswith("s") and not word.endswith("ss") else word


def _beginning(word: str) -> str:
    return quoted(word) + (":*" if len(word) >= BEGINNING else "")


def _query(parts: Iterable[str]) -> ColumnElement[Any]:
    return literal(" & ".join(parts)).cast(TSQUERY)
