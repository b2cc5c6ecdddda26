"""Surroundings: what documents say around facts, in whole sentences. Session first."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import text
from sqlalchemy.orm import Session

from colmlm.kb.review.records import Surroundings

# Sentences that begin or end so near to a fact are read with its own, as far as so many characters.
_AROUND = text("""
SELECT f.id, f.document_id, f.span_start, f.span_end, around.first,
       substr(d.text, around.first + 1, around.last - around.first) AS said
FROM fact f
JOIN document d ON d.id = f.document_id
CROSS JOIN LATERAL (
    SELECT greatest(least(coalesce(min(s.span_start), 0), f.span_start), f.span_start - 600, 0) AS first,
           least(greatest(coalesce(max(s.span_end), f.span_end + 600), f.span_end), f.span_end + 600) AS last
    FROM sentence s
    WHERE s.document_id = f.document_id AND s.span_start < f.span_end + 80 AND s.span_end > f.span_start - 80
) AS around
WHERE f.id = ANY(:ids)
""")


def surroundings(session: Session, fact_ids: Sequence[int]) -> dict[int, Surroundings]:
    """Gives what documents say around these facts; facts without a document have nothing around them."""
    return {
        row.id: Surroundings(
            row.document_id, row.first, row.said, row.span_start - row.first, row.span_end - row.first
        )
        for row in session.execute(_AROUND, {"ids": list(fact_ids)})
    }
