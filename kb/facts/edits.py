"""Edits of facts: insert, delete and restore; `kb.facts.versions` has the others.

Every edit takes the log's lock before it reads, so what it checks still holds when it writes. The functions take the
session first and never commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Row, exists, func, insert, or_, select, text, update
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.orm import Session

from colmlm.kb.errors import FactNotFound, InvalidValue, refusals
from colmlm.kb.facts import pairs, sentences, suppression
from colmlm.kb.facts.records import (
    OUTCOMES,
    REVIEWS,
    Edit,
    FactDraft,
    Marking,
    Review,
    ReviewResult,
    ReviewVerdict,
    SettledBefore,
    VerdictKind,
)
from colmlm.kb.facts.redaction import MARK, spans_touch
from colmlm.kb.facts.suppression import SpanPlace, Suppressor, text_before
from colmlm.kb.log import audit
from colmlm.kb.store.database import connection_of
from colmlm.kb.tables import DocumentRow, FactRow, FactVersionRow, TombstoneRow
from colmlm.kb.texts.wording import Span

MAX_ID = 2**63 - 1

IS_LIVE = FactVersionRow.to_seq.is_(None)


def is_kept(fact_id: Any) -> Any:
    """Give a condition (SQL): the fact is live, or deleted with `abstain` (a tombstone), so an index keeps its keys."""
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
    """Insert facts that have no document, in one change, with ids in the order of the drafts.

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
    pending = audit.begin_change(session, actor, reason)
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
    sentences.write_fact_sentences(session, list(values))
    payload: dict[str, Any] = {"values": {str(f): pending.digest(value) for f, value in values.items()}}
    if came_back:
        payload["allowed_erased"] = came_back
    alike = pairs.keep_pairs(session, list(values), anyway=anyway)
    return replace(append_edit(session, pending, "insert", list(values), payload), also_said_by=alike)


def delete_facts(
    session: Session, fact_ids: Sequence[int], actor: str, reason: str, *, abstain: bool = False
) -> Edit:
    """Delete live facts, all or none. Raises `FactNotFound`, `FactErased` or `FactDeleted` with the ids concerned.

    With `abstain` their keys stay as tombstones: a query nearest to one gets no match instead of the runner-up.
    """
    wanted = storable_ids(fact_ids)
    pending, rows = audit.begin_change_with(
        session, actor, reason, _BEGIN_CHANGE_AND_DELETE, {"fact_ids": wanted}
    )
    ended = [(fact_id, value) for fact_id, value in rows if fact_id is not None]
    if len(ended) < len(wanted):  # others were edited while this waited for the lock, or are not live
        missed = sorted(set(wanted) - {fact_id for fact_id, _ in ended})
        ended = sorted([*ended, *end_facts(session, missed, pending.seq)])
    if len(ended) < len(set(fact_ids)):
        left = [v.fact_id for v in last_versions(session, set(fact_ids) - {f for f, _ in ended})]
        refuse_erased(session, left)
        raise refusals.fact_deleted(left)
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
    """Append the change, of this kind, that deleted these facts (id and value); with `abstain` make them tombstones."""
    touched = [fact_id for fact_id, _ in ended]
    was = {str(fact_id): pending.digest(value) for fact_id, value in ended}
    said: dict[str, Any] = {**(payload or {}), "was": was}
    if abstain:
        session.execute(_ABSTAIN, {"fact_ids": touched, "seq": pending.seq})
        said["abstain"] = True
    return append_edit(session, pending, kind, touched, said)


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
_BEGIN_CHANGE_AND_DELETE = """
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
    """Mark the live ones among these facts as deleted by change `seq`, which is logged later; give ids and values."""
    session.flush()
    return connection_of(session).execute(_END, {"fact_ids": list(fact_ids), "seq": seq}).fetchall()


def restore_facts(session: Session, fact_ids: Sequence[int], actor: str, reason: str) -> Edit:
    """Restore deleted facts with the value and the review they had last: all of them or none."""
    pending = audit.begin_change(session, actor, reason)
    versions = last_versions(session, fact_ids)
    refuse_erased(session, fact_ids)
    if live := [v.fact_id for v in versions if v.to_seq is None]:
        raise refusals.fact_not_deleted(live)
    return reopen_facts(session, pending, versions)


def reopen_facts(
    session: Session,
    pending: audit.Pending,
    versions: Sequence[Row[Any]],
    payload: Mapping[str, Any] | None = None,
) -> Edit:
    """Make deleted facts live again with their last version and review, and append the change."""
    touched = [v.fact_id for v in versions]
    session.execute(_REOPEN, {"fact_ids": touched, "seq": pending.seq})
    sentences.write_fact_sentences(session, touched)
    pairs.keep_pairs(session, touched, anyway=True)
    said = {**(payload or {}), **bring_back_reviews(session, touched, pending.seq)}
    values = {str(v.fact_id): pending.digest(v.value) for v in versions}
    return append_edit(session, pending, "restore", touched, {**said, "values": values})


def refuse_erased(session: Session, fact_ids: Sequence[int]) -> None:
    """Raise `FactErased` where one of these facts is erased."""
    erased = select(FactRow.id).where(FactRow.id == func.any(list(fact_ids)), FactRow.erased_seq.is_not(None))
    if found := session.scalars(erased.order_by(FactRow.id)).all():
        raise refusals.fact_erased(found)


def append_edit(
    session: Session, pending: audit.Pending, kind: str, fact_ids: Sequence[int], payload: Mapping[str, Any]
) -> Edit:
    """Append the change of this kind to the log, and give the edit."""
    seq = audit.append_change(session, pending, kind, fact_ids, payload=payload)
    return Edit(seq=seq, kind=kind, fact_ids=tuple(fact_ids))


def storable_ids(fact_ids: Iterable[int]) -> list[int]:
    """Give each of these ids once, without those that do not fit the column's type (bigint)."""
    return sorted(fact_id for fact_id in set(fact_ids) if 0 < fact_id <= MAX_ID)


def last_versions(session: Session, fact_ids: Iterable[int]) -> list[Row[Any]]:
    """Give the last version of each fact, by id, each id once. Raises `FactNotFound` with every id that has none."""
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
    """End the live versions of these facts at change `seq`."""
    closing = update(FactVersionRow).where(FactVersionRow.fact_id == func.any(list(fact_ids)), IS_LIVE)
    session.execute(closing.values(to_seq=seq), execution_options={"synchronize_session": False})


def open_versions(session: Session, versions: Sequence[tuple[int, int, str]], seq: int) -> None:
    """Store new live versions, made by change `seq`, each given as fact id, version number and value."""
    rows = [{"fact_id": f, "version": n, "value": value, "from_seq": seq} for f, n, value in versions]
    if rows:
        session.execute(insert(FactVersionRow), rows)


# Reviewed: sets the reviews of facts, also beside other edits. Session first.
#
# Every change that sets reviews keeps those before in its payload, as `reviewed`, so that they can be brought
# back.

_SET = text("""
UPDATE fact f SET review = given.review, review_seq = :seq
FROM unnest(CAST(:ids AS bigint[]), CAST(:reviews AS text[])) AS given (id, review) JOIN fact was ON was.id = given.id
WHERE f.id = given.id AND was.review <> given.review RETURNING f.id, was.review
""")
_PROPOSED = text("SELECT id FROM fact WHERE id = ANY(:ids) AND review = 'proposed' AND deleted_seq IS NULL")
# What came in as rejected, from another base, is taken for having been proposed there.
_BEFORE_REJECTION = text("""
SELECT f.id, CASE WHEN c.kind = 'ingest' AND f.created_seq = c.seq THEN 'proposed'
                  ELSE c.payload #>> ARRAY['reviewed', f.id::text] END AS review
FROM fact f JOIN change c ON c.seq = f.review_seq
WHERE f.id = ANY(:ids) AND f.review = 'rejected'
""")


def set_reviews(session: Session, reviews: Mapping[int, Review], seq: int) -> dict[str, str]:
    """Set the reviews of facts in change `seq`; give, by id as text, the former review of each fact that changed."""
    if not reviews:
        return {}
    values = {"ids": list(reviews), "reviews": list(reviews.values()), "seq": seq}
    return {str(fact_id): was for fact_id, was in sorted(session.execute(_SET, values))}


def accept_edited(session: Session, fact_ids: Iterable[int], seq: int) -> dict[str, Any]:
    """Accept the proposed ones among edited facts; give their former reviews, as a part of the change's payload."""
    session.flush()
    proposed = session.scalars(_PROPOSED, {"ids": list(fact_ids)}).all()
    return reviews_payload(set_reviews(session, dict.fromkeys(proposed, "accepted"), seq))


def bring_back_reviews(session: Session, fact_ids: Iterable[int], seq: int) -> dict[str, Any]:
    """Set rejected facts back to their review before; give the replaced reviews, as a part of the change's payload."""
    rows = session.execute(_BEFORE_REJECTION, {"ids": list(fact_ids)})
    return reviews_payload(set_reviews(session, {row.id: _review_of(row.review) for row in rows}, seq))


def undo_reviews(session: Session, undone: Mapping[str, Any], seq: int) -> dict[str, Any]:
    """Set the reviews that an undone change's payload stores; give the payload part with the replaced reviews.

    Facts that somebody has judged since are included, as their texts go back too.
    """
    before = {int(fact_id): _review_of(review) for fact_id, review in undone.get("reviewed", {}).items()}
    return reviews_payload(set_reviews(session, before, seq))


def reviews_payload(was: Mapping[str, str]) -> dict[str, Any]:
    """Give the part of a change's payload that stores the reviews before it; empty if no review changed."""
    return {"reviewed": dict(was)} if was else {}


def _review_of(review: str | None) -> Review:
    return review if review in REVIEWS else "accepted"


# Placing: finds the stretch of a document that a person names for a fact. Session first; nothing here writes.
#
# What is refused is what an ingest would refuse: a span that is empty, outside the text or blank, that does
# not say what it is said to, or that overlaps another fact's. A deleted fact keeps its place, since it may be
# restored.

LISTED = 10  # offsets of a text that is there more than once


@dataclass(frozen=True, slots=True)
class PlacedSpan:
    """A stretch of a current document for a fact: offsets and text, and the place by which suppression knows it."""

    document_id: int
    start: int
    end: int
    value: str
    known_as: SpanPlace

    def require_not_erased(self, suppressor: Suppressor, question: str | None, outcome: str) -> None:
        """Raise `FactSuppressed` if this value was erased here or for this question and that is not allowed again."""
        if suppressor.matches([self.value], question, self.known_as) and not suppressor.allow_erased:
            where = f"A fact at {self.start}:{self.end} of document {self.document_id}"
            raise refusals.fact_suppressed(where, outcome)


def place_fact(session: Session, document_id: int, marking: Marking, *, but: int | None = None) -> PlacedSpan:
    """Find the stretch of a current document that `marking` names; it may overlap no fact except the one with id `but`.

    The log must be locked. Raises `DocumentNotFound`, `DocumentReplaced`, `InvalidSpan` or `SpanTaken`.
    """
    found = session.get(DocumentRow, document_id) if 0 < document_id <= MAX_ID else None
    if found is None:
        raise refusals.document_not_found(document_id)
    if found.replaced_seq is not None:
        raise refusals.document_replaced(document_id)
    start, end = _span(found, marking)
    value = found.text[start:end]
    audit.check_text("value", value, blank=False)
    if MARK in value:
        raise refusals.invalid_span(document_id, f"[{start}, {end}) includes erased words")
    others = _spans(session, document_id, but)
    if taken := [fact_id for fact_id, span in others.items() if spans_touch((start, end), [span])]:
        raise refusals.span_taken(document_id, taken)
    before = text_before(found.text, others.values(), start)
    unmarked = text_before(found.text, (), start)
    place = SpanPlace(found.external_id, start, before, found.corpus, unmarked)
    return PlacedSpan(document_id, start, end, value, place)


def _spans(session: Session, document_id: int, but: int | None) -> dict[int, Span]:
    statement = select(FactRow.id, FactRow.span_start, FactRow.span_end).where(
        FactRow.document_id == document_id
    )
    rows = session.execute(statement.order_by(FactRow.span_start, FactRow.id))
    return {row.id: (row.span_start, row.span_end) for row in rows if row.id != but}


def _span(document: DocumentRow, marking: Marking) -> Span:
    start, end, said = marking.get("start"), marking.get("end"), marking.get("text")
    if (start is None) != (end is None) or (start is None and not said):
        raise refusals.invalid_span(
            document.id, "give the offsets of its start and its end, or its exact text"
        )
    if start is None or end is None:
        return _only_span_of_text(document, said or "")
    if not 0 <= start < end <= len(document.text):
        cause = f"[{start}, {end}) is empty or outside the text of {len(document.text)} characters"
        raise refusals.invalid_span(document.id, cause)
    if said and document.text[start:end] != said:
        raise refusals.invalid_span(document.id, f"[{start}, {end}) differs from the given text")
    return start, end


def _only_span_of_text(document: DocumentRow, said: str) -> Span:
    """Give the only span whose text is `said`. Raises `InvalidSpan` if the document contains it never or twice."""
    at = document.text.find(said)
    starts: list[int] = []
    while at >= 0 and len(starts) <= LISTED:
        starts.append(at)
        at = document.text.find(said, at + 1)
    if not starts:
        raise refusals.invalid_span(
            document.id, "the document does not contain that text exactly. Check the spaces too"
        )
    if len(starts) > 1:
        listed = ", ".join(map(str, starts[:LISTED])) + (" and more" if len(starts) > LISTED else "")
        raise refusals.invalid_span(
            document.id, f"that text begins at {listed}. Give the start and the end as well"
        )
    return starts[0], starts[0] + len(said)


# Verdicts: accepts facts, rejects them or proposes them again, where they still are as the verdict saw them.
#
# Rejecting a fact deletes it. Of verdicts of several kinds each kind is one change. Session first; nothing
# commits.

_STANDINGS = text("""
SELECT f.id, v.version, f.review, f.deleted_seq IS NULL AS live, last.seq, c.actor
FROM fact f
CROSS JOIN LATERAL (
    SELECT version, from_seq FROM fact_version WHERE fact_id = f.id ORDER BY version DESC LIMIT 1
) v
CROSS JOIN LATERAL (SELECT greatest(v.from_seq, f.review_seq, f.deleted_seq) AS seq) last
LEFT JOIN change c ON c.seq = last.seq
WHERE f.id = ANY(:ids)
""")


def settle_review(
    session: Session, verdicts: Sequence[ReviewVerdict], actor: str, reason: str
) -> ReviewResult:
    """Carry out the verdicts that still fit their facts; report the other facts with the change that settled them.

    Raises `FactNotFound` for unknown ids, and `InvalidValue` for two verdicts on one fact.
    """
    by_fact = {one.fact_id: one for one in verdicts}
    if len(by_fact) < len(verdicts) or not verdicts:
        raise InvalidValue("verdicts", "there are none" if not verdicts else "a fact has two verdicts")
    pending = audit.begin_change(session, actor, reason)
    now = _standings(session, by_fact)
    fitting = [one for one in verdicts if _fits(one, now[one.fact_id])]
    seqs: list[int] = []
    for kind in OUTCOMES:
        if fact_ids := [one.fact_id for one in fitting if one.verdict == kind]:
            pending = audit.begin_change(session, actor, reason) if seqs else pending
            seqs.append(_carry_out(session, pending, kind, fact_ids))
    done = {one.fact_id for one in fitting}
    return ReviewResult(
        seqs=tuple(seqs),
        fact_ids=tuple(one.fact_id for one in fitting),
        before=tuple(_settled_before(one, now[one.fact_id]) for one in verdicts if one.fact_id not in done),
    )


def _standings(session: Session, fact_ids: Iterable[int]) -> Mapping[int, Row[Any]]:
    rows = {row.id: row for row in session.execute(_STANDINGS, {"ids": storable_ids(fact_ids)})}
    if missing := sorted(set(fact_ids) - rows.keys()):
        raise FactNotFound(missing)
    return rows


def _fits(one: ReviewVerdict, now: Row[Any]) -> bool:
    return one.fits(now.version, now.review, live=now.live)


def _settled_before(one: ReviewVerdict, now: Row[Any]) -> SettledBefore:
    return SettledBefore(one.fact_id, one.verdict, now.version, now.review, now.live, now.seq, now.actor)


def _carry_out(session: Session, pending: audit.Pending, kind: VerdictKind, fact_ids: list[int]) -> int:
    ended = end_facts(session, fact_ids, pending.seq) if kind == "reject" else []
    was = set_reviews(session, dict.fromkeys(fact_ids, OUTCOMES[kind]), pending.seq)
    payload = reviews_payload(was)
    if kind == "reject":
        return log_end(session, pending, kind, ended, abstain=False, payload=payload).seq
    return append_edit(session, pending, kind, fact_ids, payload).seq
