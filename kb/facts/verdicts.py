"""Verdicts: accepts facts, rejects them or proposes them again, where they still are as the verdict saw them.

Rejecting a fact deletes it. Of verdicts of several kinds each kind is one change. Session first; nothing commits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Row, text
from sqlalchemy.orm import Session

from colmlm.kb.errors import FactNotFound, InvalidValue
from colmlm.kb.facts import edits, reviewed
from colmlm.kb.facts.reviews import OUTCOMES, ReviewVerdict, Settled, SettledBefore, VerdictKind
from colmlm.kb.log import audit

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


def settle(session: Session, verdicts: Sequence[ReviewVerdict], actor: str, reason: str) -> Settled:
    """Carries out the verdicts that still fit their facts, and names the others with what was done since.

    Raises `FactNotFound` with every id that no fact has, and `InvalidValue` where one fact has two verdicts.
    """
    by_fact = {one.fact_id: one for one in verdicts}
    if len(by_fact) < len(verdicts) or not verdicts:
        raise InvalidValue("verdicts", "there is none" if not verdicts else "a fact has two of them")
    pending = audit.begin(session, actor, reason)
    now = _standings(session, by_fact)
    fitting = [one for one in verdicts if _fits(one, now[one.fact_id])]
    seqs: list[int] = []
    for kind in OUTCOMES:
        if fact_ids := [one.fact_id for one in fitting if one.verdict == kind]:
            pending = audit.begin(session, actor, reason) if seqs else pending
            seqs.append(_carry_out(session, pending, kind, fact_ids))
    done = {one.fact_id for one in fitting}
    return Settled(
        seqs=tuple(seqs),
        fact_ids=tuple(one.fact_id for one in fitting),
        before=tuple(_told(one, now[one.fact_id]) for one in verdicts if one.fact_id not in done),
    )


def _standings(session: Session, fact_ids: Iterable[int]) -> Mapping[int, Row[Any]]:
    rows = {row.id: row for row in session.execute(_STANDINGS, {"ids": edits.storable_ids(fact_ids)})}
    if missing := sorted(set(fact_ids) - rows.keys()):
        raise FactNotFound(missing)
    return rows


def _fits(one: ReviewVerdict, now: Row[Any]) -> bool:
    return one.fits(now.version, now.review, live=now.live)


def _told(one: ReviewVerdict, now: Row[Any]) -> SettledBefore:
    return SettledBefore(one.fact_id, one.verdict, now.version, now.review, now.live, now.seq, now.actor)


def _carry_out(session: Session, pending: audit.Pending, kind: VerdictKind, fact_ids: list[int]) -> int:
    ended = edits.end_facts(session, fact_ids, pending.seq) if kind == "reject" else []
    was = reviewed.set_reviews(session, dict.fromkeys(fact_ids, OUTCOMES[kind]), pending.seq)
    payload = reviewed.in_payload(was)
    if kind == "reject":
        return edits.log_end(session, pending, kind, ended, abstain=False, payload=payload).seq
    return edits.done(session, pending, kind, fact_ids, payload).seq
