"""Corpora: ingested, exported, counted, deleted as a whole, and compared with documents to annotate."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC
from enum import StrEnum
from typing import Any

from sqlalchemy import Row, Select, case, delete, exists, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session, aliased, sessionmaker

from colmlm.kb.corpus.format import NO_TEXT, AnnotatedDocument, FactSpan, Parsed
from colmlm.kb.errors import refusals
from colmlm.kb.facts import reading
from colmlm.kb.facts.edits import end_facts
from colmlm.kb.facts.facts import remove_documents
from colmlm.kb.facts.ingest import COMMIT_EVERY, IngestRun, record_seen
from colmlm.kb.facts.reading import DOCUMENT_COLUMNS
from colmlm.kb.facts.records import CorpusStats, DocumentRecord, Edit, FactRecord, IngestReport
from colmlm.kb.facts.redaction import MARK, require_unheld
from colmlm.kb.log import audit
from colmlm.kb.store.store import Store
from colmlm.kb.tables import (
    DocumentRow,
    FactPastRow,
    FactRow,
    FactVersionRow,
    SyncedFileRow,
    SyncedFolderRow,
    copy_columns,
)


@dataclass(frozen=True, slots=True)
class Corpora:
    """The corpora of a store."""

    store: Store

    def all(self) -> list[CorpusStats]:
        """Count the documents and facts of each corpus."""
        with self.store.reports() as session:
            return reading.list_corpora(session)

    def ingest(
        self,
        parsed: Iterable[Parsed],
        corpus: str,
        *,
        actor: str,
        reason: str,
        on_document: Callable[[int], None] | None = None,
        on_piece: Callable[[IngestReport], None] | None = None,
        before_piece: Callable[[], None] | None = None,
        commit_every: int | None = None,
        dry_run: bool = False,
        allow_erased: bool = False,
        generated: bool = False,
    ) -> IngestReport:
        """Ingest the documents of `parsed` that pass the checks, `commit_every` in one transaction and one change.

        A killed process leaves only whole pieces of that size. Ingesting the same documents again continues from there.
        `before_piece` is called before each piece is stored, `on_piece` with a report of all pieces committed so far.
        Erased facts stay out, unless `allow_erased`. `generated` says that a machine marked the facts: they are
        proposed, and no calibration of answers uses their questions.
        """
        every = commit_every or COMMIT_EVERY
        run = IngestRun(self.store.sessions, corpus, actor, reason, every, dry_run, allow_erased, generated)
        return run.run(parsed, on_document, on_piece, before_piece)

    def export(self, corpus: str, *, live_only: bool = True) -> Iterator[AnnotatedDocument]:
        """Yield the documents of the corpus with their facts, read from one snapshot of the database.

        With `live_only` they have the live facts that their texts still say. Without it they have every fact with its
        correction or deletion, in the form that an ingest reads. Raises `CorpusNotFound` and `TextsMissing` at once,
        before the first document is read.
        """
        with self.store.sessions() as session:
            reading.require_corpus(session, corpus)
            require_texts(session, corpus)
        return self._export(corpus, live_only)

    def _export(self, corpus: str, live_only: bool) -> Iterator[AnnotatedDocument]:
        with self.store.sessions() as session:
            yield from export_corpus(session, corpus, live_only=live_only)

    def standings(self, corpus: str) -> DocumentStandings:
        """Give the `DocumentStandings` of a corpus, which say whether a document is new to it, unchanged or changed."""
        return DocumentStandings(self.store.sessions, corpus)

    def delete(
        self, corpus: str, external_ids: Sequence[str] | None = None, *, actor: str, reason: str
    ) -> Edit:
        """Delete every live fact of these documents, or of the whole corpus, in one change; the texts stay.

        Raises `CorpusNotFound` or `ExternalIdNotFound`, and `HoldStands` where one of the facts is held. Without a live
        fact there is no change: then `fact_ids` is empty and `seq` is the number of the last change before.
        """
        with self.store.sessions.begin() as session:
            pending = audit.begin_change(session, actor, reason)
            chosen = _select_documents(session, corpus, external_ids)
            live = select(FactRow.id).where(FactRow.document_id.in_(chosen), FactRow.deleted_seq.is_(None))
            fact_ids = session.scalars(live.order_by(FactRow.id)).all()
            if not fact_ids:
                return Edit(pending.seq - 1, "delete", ())
            require_unheld(session, fact_ids)
            end_facts(session, fact_ids, pending.seq)
            payload: dict[str, Any] = {"corpus": corpus}
            if external_ids is not None:
                payload["documents"] = len(set(external_ids))
            seq = audit.append_change(session, pending, "delete", fact_ids, payload=payload)
            return Edit(seq, "delete", tuple(fact_ids))

    def remove(self, corpus: str, external_ids: Collection[str], *, actor: str, reason: str) -> Edit | None:
        """Take current documents out of use in one change: delete their facts and hide their texts from searches.

        Documents that are not current are passed over. Gives None if no document is current. A later ingest of a
        document puts it back with its facts.
        """
        with self.store.sessions.begin() as session:
            return remove_documents(session, corpus, external_ids, actor, reason)

    def synced_files(self, corpus: str) -> dict[str, SyncedFile]:
        """Give the files of the corpus's last sync by path; the digest is None if the sync did not finish the file."""
        with self.store.sessions() as session:
            rows = select(SyncedFileRow).where(SyncedFileRow.corpus == corpus)
            files: dict[str, SyncedFile] = {}
            for row in session.scalars(rows.order_by(SyncedFileRow.path, SyncedFileRow.part)):
                before = files[row.path].documents if row.path in files else ()
                files[row.path] = SyncedFile(row.path, row.digest, (*before, *row.documents))
            return files

    def followed_paths(self, corpus: str) -> Sequence[str]:
        """Give the folder that the corpus follows, as its absolute and its resolved path; empty if it follows none."""
        with self.store.sessions() as session:
            return (
                session.scalars(
                    select(SyncedFolderRow.places).where(SyncedFolderRow.corpus == corpus)
                ).first()
                or ()
            )

    def follow(self, corpus: str, places: Sequence[str]) -> None:
        """Store the folder that the corpus follows, as its absolute and its resolved path."""
        with self.store.sessions.begin() as session:
            row = insert(SyncedFolderRow).values(corpus=corpus, places=list(places))
            session.execute(
                row.on_conflict_do_update(index_elements=["corpus"], set_={"places": row.excluded.places})
            )

    def key_digests(self, digests: Mapping[str, str]) -> dict[str, str]:
        """Make keyed digests (HMAC) of the digests of files, by path, as the rows of synced files store them."""
        with self.store.sessions() as session:
            return key_digests(session, digests)

    def note_seen(self, corpus: str, external_ids: Collection[str]) -> None:
        """Record that these documents were just found unchanged at their source. Retention rules may count from now."""
        with self.store.sessions.begin() as session:
            named = (DocumentRow.corpus == corpus, DocumentRow.external_id == func.any(list(external_ids)))
            current = select(DocumentRow.id).where(*named, DocumentRow.replaced_seq.is_(None))
            record_seen(session, session.scalars(current).all())

    def begin_synced(self, corpus: str, documents: Mapping[str, Collection[str]]) -> None:
        """Store, by path, the external ids of the documents that a sync is about to ingest."""
        with self.store.sessions.begin() as session:
            for path, names in documents.items():
                begin_sync(session, corpus, path, names)

    def keep_synced(self, corpus: str, files: Collection[SyncedFile], gone: Collection[str]) -> None:
        """Store the digests and document ids of these synced files, and delete the rows of the paths `gone`."""
        with self.store.sessions.begin() as session:
            dropped = [*gone, *(file.path for file in files)]
            dropping = delete(SyncedFileRow).where(
                SyncedFileRow.corpus == corpus, SyncedFileRow.path == func.any(dropped)
            )
            session.execute(dropping)
            session.add_all(
                SyncedFileRow(
                    corpus=corpus, path=file.path, part=0, digest=file.digest, documents=list(file.documents)
                )
                for file in files
            )

    def count(self, corpus: str, external_ids: Sequence[str] | None = None) -> tuple[int, int]:
        """Give the number of current documents, and that of the live facts that `delete` would delete."""
        with self.store.sessions() as session:
            chosen = _select_documents(session, corpus, external_ids)
            live = select(func.count()).where(FactRow.document_id.in_(chosen), FactRow.deleted_seq.is_(None))
            current = select(func.count()).where(
                DocumentRow.id.in_(chosen), DocumentRow.replaced_seq.is_(None)
            )
            return session.scalar(current) or 0, session.scalar(live) or 0


def _select_documents(session: Session, corpus: str, external_ids: Sequence[str] | None) -> Select[Any]:
    """Build a statement (SQL) for the ids of these documents, or of all in the corpus, also of replaced ones.

    A fact of a replaced document may have been restored. Raises `CorpusNotFound` or `ExternalIdNotFound`.
    """
    reading.require_corpus(session, corpus)
    chosen = select(DocumentRow.id).where(DocumentRow.corpus == corpus)
    if external_ids is None:
        return chosen
    asked = list(dict.fromkeys(external_ids))
    storable = [name for name in asked if "\x00" not in name]
    found = select(DocumentRow.external_id).where(
        DocumentRow.corpus == corpus, DocumentRow.external_id == func.any(storable)
    )
    there = set(session.scalars(found))
    if missing := [name for name in asked if name not in there]:
        raise refusals.external_id_not_found(corpus, missing)
    return chosen.where(DocumentRow.external_id == func.any(storable))


# Export: writes a corpus as annotated documents, from which an ingest restores the same state.

_ABOUT = DOCUMENT_COLUMNS[1:]


def export_corpus(session: Session, corpus: str, *, live_only: bool) -> Iterator[AnnotatedDocument]:
    """Yield the current documents of a corpus in the order of ingest, with their facts, corrections and deletions.

    With `live_only`, for training, a document has only live facts whose value is the text of their span. Erased facts
    are never exported, since their text is redacted.
    """
    facts = (
        select(_spans())
        .select_from(FactRow)
        .join(_SAID, (_SAID.fact_id == FactRow.id) & (_SAID.version == FactRow.said_version))
    )
    facts = facts.join(_LAST, (_LAST.fact_id == FactRow.id) & (_LAST.version == _last_version()))
    facts = facts.where(FactRow.document_id == DocumentRow.id, FactRow.erased_seq.is_(None))
    if live_only:
        facts = facts.where(_LAST.to_seq.is_(None), _LAST.value == _SAID.value)
    statement = (
        select(DocumentRow.text, facts.correlate(DocumentRow).scalar_subquery().label("facts"), *_ABOUT)
        .where(DocumentRow.corpus == corpus, DocumentRow.replaced_seq.is_(None))
        .order_by(DocumentRow.id)
        .execution_options(yield_per=200)
    )
    with closing(session.execute(statement)) as rows:  # closed also where a reader stops in the middle
        yield from map(_document, rows)


def require_texts(session: Session, corpus: str) -> None:
    """Raise `TextsMissing` where samples of a release have no text yet: their facts would be left out."""
    without = select(func.count()).where(
        DocumentRow.corpus == corpus, DocumentRow.replaced_seq.is_(None), DocumentRow.sha256 == NO_TEXT
    )
    if missing := session.scalar(without) or 0:
        raise refusals.texts_missing(corpus, missing)


_SAID = aliased(FactVersionRow)  # the value that the text says
_LAST = aliased(FactVersionRow)


def _last_version() -> Any:
    newest = select(func.max(FactVersionRow.version)).where(FactVersionRow.fact_id == FactRow.id)
    return newest.correlate(FactRow).scalar_subquery()


def _said_answer() -> Any:
    """Build an expression (SQL) for the answer that the annotator gave to the value in the text, before any edit."""
    since_said = (FactPastRow.fact_id == FactRow.id, FactPastRow.version >= FactRow.said_version)
    first = select(FactPastRow.answer).where(*since_said).order_by(FactPastRow.version).limit(1)
    changed = exists().where(*since_said).correlate(FactRow)
    return case((changed, first.correlate(FactRow).scalar_subquery()), else_=FactRow.answer)


def _spans() -> Any:
    return func.jsonb_agg(
        func.jsonb_build_array(
            FactRow.span_start,
            FactRow.span_end,
            _SAID.value,
            FactRow.question,
            _said_answer(),
            func.nullif(_LAST.value, _SAID.value),
            FactRow.deleted_seq.is_not(None),
            None,  # no file has the doubts of a machine
            case((FactRow.review_seq.is_not(None), FactRow.review)),
        )
    )


def _document(row: Row[Any]) -> AnnotatedDocument:
    names = {column.key: getattr(row, column.key) for column in _ABOUT}
    ordered = tuple(sorted((FactSpan(*span) for span in row.facts or ()), key=lambda span: span.start))
    return AnnotatedDocument(text=row.text, facts=ordered, **names)


# Documents: the texts that were ingested, listed and read.


@dataclass(frozen=True, slots=True)
class StoredDocuments:
    """Reads the documents of a store."""

    store: Store

    def find(
        self, *, corpus: str | None = None, replaced: bool = False, after: int = 0, limit: int = 50
    ) -> list[DocumentRecord]:
        """Find documents past id `after`, by id: the current ones, or with `replaced` those that were replaced.

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
        """Give a document and its text. Raises `DocumentNotFound`."""
        with self.store.sessions() as session:
            row = session.execute(_statement().where(DocumentRow.id == document_id)).one_or_none()
            if row is None:
                raise refusals.document_not_found(document_id)
            return _record(row), reading.document_text(session, document_id)

    def text(self, document_id: int) -> str:
        """Give the text of a document. Raises `DocumentNotFound`."""
        with self.store.sessions() as session:
            return reading.document_text(session, document_id)

    def place(self, document_id: int) -> str | None:
        """Give the address that a document was read from, a page's or a file's; None if no address is stored."""
        with self.store.sessions() as session:
            return session.scalar(select(DocumentRow.uri).where(DocumentRow.id == document_id))

    def facts(
        self, document_id: int, *, deleted: bool | None = False, after: int = 0, limit: int = 50
    ) -> list[FactRecord]:
        """List a document's facts past id `after`: those live, `deleted` or both (None). Raises `DocumentNotFound`."""
        with self.store.sessions() as session:
            if session.scalar(select(DocumentRow.id).where(DocumentRow.id == document_id)) is None:
                raise refusals.document_not_found(document_id)
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
    return copy_columns(DocumentRecord, row, document_id=row.id, ingested_at=row.ingested_at.astimezone(UTC))


# Synced files: which folder a corpus follows, which files it was filled from, and what each gave.
#
# Session first; nothing commits.


@dataclass(frozen=True, slots=True)
class SyncedFile:
    """A file of a synced folder: its path below the folder, and the external ids of its documents.

    `digest` covers its bytes and how they were read. It is None if the next sync must read the file again.
    """

    path: str
    digest: str | None
    documents: tuple[str, ...]


def begin_sync(session: Session, corpus: str, path: str, documents: Collection[str]) -> None:
    """Store the external ids of a file's documents before they are ingested, in case the sync does not finish."""
    named = (SyncedFileRow.corpus == corpus, SyncedFileRow.path == path)
    last = session.scalar(select(func.max(SyncedFileRow.part)).where(*named))
    session.add(
        SyncedFileRow(corpus=corpus, path=path, part=(last or 0) + 1, digest=None, documents=list(documents))
    )


def key_digests(session: Session, digests: Mapping[str, str]) -> dict[str, str]:
    """Make keyed digests (HMAC) of the digests of files, by path, so that nobody can guess erased files by them."""
    return {path: audit.keyed_digest(session, digest) for path, digest in digests.items()}


class DocumentStanding(StrEnum):
    """The standing of a document in a corpus: `new`, `unchanged`, or `changed` (its text or metadata differ)."""

    new = "new"
    unchanged = "unchanged"
    changed = "changed"


@dataclass(frozen=True, slots=True)
class DocumentStandings:
    """Compares documents with the current ones of a corpus, by text and metadata and not by facts."""

    sessions: sessionmaker[Session]
    corpus: str

    def standing_of(self, document: AnnotatedDocument) -> DocumentStanding:
        """Tell whether a document is new to the corpus, unchanged or changed."""
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
            return DocumentStanding.new
        said = ((stored, getattr(document, name)) for name, stored in row._mapping.items())
        is_same = all(a == b or (a and b and says_the_same(a, b)) for a, b in said)
        return DocumentStanding.unchanged if is_same else DocumentStanding.changed


def says_the_same(stored: str, text: str) -> bool:
    """Say whether a stored text equals `text`, where a redaction mark in the stored one fits any character."""
    if stored == text or len(stored) != len(text):
        return stored == text
    return MARK in stored and all(a in (b, MARK) for a, b in zip(stored, text, strict=True))
