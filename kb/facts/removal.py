"""Removal: takes documents out of use as a whole, and puts those back that come again. Session first; nothing commits.

A document that is removed keeps its row, as evidence of what was once spliced; its facts are deleted, and its text is
not found or quoted any more. It has no current edition then, and that is how a removal is known. Put back, it has the
facts that the removal deleted, with their corrections; what was deleted before stays deleted.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlalchemy import func, select, text, update
from sqlalchemy.orm import Session

from colmlm.kb.facts import edits, sentences
from colmlm.kb.facts.records import Edit
from colmlm.kb.log import audit
from colmlm.kb.tables import DocumentRow, FactRow

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
    session: Session, corpus: str, external_ids: Collection[str], actor: str, reason: str
) -> Edit | None:
    """Takes these documents out of use, in one change, with all their facts.

    Those that are not current are left alone; None where none is.
    """
    pending = audit.begin(session, actor, reason)
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
    return edits.done(session, pending, "delete", fact_ids, {"corpus": corpus, "removed": len(gone)})


def put_back(
    session: Session, pending: audit.Pending, corpus: str, external_ids: Collection[str]
) -> Edit | None:
    """Puts back those of these documents that were removed, with their facts, in one change; None without one."""
    known = {"corpus": corpus, "external_ids": list(external_ids)}
    if not external_ids or not (ids := [row.id for row in session.execute(_REMOVED, known)]):
        return None
    fact_ids = session.scalars(_ITS_FACTS, {"ids": ids}).all()
    make_current(session, ids)
    return edits.reopen(
        session, pending, edits.last_versions(session, fact_ids), {"corpus": corpus, "put_back": len(ids)}
    )


def removed_by(session: Session, seq: int) -> Sequence[int]:
    """Gives the documents that this change took out of use, of a change that deleted facts."""
    return session.scalars(select(DocumentRow.id).where(DocumentRow.replaced_seq == seq)).all()


def make_current(session: Session, document_ids: Sequence[int]) -> None:
    """Makes these documents current again, so that their sentences are found."""
    again = update(DocumentRow).where(DocumentRow.id == func.any(list(document_ids)))
    session.execute(again.values(replaced_seq=None))
    sentences.write_documents(session, document_ids)
