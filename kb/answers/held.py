"""Held: the facts that begin in sentences, or have one for themselves without a document; a part of statements."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import text
from sqlalchemy.orm import Session

HELD = """
(
    SELECT s.id AS sentence_id, f.id AS fact_id
    FROM sentence s JOIN fact f
      ON f.document_id = s.document_id AND s.span_start <= f.span_start AND f.span_start < s.span_end
    WHERE s.id = ANY(:ids)
    UNION ALL
    SELECT s.id, s.fact_id FROM sentence s WHERE s.id = ANY(:ids) AND s.fact_id IS NOT NULL
) AS held
"""
_FACTS = text("SELECT DISTINCT held.fact_id FROM HELD".replace("HELD", HELD))


def facts_in(session: Session, sentence_ids: Collection[int]) -> frozenset[int]:
    """List the facts that these sentences hold, live or not."""
    return frozenset(session.scalars(_FACTS, {"ids": list(sentence_ids)}))
