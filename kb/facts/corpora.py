"""Corpora: taken in, given back, counted, and deleted as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session

from colmlm.kb.corpus.format import AnnotatedDocument, Parsed
from colmlm.kb.errors import ExternalIdNotFound
from colmlm.kb.facts import reading
from colmlm.kb.facts.edits import end_facts
from colmlm.kb.facts.export import export
from colmlm.kb.facts.ingest import COMMIT_EVERY, Ingest
from colmlm.kb.facts.records import CorpusStats, Edit, IngestReport
from colmlm.kb.facts.standing import Standings
from colmlm.kb.log import audit
from colmlm.kb.store.store import Store
from colmlm.kb.tables import Document, Fact


@dataclass(frozen=True, slots=True)
class Corpora:
    """The corpora of a store."""

    store: Store

    def all(self) -> list[CorpusStats]:
        """Counts what each corpus has."""
        with self.store.sessions() as session:
            return reading.corpora(session)

    def ingest(
        self,
        parsed: Iterable[Parsed],
        corpus: str,
        *,
        actor: str,
        reason: str,
        on_document: Callable[[int], None] | None = None,
        on_piece: Callable[[IngestReport], None] | None = None,
        commit_every: int | None = None,
        dry_run: bool = False,
        allow_erased: bool = False,
    ) -> IngestReport:
        """Takes the sound documents into a corpus, so many in one transaction and change: these, or (on kill -9) none.

        `on_piece` hears what is committed so far; calling again with the same documents goes on from there. What was
        erased stays out, unless `allow_erased`.
        """
        every = commit_every or COMMIT_EVERY
        run = Ingest(self.store.sessions, corpus, actor, reason, every, dry_run, allow_erased)
        return run.run(parsed, on_document, on_piece)

    def export(self, corpus: str, *, live_only: bool = True) -> Iterator[AnnotatedDocument]:
        """Gives the corpus as documents, from one snapshot of the database.

        They come with the live facts their texts still say, or (not `live_only`) with every fact and what became of it,
        as an ingest takes it back. Raises `CorpusNotFound` at once.
        """
        with self.store.sessions() as session:
            reading.require_corpus(session, corpus)
        return self._export(corpus, live_only)

    def _export(self, corpus: str, live_only: bool) -> Iterator[AnnotatedDocument]:
        with self.store.sessions() as session:
            yield from export(session, corpus, live_only=live_only)

    def standings(self, corpus: str) -> Standings:
        """Compares documents with the current ones of a corpus."""
        return Standings(self.store.sessions, corpus)

    def delete(
        self, corpus: str, external_ids: Sequence[str] | None = None, *, actor: str, reason: str
    ) -> Edit:
        """Deletes every live fact of these documents, or of the whole corpus, in one change; the texts stay.

        Raises `CorpusNotFound` or `ExternalIdNotFound`. Without a live fact there is no change: `fact_ids` is empty
        and `seq` the last change that was there.
        """
        with self.store.sessions.begin() as session:
            return delete_documents(session, corpus, external_ids, actor, reason)

    def count(self, corpus: str, external_ids: Sequence[str] | None = None) -> tuple[int, int]:
        """Counts the current documents and live facts that `delete` would be about."""
        with self.store.sessions() as session:
            chosen = _chosen(session, corpus, external_ids)
            live = select(func.count()).where(Fact.document_id.in_(chosen), Fact.deleted_seq.is_(None))
            current = select(func.count()).where(Document.id.in_(chosen), Document.replaced_seq.is_(None))
            return session.scalar(current) or 0, session.scalar(live) or 0


def delete_documents(
    session: Session, corpus: str, external_ids: Sequence[str] | None, actor: str, reason: str
) -> Edit:
    """End every live fact of these documents; see `Corpora.delete`. Does not commit."""
    pending = audit.begin(session, actor, reason)
    chosen = _chosen(session, corpus, external_ids)
    live = select(Fact.id).where(Fact.document_id.in_(chosen), Fact.deleted_seq.is_(None))
    fact_ids = session.scalars(live.order_by(Fact.id)).all()
    if not fact_ids:
        return Edit(pending.seq - 1, "delete", ())
    end_facts(session, fact_ids, pending.seq)
    payload: dict[str, Any] = {"corpus": corpus}
    if external_ids is not None:
        payload["documents"] = len(set(external_ids))
    seq = audit.append(session, pending, "delete", fact_ids, payload=payload)
    return Edit(seq, "delete", tuple(fact_ids))


def _chosen(session: Session, corpus: str, external_ids: Sequence[str] | None) -> Select[Any]:
    """SQL: the ids of these documents, replaced editions too: a fact of one may have been restored."""
    reading.require_corpus(session, corpus)
    chosen = select(Document.id).where(Document.corpus == corpus)
    if external_ids is None:
        return chosen
    asked = list(dict.fromkeys(external_ids))
    storable = [name for name in asked if "\x00" not in name]
    found = select(Document.external_id).where(
        Document.corpus == corpus, Document.external_id == func.any(storable)
    )
    there = set(session.scalars(found))
    if missing := [name for name in asked if name not in there]:
        raise ExternalIdNotFound(corpus, missing)
    return chosen.where(Document.external_id == func.any(storable))
