"""The verbs of the change log: lists, compares, verifies, signs and exports it, and acknowledges its breaks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Unpack

from sqlalchemy import column, func, select, text
from sqlalchemy.orm import Session

from colmlm.kb.errors import InvalidQuery, refusals
from colmlm.kb.evidence.records import DIFFERENCES_LISTED, Diff, DiffOptions, FactDifference
from colmlm.kb.facts import reading
from colmlm.kb.log import audit, chain
from colmlm.kb.log.audit import LogFilters, require_change
from colmlm.kb.log.chain import DenialRecord, NewDenial, Sealed, seal_breaks
from colmlm.kb.log.records import ChangeRecord
from colmlm.kb.log.signing import signing_key, write_pem
from colmlm.kb.log.tree import signed_proof
from colmlm.kb.log.witness import (
    AuditReport,
    Head,
    check_database,
    export_log,
    find_change_hash,
    has_head,
    signed_head,
)
from colmlm.kb.principal import as_service
from colmlm.kb.store.store import Store


@dataclass(frozen=True, slots=True)
class Log:
    """The verbs of a store's change log."""

    store: Store

    @as_service()
    def database_id(self) -> str:
        """Give the id by which evidence and events name this base."""
        with self.store.sessions() as session:
            return audit.database_id(session)

    def head_seq(self) -> int:
        """Give the number of the last change, 0 where there is none."""
        with self.store.sessions() as session:
            return audit.head_seq(session)

    def changes(self, after: int = 0, limit: int = 100, **only: Unpack[LogFilters]) -> list[ChangeRecord]:
        """List changes past `after`, oldest first, that match every given filter."""
        with self.store.sessions() as session:
            return audit.list_changes(session, after, limit, **only)

    def change(self, seq: int) -> ChangeRecord:
        """Give one change. Raises `NoSuchChange`."""
        with self.store.sessions() as session:
            if not (found := audit.list_changes(session, seq - 1, 1)) or found[0].seq != seq:
                raise refusals.no_such_change(seq, audit.head_seq(session))
            return found[0]

    def counts(self, after: int, last: int) -> dict[str, int]:
        """Count the changes past `after`, up to `last`, by kind."""
        with self.store.sessions() as session:
            return audit.count_changes(session, after, last)

    def changes_before(self, before: int, limit: int = 100, **only: Unpack[LogFilters]) -> list[ChangeRecord]:
        """List changes before `before`, newest first, that match every given filter."""
        with self.store.sessions() as session:
            return audit.changes_before(session, before, limit, **only)

    def diff(self, first: int, last: int, **which: Unpack[DiffOptions]) -> Diff:
        """Give the facts that differ as of two changes. Raises `NoSuchChange`, `CorpusNotFound`, `InvalidQuery`."""
        with self.store.reports() as session:
            return diff_changes(session, first, last, **which)

    def find_change_hash(self, seq: int) -> str | None:
        """Give the hash of change `seq`, or None if the log has none; 0 has the hash that the log begins from."""
        with self.store.sessions() as session:
            return find_change_hash(session, seq)

    def verify(self, witnessed: Head | None = None) -> AuditReport:
        """Check the whole chain, and whether a witnessed head is in it."""
        with self.store.sessions() as session:
            return check_database(session, witnessed)

    def seal(self, seqs: Sequence[int], *, actor: str, reason: str, dry_run: bool = False) -> Sealed:
        """Acknowledge that the chain breaks at these changes, all or none; dry runs undo it. Raises `NoOpenBreak`."""
        with self.store.sessions() as session:
            sealed = seal_breaks(session, seqs, actor, reason)
            session.rollback() if dry_run else session.commit()
        return sealed

    def head(self) -> dict[str, Any]:
        """Give the present head of the log, signed with the key of this home."""
        with self.store.sessions() as session:
            return signed_head(session, signing_key(self.store.settings.home))

    def proof(self, *, seq: int | None = None, since: int | None = None) -> dict[str, Any]:
        """Give a signed proof that change `seq` is in the log, or that the log goes on from its first `since` changes.

        `kb.log.tree.check_proof` checks it without the log. Raises `NoSuchChange`.
        """
        with self.store.sessions() as session:
            return signed_proof(session, signing_key(self.store.settings.home), seq=seq, since=since)

    def public_key(self) -> str:
        """Give the public key of this home, which checks its signatures, as PEM."""
        return write_pem(signing_key(self.store.settings.home).public_key())

    def holds(self, witnessed: Head) -> bool:
        """Tell whether the log has a change with this number and hash, without checking the chain up to it."""
        with self.store.sessions() as session:
            return has_head(session, witnessed)

    def export(self) -> Iterator[str]:
        """Give the log as JSON lines, from one snapshot of the database: its signed head, then every change."""
        key = signing_key(self.store.settings.home)
        with self.store.sessions() as session:
            yield from export_log(session, key)

    def denials(self, *, after: int = 0, limit: int = 100) -> list[DenialRecord]:
        """List refused requests, newest first; with `after` only those with a smaller id."""
        with self.store.sessions() as session:
            return chain.list_denials(session, after=after, limit=limit)

    @as_service()
    def deny(self, denial: NewDenial) -> None:
        """Store a refused request."""
        with self.store.sessions.begin() as session:
            chain.record_denial(session, denial)


# Diff: compares the values of facts as of two changes of the log.

KINDS = ("inserted", "updated", "deleted", "restored", "erased")

# The values of an erased fact are gone, so two versions of it count as different.
_DIFFERENCE = (
    text("""
    SELECT f.id AS fact_id, made.seq, made.actor, d.corpus,
        a.value AS old, b.value AS new, f.erased_seq IS NOT NULL AS is_redacted,
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
    LEFT JOIN change made ON made.seq = CASE
        WHEN f.erased_seq > :first AND f.erased_seq <= :last THEN f.erased_seq
        WHEN b.fact_id IS NOT NULL THEN b.from_seq
        ELSE (SELECT max(to_seq) FROM fact_version WHERE fact_id = f.id AND to_seq <= :last) END
    WHERE (CAST(:corpus AS text) IS NULL OR d.corpus = :corpus) AND (
        (a.fact_id IS NULL) <> (b.fact_id IS NULL)
        OR (a.version <> b.version AND (f.erased_seq IS NOT NULL OR a.value <> b.value OR p.version < b.version
            AND ROW(p.question, p.document_id, p.span_start, p.span_end)::text <> CASE WHEN q.fact_id IS NULL
                THEN ROW(f.question, f.document_id, f.span_start, f.span_end)::text
                ELSE ROW(q.question, q.document_id, q.span_start, q.span_end)::text END))
        OR (f.erased_seq > :first AND f.erased_seq <= :last))
    """)
    .columns(
        column("fact_id"),
        column("seq"),
        column("actor"),
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


def diff_changes(
    session: Session,
    first: int,
    last: int,
    *,
    corpus: str | None = None,
    after: int = 0,
    limit: int = DIFFERENCES_LISTED,
) -> Diff:
    """Give the facts that differ between two changes. Raises `NoSuchChange`, `CorpusNotFound`, `InvalidQuery`."""
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
            seq=row.seq,
            actor=row.actor,
        )
        for row in session.execute(page, between)
    )
    return Diff(first, last, {kind: counted.get(kind, 0) for kind in KINDS}, found)


def _check(session: Session, first: int, last: int, corpus: str | None) -> None:
    require_change(session, first)
    require_change(session, last)
    if first > last:
        raise InvalidQuery(f"change {first} comes after change {last}. Name the earlier one first")
    if corpus is not None:
        reading.require_corpus(session, corpus)
