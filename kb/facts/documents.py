"""Documents: the texts that were ingested, listed and read."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC
from typing import Any

from sqlalchemy import Row, Select, func, select

from colmlm.kb.errors import DocumentNotFound
from colmlm.kb.facts import reading
from colmlm.kb.facts.records import DocumentRecord, FactRecord
from colmlm.kb.store.store import Store
from colmlm.kb.tables import DocumentRow, FactRow


@dataclass(frozen=True, slots=True)
class StoredDocuments:
    """Reads the documents of a store."""

    store: Store

    def find(
        self, *, corpus: str | None = None, replaced: bool = False, after: int = 0, limit: int = 50
    ) -> list[DocumentRecord]:
        """Finds documents past id `after`, by id: the current ones, or with `replaced` those that were replaced.

        Raises `CorpusNotFound`.
        """
        gone = DocumentRow.replaced_seq.is_not(None) if replaced else DocumentRow.replaced_seq.is_(None)
        statement = _statement().where(DocumentRow.id > after, gone).order_by(DocumentRow.id).limit(limit)
        with self.store.sessions() as session:
            if corpus is not None:
                reading.require_corpus(session, corpus)
                statement = statement.where(DocumentRow.corpus == corpus)
            return [_record(row) for row in session.execute(statement)]

    def read(self, document_id: int) -> tuple[DocumentRecord, str]:
        """Gives a document and its text. Raises `DocumentNotFound`."""
        with self.store.sessions() as session:
            row = session.execute(_statement().where(DocumentRow.id == document_id)).one_or_none()
            if row is None:
                raise DocumentNotFound(document_id)
            return _record(row), reading.document_text(session, document_id)

    def text(self, document_id: int) -> str:
        """Gives the text of a document. Raises `DocumentNotFound`."""
        with self.store.sessions() as session:
            return reading.document_text(session, document_id)

    def facts(
        self, document_id: int, *, deleted: bool | None = False, after: int = 0, limit: int = 50
    ) -> list[FactRecord]:
        """Gives the facts of a document past id `after`, by id. Raises `DocumentNotFound`."""
        with self.store.sessions() as session:
            if session.scalar(select(DocumentRow.id).where(DocumentRow.id == document_id)) is None:
                raise DocumentNotFound(document_id)
            return reading.list_facts(
                session, document_id=document_id, deleted=deleted, after=after, limit=limit
            )


def _statement() -> Select[*tuple[Any, ...]]:
    live = select(func.count()).where(FactRow.document_id == DocumentRow.id, FactRow.deleted_seq.is_(None))
    return select(
        DocumentRow.id,
        *reading.DOCUMENT_COLUMNS,
        DocumentRow.sha256,
        func.length(DocumentRow.text).label("characters"),
        live.correlate(DocumentRow).scalar_subquery().label("live_facts"),
        DocumentRow.ingested_at,
        DocumentRow.replaced_seq,
    )


def _record(row: Row[Any]) -> DocumentRecord:
    return DocumentRecord(
        document_id=row.id,
        corpus=row.corpus,
        external_id=row.external_id,
        title=row.title,
        uri=row.uri,
        licence=row.licence,
        revision=row.revision,
        sha256=row.sha256,
        characters=row.characters,
        live_facts=row.live_facts,
        ingested_at=row.ingested_at.astimezone(UTC),
        replaced_seq=row.replaced_seq,
    )
