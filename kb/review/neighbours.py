"""Neighbours: the live facts that a reviewer has to see beside one: those whose question has the same words.

Session first.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import text
from sqlalchemy.orm import Session

from colmlm.kb.facts.records import FactRecord
from colmlm.kb.review.records import Neighbour

SHOWN = 5

# A query of every word finds questions that have them all; the same are those that have no others. The limit is outer:
# with it in sight the server might read the table instead of the index.
_SAME_WORDS = text("""
SELECT asked.id AS of_id, found.id, found.value, found.question, found.review
FROM (
    SELECT id, length(words_of(question)) AS number, (
        SELECT string_agg(quote_literal(word), ' & ')::tsquery
        FROM unnest(tsvector_to_array(words_of(question))) AS w (word)
    ) AS query
    FROM fact WHERE id = ANY(:ids) AND question IS NOT NULL OFFSET 0
) AS asked
CROSS JOIN LATERAL (
    SELECT * FROM (
        SELECT f.id, f.question, f.review, v.value
        FROM fact f JOIN fact_version v ON v.fact_id = f.id AND v.to_seq IS NULL
        WHERE words_of(f.question) @@ asked.query AND length(words_of(f.question)) = asked.number AND f.id <> asked.id
        OFFSET 0
    ) AS every ORDER BY id LIMIT :most
) AS found
""")


def neighbours(session: Session, facts: Sequence[FactRecord]) -> dict[int, tuple[Neighbour, ...]]:
    """Gives up to five neighbours of each fact, oldest first; facts without any are left out."""
    by_id = {fact.fact_id: fact for fact in facts if fact.question}
    found: dict[int, tuple[Neighbour, ...]] = {}
    for row in session.execute(_SAME_WORDS, {"ids": list(by_id), "most": SHOWN}):
        same = row.value.casefold() == by_id[row.of_id].value.casefold()
        one = Neighbour(row.id, row.value, row.question, row.review, same)
        found[row.of_id] = (*found.get(row.of_id, ()), one)
    return found
