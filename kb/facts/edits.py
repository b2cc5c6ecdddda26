"""Edits of facts: insert, delete and restore; `kb.facts.mending` has the others. Session first; nothing commits.

Every edit takes the log's lock before it reads, so what it checks still holds when it writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Row, exists, func, insert, or_, select, text, update
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.orm import Session

from colmlm.kb.errors import (
    FactDeleted,
    FactErased,
    FactNotDeleted,
    FactNotFound,
)
from colmlm.kb.facts import pairs, reviewed, sentences, suppression
from colmlm.kb.facts.records import Edit, FactDraft
from colmlm.kb.log import audit
from colmlm.kb.store.database import connection_of
from colmlm.kb.tables import FactRow, FactVersionRow, TombstoneRow

MAX_ID = 2**63 - 1

IS_LIVE = FactVersionRow.to_seq.is_(None)


def is_kept(fact_id: Any) -> Any:
    """Gives a condition (SQL): an index keeps this fact's keys, since the fact is live or a tombstone."""
    live = exists().where(FactVersionRow.fact_id == fact_id, IS_LIVE)
    return or_(live, exists().where(TombstoneRow.fact_id == fact_id))


def insert_facts(
    session: Session,
    drafts: Sequence[FactDraft],
    actor: str,
    reason: str,
    *,
    allow_erased: bool = False,
    anyway: bool = False,
) -> Edit:
    """Inserts facts that have no document, in one change, with ids in their order.

    Their keys are made from their questions.

    Raises `FactSuppressed` where a question and value were erased, unless `allow_erased` takes that back, and
    `AnsweredAlready` where one contradicts another fact, unless `anyway`.
    """
    for draft in drafts:
        audit.check_text("question", draft.question, blank=False)
        audit.check_text("value", draft.value, blank=False)
        audit.check_text("answer", draft.answer or "")
    said = [(draft.question, draft.value) for draft in drafts]
    came_back = suppression.check_inserts(session, said, allow_erased=allow_erased)
    pending = audit.begin(session, actor, reason)
    added = [
        FactRow(
            ordinal=0,
            question=d.question,
            answer=d.answer,
            created_seq=pending.seq,
            review="proposed" if d.proposed else "accepted",
            review_seq=pending.seq if d.proposed else None,
        )
        for d in drafts
    ]
    session.add_all(added)
    session.flush()
    values = {fact.id: draft.value for fact, draft in zip(added, drafts, strict=True)}
    open_versions(session, [(fact_id, 1, value) for fact_id, value in values.items()], pending.seq)
    sentences.write_facts(session, list(values))
    payload: dict[str, Any] = {"values": {str(f): pending.digest(value) for f, value in values.items()}}
    if came_back:
        payload["allowed_erased"] = came_back
    alike = pairs.keep(session, list(values), anyway=anyway)
    return replace(done(session, pending, "insert", list(values), payload), also_said_by=alike)


def delete_facts(
    session: Session, fact_ids: Sequence[int], actor: str, reason: str, *, abstain: bool = False
) -> Edit:
    """Deletes live facts, all or none; raises an error that names those that are not live.

    With `abstain` their keys stay, and a query that points at one gets no match instead of the runner-up.
    """
    wanted = storable_ids(fact_ids)
    pending, rows = audit.begin_with(session, actor, reason, _BEGIN_AND_END, {"fact_ids": wanted})
    ended = [(fact_id, value) for fact_id, value in rows if fact_id is not None]
    if len(ended) < len(wanted):  # others were edited while this waited for the lock, or are not live
        missed = sorted(set(wanted) - {fact_id for fact_id, _ in ended})
        ended = sorted([*ended, *end_facts(session, missed, pending.seq)])
    if len(ended) < len(set(fact_ids)):
        left = [v.fact_id for v in last_versions(session, set(fact_ids) - {f for f, _ in ended})]
        refuse_erased(session, left)
        raise FactDeleted(left)
    return log_end(session, pending, "delete", ended, abstain=abstain)


def log_end(
    session: Session,
    pending: audit.Pending,
    kind: str,
    ended: Sequence[tuple[int, str]],
    *,
    abstain: bool,
    payload: Mapping[str, Any] | None = None,
) -> Edit:
    """Appends the change of this kind that ended these facts (ids and values); `abstain` makes them tombstones."""
    touched = [fact_id for fact_id, _ in ended]
    was = {str(fact_id): pending.digest(value) for fact_id, value in ended}
    said: dict[str, Any] = {**(payload or {}), "was": was}
    if abstain:
        session.execute(_ABSTAIN, {"fact_ids": touched, "seq": pending.seq})
        said["abstain"] = True
    return done(session, pending, kind, touched, said)


# One statement serves any number of facts, since a deletion is the edit that people wait for.
_END = """
WITH ended AS (
    UPDATE fact_version SET to_seq = %(seq)s
    WHERE fact_id = ANY(%(fact_ids)s::bigint[]) AND to_seq IS NULL
    RETURNING fact_id, value
), dated AS (
    UPDATE fact SET deleted_seq = %(seq)s FROM ended WHERE fact.id = ended.fact_id
)
SELECT fact_id, value FROM ended ORDER BY fact_id
"""
# With the lock in the same statement, a deletion waits for the database once less. A fact that is corrected while the
# lock is waited for has a live version that the statement does not see, so what it missed is ended by another.
_BEGIN_AND_END = """
WITH begun AS MATERIALIZED (BEGUN), ended AS (
    UPDATE fact_version SET to_seq = begun.seq + 1 FROM begun
    WHERE fact_id = ANY(%(fact_ids)s::bigint[]) AND to_seq IS NULL
    RETURNING fact_id, value
), dated AS (
    UPDATE fact SET deleted_seq = begun.seq + 1 FROM ended, begun WHERE fact.id = ended.fact_id
)
SELECT at, secret, seq, hash, fact_id, value FROM begun LEFT JOIN ended ON true ORDER BY fact_id
""".replace("BEGUN", audit.BEGUN)
_ABSTAIN = text(
    "INSERT INTO tombstone (fact_id, seq) SELECT fact_id, :seq FROM unnest(CAST(:fact_ids AS bigint[])) AS t (fact_id)"
)
_REOPEN = text("""
WITH last AS (
    SELECT DISTINCT ON (fact_id) fact_id, version, value FROM fact_version
    WHERE fact_id = ANY(CAST(:fact_ids AS bigint[])) ORDER BY fact_id, version DESC
), opened AS (
    INSERT INTO fact_version (fact_id, version, value, from_seq) SELECT fact_id, version + 1, value, :seq FROM last
), undated AS (
    UPDATE fact SET deleted_seq = NULL FROM last WHERE fact.id = last.fact_id
)
DELETE FROM tombstone USING last WHERE tombstone.fact_id = last.fact_id
""")


def end_facts(session: Session, fact_ids: Sequence[int], seq: int) -> list[tuple[int, str]]:
    """Ends the live ones among these facts at change `seq` and gives their ids and values.

    It is a part of a delete, and of an ingest that replaces a document.
    """
    session.flush()
    return connection_of(session).execute(_END, {"fact_ids": list(fact_ids), "seq": seq}).fetchall()


def restore_facts(session: Session, fact_ids: Sequence[int], actor: str, reason: str) -> Edit:
    """Restores deleted facts with the value and the review they had last: all of them or none."""
    pending = audit.begin(session, actor, reason)
    versions = last_versions(session, fact_ids)
    refuse_erased(session, fact_ids)
    if live := [v.fact_id for v in versions if v.to_seq is None]:
        raise FactNotDeleted(live)
    return reopen(session, pending, versions)


def reopen(
    session: Session,
    pending: audit.Pending,
    versions: Sequence[Row[Any]],
    payload: Mapping[str, Any] | None = None,
) -> Edit:
    """Makes deleted facts live again, each with its last version and review, and appends the change."""
    touched = [v.fact_id for v in versions]
    session.execute(_REOPEN, {"fact_ids": touched, "seq": pending.seq})
    sentences.write_facts(session, touched)
    pairs.keep(session, touched, anyway=True)
    said = {**(payload or {}), **reviewed.bring_back(session, touched, pending.seq)}
    values = {str(v.fact_id): pending.digest(v.value) for v in versions}
    return done(session, pending, "restore", touched, {**said, "values": values})


def refuse_erased(session: Session, fact_ids: Sequence[int]) -> None:
    """Raises `FactErased` where one of these facts is erased."""
    erased = select(FactRow.id).where(FactRow.id == func.any(list(fact_ids)), FactRow.erased_seq.is_not(None))
    if found := session.scalars(erased.order_by(FactRow.id)).all():
        raise FactErased(found)


def done(
    session: Session, pending: audit.Pending, kind: str, fact_ids: Sequence[int], payload: Mapping[str, Any]
) -> Edit:
    """Appends the change of this kind to the log."""
    seq = audit.append(session, pending, kind, fact_ids, payload=payload)
    return Edit(seq=seq, kind=kind, fact_ids=tuple(fact_ids))


def storable_ids(fact_ids: Iterable[int]) -> list[int]:
    """Gives each of these ids once, without those that do not fit the column's type (bigint)."""
    return sorted(fact_id for fact_id in set(fact_ids) if 0 < fact_id <= MAX_ID)


def last_versions(session: Session, fact_ids: Iterable[int]) -> list[Row[Any]]:
    """Gives the last version of each fact, by id, each id once. Raises `FactNotFound` with every id that has none."""
    wanted = set(fact_ids)
    statement = (
        select(
            FactVersionRow.fact_id,
            FactVersionRow.version,
            FactVersionRow.value,
            FactVersionRow.from_seq,
            FactVersionRow.to_seq,
        )
        .ext(distinct_on(FactVersionRow.fact_id))
        .where(FactVersionRow.fact_id == func.any(storable_ids(wanted)))
        .order_by(FactVersionRow.fact_id, FactVersionRow.version.desc())
    )
    versions: list[Row[Any]] = list(session.execute(statement))
    if missing := sorted(wanted - {v.fact_id for v in versions}):
        raise FactNotFound(missing)
    return versions


def close_versions(session: Session, fact_ids: Sequence[int], seq: int) -> None:
    """Ends the live versions of these facts at change `seq`."""
    closing = update(FactVersionRow).where(FactVersionRow.fact_id == func.any(list(fact_ids)), IS_LIVE)
    session.execute(closing.values(to_seq=seq), execution_options={"synchronize_session": False})


def open_versions(session: Session, versions: Sequence[tuple[int, int, str]], seq: int) -> None:
    """Opens versions at change `seq`, each given by fact, number and value."""
    rows = [{"fact_id": f, "version": n, "value": value, "from_seq": seq} for f, n, value in versions]
    if rows:
        session.execute(insert(FactVersionRow), rows)
