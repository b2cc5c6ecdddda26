"""Compares raw documents with those of a corpus, so that nobody annotates again what is there already."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from sqlalchemy import select
from sqlalchemy.orm import Session, sessionmaker

from colmlm.kb.corpus.format import AnnotatedDocument
from colmlm.kb.facts.redaction import MARK
from colmlm.kb.tables import DocumentRow


class Standing(StrEnum):
    """Whether a document is `new` to a corpus, `unchanged`, or `changed`: there with another text, title or address."""

    new = "new"
    unchanged = "unchanged"
    changed = "changed"


@dataclass(frozen=True, slots=True)
class Standings:
    """Compares documents with the current ones of a corpus. Facts do not count."""

    sessions: sessionmaker[Session]
    corpus: str

    def of(self, document: AnnotatedDocument) -> Standing:
        statement = select(
            DocumentRow.text, DocumentRow.title, DocumentRow.uri, DocumentRow.licence, DocumentRow.revision
        ).where(
            DocumentRow.corpus == self.corpus,
            DocumentRow.external_id == document.external_id,
            DocumentRow.replaced_seq.is_(None),
        )
        with self.sessions() as session:
            row = session.execute(statement).one_or_none()
        if row is None:
            return Standing.new
        said = ((stored, getattr(document, name)) for name, stored in row._mapping.items())
        is_same = all(a == b or (a and b and says_the_same(a, b)) for a, b in said)
        return Standing.unchanged if is_same else Standing.changed


def says_the_same(stored: str, text: str) -> bool:
    """Say whether a stored text equals this one, apart from what was erased from it."""
    if stored == text or len(stored) != len(text):
        return stored == text
    return MARK in stored and all(a in (b, MARK) for a, b in zip(stored, text, strict=True))
