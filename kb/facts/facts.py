"""Facts: added, edited, deleted, restored and found. Each edit is one transaction and one change of the log."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Unpack

from sqlalchemy import func, select, text, update
from sqlalchemy.orm import Session

from colmlm.kb.errors import FactNotFound, InvalidValue
from colmlm.kb.facts import edits, reading, search, versions
from colmlm.kb.facts.records import (
    Contradicting,
    Edit,
    Editing,
    FactDraft,
    FactEdit,
    FactPage,
    FactRecord,
    FactSearch,
    FactsSought,
    MarkedAddition,
    Marking,
    Moving,
)
from colmlm.kb.log import audit
from colmlm.kb.store.store import Store
from colmlm.kb.store.waits import retry_on_contention
from colmlm.kb.tables import (
    DocumentRow,
    FactRow,
)

PAGE = 1000  # facts that are read at once where all are


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts of a store.

    An edit whose first lock is the log's is committed with those of other threads (`GroupCommit`). One that looks for
    contradictions or for a place in a document takes other locks first.
    """

    store: Store

    def add(
        self,
        question: str,
        value: str,
        *,
        answer: str | None = None,
        proposed: bool = False,
        **how: Unpack[Contradicting],
    ) -> Edit:
        """Add a fact without a document. Lookups find it once a fill has made its key.

        Raises `FactSuppressed` where this question and value were erased, unless `allow_erased`, and `AnsweredAlready`
        where another fact answers the question otherwise, unless `anyway`.
        """
        return self.add_many([FactDraft(question, value, answer, proposed)], **how)

    @retry_on_contention
    def add_many(self, drafts: Sequence[FactDraft], **how: Unpack[Contradicting]) -> Edit:
        """Add these facts in one change, all or none. Raises as `add` does."""
        _require_some(len(drafts))
        with self.store.sessions.begin() as session:
            return edits.insert_facts(session, drafts, **how)

    @retry_on_contention
    def add_to(self, document_id: int, span: Marking, **how: Unpack[MarkedAddition]) -> Edit:
        """Add a fact to a document; the text of the span becomes its value. Lookups find it after the next fill.

        Raises `DocumentNotFound`, `DocumentReplaced`, `InvalidSpan`, `SpanTaken`, or what `add` raises.
        """
        with self.store.sessions.begin() as session:
            return versions.mark_fact(session, document_id, span, **how)

    def edit(
        self,
        fact_id: int,
        value: str | None = None,
        *,
        question: str | None = None,
        version: int | None = None,
        **how: Unpack[Editing],
    ) -> Edit:
        """Give a fact another value, another question, or both.

        From the commit on, every process answers with the new value, and no longer by the former question. After a new
        question the next fill makes its keys. Raises `FactChanged` if the fact no longer has this `version`.
        """
        return self.edit_many([FactEdit(fact_id, value, question, version)], **how)

    @retry_on_contention
    def edit_many(self, fact_edits: Sequence[FactEdit], **how: Unpack[Editing]) -> Edit:
        """Edit each of these facts, in one change.

        Raises `FactNotFound`, `FactDeleted`, `FactErased` or `FactChanged`, and `AnsweredAlready` where an edit makes a
        contradiction, unless `anyway`.
        """
        _require_some(len(fact_edits))
        with self.store.group_commit.begin() as session:
            return versions.edit_facts(session, fact_edits, **how)

    @retry_on_contention
    def move(self, fact_id: int, span: Marking, **how: Unpack[Moving]) -> Edit:
        """Move the span of a fact within its document; the text of the new span becomes its value.

        Raises what `add_to` and `edit` raise.
        """
        with self.store.sessions.begin() as session:
            return versions.move_fact(session, fact_id, span, **how)

    @retry_on_contention
    def undo(self, seq: int, *, actor: str, reason: str) -> Edit:
        """Undo the edit of facts that is change `seq`, all of it or nothing.

        Raises `NoSuchChange`, or `NotUndoable` if one of its facts was edited since or the change is no edit of facts.
        """
        with self.store.group_commit.begin() as session:
            return versions.undo_change(session, seq, actor, reason)

    @retry_on_contention
    def delete(self, fact_ids: Sequence[int], *, actor: str, reason: str, abstain: bool = False) -> Edit:
        """Delete facts, all or none; from the commit on no process answers with them.

        With `abstain` a query whose nearest key is one of theirs gets no match instead of the runner-up.
        """
        with self.store.group_commit.begin() as session:
            return edits.delete_facts(session, fact_ids, actor, reason, abstain=abstain)

    @retry_on_contention
    def restore(self, fact_ids: Sequence[int], *, actor: str, reason: str) -> Edit:
        """Undo the delete or the rejection of facts, all or none; each fact gets its former review back."""
        with self.store.group_commit.begin() as session:
            return edits.restore_facts(session, fact_ids, actor, reason)

    def show(self, fact_id: int) -> FactRecord:
        """Give one fact, live or deleted. Raises `FactNotFound`."""
        with self.store.sessions() as session:
            return reading.get_fact(session, fact_id)

    def show_many(self, fact_ids: Sequence[int]) -> list[FactRecord]:
        """Give these facts in the given order. Raises `FactNotFound`, which names all missing ones."""
        with self.store.sessions() as session:
            found = reading.fact_records(session, fact_ids)
        if missing := [fact_id for fact_id in fact_ids if fact_id not in found]:
            raise FactNotFound(missing)
        return [found[fact_id] for fact_id in fact_ids]

    def ids_of(self, corpus: str, external_ids: Sequence[str]) -> list[int]:
        """Give the ids of all facts, also deleted ones, of the current documents with these external ids."""
        with self.store.sessions() as session:
            return reading.ids_of_sources(session, corpus, external_ids)

    def find(self, **sought: Unpack[FactsSought]) -> list[FactRecord]:
        """List the facts that fit all filters of `FactsSought`, by id; `text` is matched literally."""
        with self.store.sessions() as session:
            return reading.list_facts(session, **sought)

    def search(
        self, *, nearest: Sequence[int] | None = None, past: bool = True, **sought: Unpack[FactSearch]
    ) -> FactPage:
        """Search facts by a text in their values, questions, titles and sentences, and count them.

        `nearest` are fact ids that a lookup found by meaning: those that fit the filters are given, in their order.
        Without `past` no sentence is matched that overlaps the span of a deleted or corrected fact.
        """
        with self.store.sessions() as session:
            return search.search_facts(session, nearest=nearest, past=past, **sought)

    def every_of(self, document_id: int) -> list[FactRecord]:
        """Find all facts of a document, also deleted ones, by id."""
        found: list[FactRecord] = []
        while page := self.find(
            document_id=document_id, deleted=None, after=found[-1].fact_id if found else 0, limit=PAGE
        ):
            found += page
        return found

    def every(self, corpus: str | None = None) -> Iterator[FactRecord]:
        """Yield all live facts by id, a page in each transaction. Raises `CorpusNotFound`."""
        after = 0
        while page := self.find(corpus=corpus, after=after, limit=PAGE):
            yield from page
            after = page[-1].fact_id


def _require_some(count: int) -> None:
    if not count:
        raise InvalidValue("batch", "it holds no fact")


# Removal: takes documents out of use as a whole, and puts those back that come again. Session first; nothing
# commits.
#
# A document that is removed keeps its row, as evidence of what was once spliced; its facts are deleted, and
# its text is not found or quoted any more. It has no current edition then, and that is how a removal is
# known. Put back, it has the facts that the removal deleted, with their corrections; what was deleted before
# stays deleted.

# The last edition of each document that has no current one, and the facts that its removal deleted.
_REMOVED = text("""
SELECT DISTINCT ON (d.external_id) d.id, d.replaced_seq FROM document d
WHERE d.corpus = :corpus AND d.external_id = ANY(:external_ids) AND NOT EXISTS (
    SELECT FROM document c WHERE c.corpus = d.corpus AND c.external_id = d.external_id AND c.replaced_seq IS NULL
)
ORDER BY d.external_id, d.id DESC
""")
_ITS_FACTS = text("""
SELECT f.id FROM document gone
JOIN document d ON d.corpus = gone.corpus AND d.external_id = gone.external_id
JOIN fact f ON f.document_id = d.id AND f.deleted_seq = gone.replaced_seq AND f.erased_seq IS NULL
WHERE gone.id = ANY(:ids) ORDER BY f.id
""")


def remove_documents(
    session: Session,
    corpus: str,
    external_ids: Collection[str],
    actor: str,
    reason: str,
    payload: Mapping[str, Any] | None = None,
) -> Edit | None:
    """Take current documents out of use in one change, with all their facts. Their texts and facts stay, hidden.

    Documents that are not current are passed over. Gives None if no document is current.
    """
    pending = audit.begin_change(session, actor, reason)
    named = (DocumentRow.corpus == corpus, DocumentRow.external_id == func.any(list(external_ids)))
    current = select(DocumentRow.id).where(*named, DocumentRow.replaced_seq.is_(None))
    if not (gone := session.scalars(current).all()):
        return None
    of_any = select(DocumentRow.id).where(*named)  # a fact of an older edition may have been restored
    live = select(FactRow.id).where(FactRow.document_id.in_(of_any), FactRow.deleted_seq.is_(None))
    fact_ids = session.scalars(live.order_by(FactRow.id)).all()
    edits.end_facts(session, fact_ids, pending.seq)
    removing = update(DocumentRow).where(DocumentRow.id == func.any(list(gone)))
    session.execute(removing.values(replaced_seq=pending.seq))
    said = {**(payload or {}), "corpus": corpus, "removed": len(gone)}
    return edits.append_edit(session, pending, "delete", fact_ids, said)


def put_back_documents(
    session: Session, pending: audit.Pending, corpus: str, external_ids: Collection[str]
) -> Edit | None:
    """Put removed documents back with their facts, in one change; None where none was removed."""
    known = {"corpus": corpus, "external_ids": list(external_ids)}
    if not external_ids or not (ids := [row.id for row in session.execute(_REMOVED, known)]):
        return None
    fact_ids = session.scalars(_ITS_FACTS, {"ids": ids}).all()
    versions.make_current(session, ids)
    return edits.reopen_facts(
        session, pending, edits.last_versions(session, fact_ids), {"corpus": corpus, "put_back": len(ids)}
    )
