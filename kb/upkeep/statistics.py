"""Statistics: counts everything in a knowledge base."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, select, text
from sqlalchemy.orm import Session

from colmlm.kb.log import audit
from colmlm.kb.tables import DocumentRow, FactRow, ForgetRunRow, GenerationRow, KeysetRow


@dataclass(frozen=True, slots=True)
class Statistics:
    """Counts as of change `head_seq`. `documents` are the current ones, and `facts` the live ones.

    `facts_without_document` counts the live facts that no document says. `deleted` facts can be restored, `erased` not,
    and `to_review` are the live ones that are proposed.
    """

    head_seq: int
    corpora: int
    documents: int
    facts: int
    facts_without_document: int
    deleted: int
    erased: int
    generations: int
    keysets: int
    active_keyset_id: int | None
    forget_runs: int
    to_review: int


def statistics(session: Session) -> Statistics:
    """Counts everything, in one statement for each table, which reads the whole table."""
    live, current = FactRow.deleted_seq.is_(None), DocumentRow.replaced_seq.is_(None)
    counted: tuple[Any, ...] = (
        func.count().filter(live).label("facts"),
        func.count().filter(live, FactRow.document_id.is_(None)).label("facts_without_document"),
        func.count().filter(FactRow.deleted_seq.is_not(None), FactRow.erased_seq.is_(None)).label("deleted"),
        func.count(FactRow.erased_seq).label("erased"),
        func.count().filter(live, FactRow.review == "proposed").label("to_review"),
    )
    session.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY"))
    of_facts = session.execute(select(*counted).select_from(FactRow)).one()
    documents = select(func.count().filter(current), func.count(func.distinct(DocumentRow.corpus)))
    num_documents, num_corpora = session.execute(documents.select_from(DocumentRow)).one()
    return Statistics(
        head_seq=audit.head_seq(session),
        corpora=num_corpora,
        documents=num_documents,
        facts=of_facts.facts,
        facts_without_document=of_facts.facts_without_document,
        deleted=of_facts.deleted,
        erased=of_facts.erased,
        generations=session.scalar(select(func.count()).select_from(GenerationRow)) or 0,
        keysets=session.scalar(select(func.count()).where(KeysetRow.state != "retired")) or 0,
        active_keyset_id=session.scalar(select(KeysetRow.id).where(KeysetRow.state == "active")),
        forget_runs=session.scalar(select(func.count()).select_from(ForgetRunRow)) or 0,
        to_review=of_facts.to_review,
    )
