"""Neighbours: the live facts that a reviewer has to see beside one: those that ask the same, in the same words.

Facts that contradict or say the same are found so too (`kb.facts.pairs`). Session first.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import text
from sqlalchemy.orm import Session

from colmlm.kb.facts.records import FactRecord
from colmlm.kb.review.records import Neighbour

SHOWN = 5

_ASK_THE_SAME = text("""
SELECT asked.id AS of_id, found.id, found.value, found.question, found.review
FROM fact asked CROSS JOIN LATERAL (
    SELECT f.id, f.question, f.review, v.value
    FROM fact f JOIN fact_version v ON v.fact_id = f.id AND v.to_seq IS NULL
    WHERE asked_as(f.question) = asked_as(asked.question) AND f.question IS NOT NULL AND f.deleted_seq IS NULL
      AND f.id <> asked.id
    ORDER BY f.id LIMIT :most
) AS found
WHERE asked.id = ANY(:ids) AND asked.question IS NOT NULL
""")


def neighbours(session: Session, facts: Sequence[FactRecord]) -> dict[int, tuple[Neighbour, ...]]:
    """Gives up to five neighbours of each fact, oldest first; facts without any are left out."""
    by_id = {fact.fact_id: fact for fact in facts if fact.question}
    found: dict[int, tuple[Neighbour, ...]] = {}
    for row in session.execute(_ASK_THE_SAME, {"ids": list(by_id), "most": SHOWN}):
        same = row.value.casefold() == by_id[row.of_id].value.casefold()
        one = Neighbour(row.id, row.value, row.question, row.review, same)
        found[row.of_id] = (*found.get(row.of_id, ()), one)
    return found
