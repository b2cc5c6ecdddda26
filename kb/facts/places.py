"""Where facts were found by a text: their values, questions, titles and sentences, with the words that were sought."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from colmlm.kb.facts.filters import STANDS_IN, says_the_past
from colmlm.kb.facts.records import FactRecord, FoundIn, Mark, Place
from colmlm.kb.facts.sought import SoughtText, stems_of
from colmlm.kb.tables import DocumentRow, FactRow, SentenceRow
from colmlm.kb.texts.searched import searched_words
from colmlm.kb.texts.wording import Span

_TOKEN = re.compile(r"[^\W_]+")


class _Said(NamedTuple):
    fact_id: int
    place: Place
    text: str


def places(
    session: Session, records: Sequence[FactRecord], sought: SoughtText, *, past: bool
) -> dict[int, tuple[FoundIn, ...]]:
    """Gives for each fact its texts with a word of what is sought; without `past`, none that may say what is past."""
    texts = list(_own(records))
    if sought.stems:
        texts += _of_documents(session, records, past=past)
    words = _Words.read(session, sought, [said.text for said in texts])
    found: dict[int, tuple[FoundIn, ...]] = {}
    for said in texts:
        if marks := tuple(Mark(*span) for span in words.spans(said)):
            found[said.fact_id] = (*found.get(said.fact_id, ()), FoundIn(said.place, said.text, marks))
    return found


def _own(records: Sequence[FactRecord]) -> Iterator[_Said]:
    for record in records:
        yield _Said(record.fact_id, "value", record.value)
        if record.question:
            yield _Said(record.fact_id, "question", record.question)


def _of_documents(session: Session, records: Sequence[FactRecord], *, past: bool) -> Iterator[_Said]:
    for record in records:
        if record.source is not None and record.source.title:
            yield _Said(record.fact_id, "title", record.source.title)
    length = SentenceRow.span_end - SentenceRow.span_start
    sentences = (
        select(FactRow.id, func.substr(DocumentRow.text, SentenceRow.span_start + 1, length))
        .join(SentenceRow, STANDS_IN)
        .join(DocumentRow, DocumentRow.id == FactRow.document_id)
        .where(FactRow.id == func.any([record.fact_id for record in records]))
    )
    for fact_id, text in session.execute(sentences if past else sentences.where(~says_the_past())):
        yield _Said(fact_id, "text", text.strip())


@dataclass(frozen=True, slots=True)
class _Words:
    """The words that are sought, as they stand and, by their stems, in any form; `known` are those of the texts."""

    standing: re.Pattern[str]
    stems: frozenset[str]
    beginning: str
    known: dict[str, tuple[str, ...]]

    @classmethod
    def read(cls, session: Session, sought: SoughtText, texts: Sequence[str]) -> _Words:
        stems = frozenset(stem for some in sought.stems for stem in some)
        known = stems_of(session, searched_words(" ".join(texts)).split(" ")) if stems else {}
        return cls(sought.pattern(), stems, sought.last, known)

    def spans(self, said: _Said) -> list[Span]:
        standing = [match.span() for match in self.standing.finditer(said.text)]
        if said.place in ("value", "question") and standing:
            return standing
        return [token.span() for token in _TOKEN.finditer(said.text) if self._has(token.group())]

    def _has(self, token: str) -> bool:
        return any(self._is_sought(word) for word in searched_words(token).split(" "))

    def _is_sought(self, word: str) -> bool:
        stems = self.known.get(word, ())
        return any(
            stem in self.stems or (self.beginning and stem.startswith(self.beginning)) for stem in stems
        )
