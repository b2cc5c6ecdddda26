"""Part: which facts an inbox is of, those of a corpus, of a document or all, and between which documents they lie."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import ColumnElement, literal, select
from sqlalchemy.orm import Session

from colmlm.kb.facts import reading
from colmlm.kb.facts.edits import MAX_ID
from colmlm.kb.facts.stretches import Stretches, lies_in, stretches_of
from colmlm.kb.tables import DocumentRow, FactRow

_CORPUS = select(DocumentRow.corpus).where(DocumentRow.id == FactRow.document_id).scalar_subquery()


@dataclass(frozen=True, slots=True)
class Part:
    """The facts of an inbox, by conditions of two forms, and the stretches of their documents' ids; 0 stands for none.

    What is `walked` in an order asks for the document of one fact after the other; what is `counted` may be joined
    with all documents of a corpus at once.
    """

    walked: tuple[ColumnElement[bool], ...] = ()
    counted: tuple[ColumnElement[bool], ...] = ()
    stretches: Stretches = ((0, MAX_ID),)

    @classmethod
    def read(cls, session: Session, corpus: str | None, document_id: int | None) -> Part:
        """Raises `CorpusNotFound`."""
        part = cls()
        if corpus is not None:
            reading.require_corpus(session, corpus)
            stretches = stretches_of(session, corpus)
            documents = select(DocumentRow.id).where(DocumentRow.corpus == corpus)
            joined = (FactRow.document_id.in_(documents), lies_in(stretches, FactRow.document_id))
            part = cls((literal(corpus) == _CORPUS,), joined, stretches)
        if document_id is not None:
            of_document = FactRow.document_id == document_id
            whole = ((document_id, document_id),)
            part = cls((*part.walked, of_document), (*part.counted, of_document), whole)
        return part
