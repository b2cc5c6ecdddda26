"""Diff: compares the values of facts as of two changes of the log."""

from __future__ import annotations

from sqlalchemy import column, func, select, text
from sqlalchemy.orm import Session

from colmlm.kb.errors import InvalidQuery
from colmlm.kb.evidence.records import DIFFERENCES_LISTED, Diff, FactDifference
from colmlm.kb.facts import reading
from colmlm.kb.log.audit import require_change

KINDS = ("inserted", "updated", "deleted", "restored", "erased")

# The values of an erased fact are gone, so two versions of it count as different.
_DIFFERENCE = (
    text("""
    SELECT f.id AS fact_id, d.corpus, a.value AS old, b.value AS new, f.erased_seq IS NOT NULL AS is_redacted,
        CASE WHEN p.fact_id IS NOT NULL THEN p.question WHEN a.fact_id IS NOT NULL THEN f.question END AS old_question,
        CASE WHEN q.fact_id IS NOT NULL THEN q.question WHEN b.fact_id IS NOT NULL THEN f.question END AS new_question,
        CASE WHEN f.erased_seq > :first AND f.erased_seq <= :last THEN 'erased'
             WHEN a.fact_id IS NULL AND f.created_seq > :first THEN 'inserted'
             WHEN a.fact_id IS NULL THEN 'restored'
             WHEN b.fact_id IS NULL THEN 'deleted'
             ELSE 'updated' END AS kind
    FROM fact f
    LEFT JOIN document d ON d.id = f.document_id
    LEFT JOIN fact_version a
        ON a.fact_id = f.id AND a.from_seq <= :first AND (a.to_seq IS NULL OR a.to_seq > :first)
    LEFT JOIN fact_version b
        ON b.fact_id = f.id AND b.from_seq <= :last AND (b.to_seq IS NULL OR b.to_seq > :last)
    LEFT JOIN fact_past p ON p.fact_id = f.id AND p.version = (
        SELECT min(version) FROM fact_past WHERE fact_id = f.id AND version >= a.version)
    LEFT JOIN fact_past q ON q.fact_id = f.id AND q.version = (
        SELECT min(version) FROM fact_past WHERE fact_id = f.id AND version >= b.version)
    WHERE (CAST(:corpus AS text) IS NULL OR d.corpus = :corpus) AND (
        (a.fact_id IS NULL) <> (b.fact_id IS NULL)
        OR (a.version <> b.version AND (f.erased_seq IS NOT NULL OR a.value <> b.value OR p.version < b.version))
        OR (f.erased_seq > :first AND f.erased_seq <= :last))
    """)
    .columns(
        column("fact_id"),
        column("kind"),
        column("corpus"),
        column("old"),
        column("new"),
        column("is_redacted"),
        column("old_question"),
        column("new_question"),
    )
    .cte("difference")
)


def diff(
    session: Session,
    first: int,
    last: int,
    *,
    corpus: str | None = None,
    after: int = 0,
    limit: int = DIFFERENCES_LISTED,
) -> Diff:
    """Compares the facts as of two changes. Raises `NoSuchChange`, `CorpusNotFound`, `InvalidQuery`."""
    session.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY"))
    _check(session, first, last, corpus)
    between = {"first": first, "last": last, "corpus": corpus}
    kind, fact_id = _DIFFERENCE.c.kind, _DIFFERENCE.c.fact_id
    counts = select(kind, func.count().label("num_facts")).group_by(kind)
    counted = {row.kind: row.num_facts for row in session.execute(counts, between)}
    page = select(_DIFFERENCE).where(fact_id > after).order_by(fact_id).limit(limit)
    found = tuple(
        FactDifference(
            fact_id=row.fact_id,
            kind=row.kind,
            corpus=row.corpus,
            old=None if row.is_redacted else row.old,
            new=None if row.is_redacted else row.new,
            is_redacted=row.is_redacted,
            old_question=None if row.is_redacted else row.old_question,
            new_question=None if row.is_redacted else row.new_question,
        )
        for row in session.execute(page, between)
    )
    return Diff(first, last, {kind: counted.get(kind, 0) for kind in KINDS}, found)


def _check(session: Session, first: int, last: int, corpus: str | None) -> None:
    require_change(session, first)
    require_change(session, last)
    if first > last:
        raise InvalidQuery(f"change {first} comes after change {last}; name the earlier one first")
    if corpus is not None:
        reading.require_corpus(session, corpus)
