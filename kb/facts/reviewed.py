"""Reviewed: sets the reviews of facts, also beside other edits, and says which facts lookups leave out. Session first.

Every change that sets reviews keeps those before in its payload, as `reviewed`, so that they can be brought back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session

from colmlm.kb.facts.reviews import REVIEWS, Review

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
_HIDDEN = """
(f.review <> 'accepted' AND ASKED IS NOT NULL AND (ASKED OR KEYSET OR coalesce((
    SELECT r.accepted_only FROM corpus_review r
    WHERE r.corpus = (SELECT o.corpus FROM document o WHERE o.id = f.document_id)
), false)))
"""


def hidden(asked: str, keyset: str) -> str:
    """Gives a condition (SQL): fact `f` is left out, since it is not accepted and only accepted facts are to be found.

    That is so where `asked` is true, or where it is false and the `keyset`, or the corpus of the fact, says so. Where
    it is NULL, as for people who curate or forget facts, nothing is left out.
    """
    return _HIDDEN.replace("ASKED", asked).replace("KEYSET", keyset)


def set_reviews(session: Session, reviews: Mapping[int, Review], seq: int) -> dict[str, str]:
    """Sets the reviews of facts, as of change `seq`; gives those that differed, as the log keeps them."""
    if not reviews:
        return {}
    values = {"ids": list(reviews), "reviews": list(reviews.values()), "seq": seq}
    return {str(fact_id): was for fact_id, was in sorted(session.execute(_SET, values))}


def accept_edited(session: Session, fact_ids: Iterable[int], seq: int) -> dict[str, Any]:
    """Accepts what is proposed among facts that are edited, and gives the part of the payload that says so."""
    session.flush()
    proposed = session.scalars(_PROPOSED, {"ids": list(fact_ids)}).all()
    return in_payload(set_reviews(session, dict.fromkeys(proposed, "accepted"), seq))


def bring_back(session: Session, fact_ids: Iterable[int], seq: int) -> dict[str, Any]:
    """Gives rejected facts the review that they had before, and gives the part of the payload that says so."""
    rows = session.execute(_BEFORE_REJECTION, {"ids": list(fact_ids)})
    return in_payload(set_reviews(session, {row.id: _known(row.review) for row in rows}, seq))


def undo_reviews(session: Session, undone: Mapping[str, Any], seq: int) -> dict[str, Any]:
    """Gives facts the review that the payload of an `undone` change says they had before it, likewise.

    So they do where somebody has judged since what they said after that change, as they say it no more.
    """
    before = {int(fact_id): _known(review) for fact_id, review in undone.get("reviewed", {}).items()}
    return in_payload(set_reviews(session, before, seq))


def in_payload(was: Mapping[str, str]) -> dict[str, Any]:
    """Gives the part of a change's payload that keeps the reviews before it."""
    return {"reviewed": dict(was)} if was else {}


def _known(review: str | None) -> Review:
    return review if review in REVIEWS else "accepted"
