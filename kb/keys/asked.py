"""Reads what keys are measured against: questions spread over the facts of a keyset, and its keys with their values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from sqlalchemy import and_, select, text
from sqlalchemy.orm import Session

from colmlm.kb.facts.edits import IS_LIVE
from colmlm.kb.keys.keysets import Ids, Vectors, decode, keyset_head
from colmlm.kb.tables import DocumentRow, FactKeyRow, FactRow, FactVersionRow

_AT_ONCE = 20_000  # keys

_ASKED = text("""
SELECT f.id, f.question, v.value
FROM (
    SELECT f.id, row_number() OVER (ORDER BY f.id) - 1 AS place, count(*) OVER () AS number
    FROM fact_key k
    JOIN fact f ON f.id = k.fact_id AND f.question <> ''
    JOIN fact_version v ON v.fact_id = f.id AND v.to_seq IS NULL
    WHERE k.keyset_id = :keyset_id AND k.kind = 'context'
) AS keyed
JOIN fact f ON f.id = keyed.id
JOIN fact_version v ON v.fact_id = f.id AND v.to_seq IS NULL
WHERE keyed.place % greatest(1, ceil(keyed.number / CAST(:size AS numeric))) = 0 ORDER BY f.id
""")
_KEYS = text("""
SELECT v.value, k.key FROM fact_key k JOIN fact_version v ON v.fact_id = k.fact_id AND v.to_seq IS NULL
WHERE k.keyset_id = :keyset_id AND k.kind = 'context'
""")


@dataclass(frozen=True, slots=True)
class AskedFact:
    """A live fact with the question that asks for it."""

    fact_id: int
    question: str
    value: str


def asked_facts(session: Session, keyset_id: int, size: int) -> list[AskedFact]:
    """Chooses up to `size` facts that have a question and a key read from their context, evenly by id."""
    return [
        AskedFact(row.id, row.question, row.value)
        for row in session.execute(_ASKED, {"keyset_id": keyset_id, "size": size})
    ]


def valued_keys(session: Session, keyset_id: int, dim: int) -> Iterator[tuple[list[str], Vectors]]:
    """Reads the context keys of live facts with their values, a batch at a time."""
    found = session.execute(_KEYS, {"keyset_id": keyset_id}, execution_options={"yield_per": _AT_ONCE})
    for rows in found.partitions():
        yield [row.value for row in rows], decode([row.key for row in rows], dim)


def context_keys(session: Session, keyset_id: int, corpus: str | None) -> tuple[Ids, Vectors]:
    """Gives fact ids [n] and context keys [n, d] of live facts, by fact id, all in memory."""
    dim = keyset_head(session, keyset_id).dim
    statement = (
        select(FactKeyRow.fact_id, FactKeyRow.key)
        .join(FactVersionRow, and_(FactVersionRow.fact_id == FactKeyRow.fact_id, IS_LIVE))
        .where(FactKeyRow.keyset_id == keyset_id, FactKeyRow.kind == "context")
        .order_by(FactKeyRow.fact_id)
    )
    if corpus is not None:
        statement = statement.join(FactRow, FactRow.id == FactKeyRow.fact_id).join(
            DocumentRow, DocumentRow.id == FactRow.document_id
        )
        statement = statement.where(DocumentRow.corpus == corpus)
    rows = session.execute(statement).all()
    return np.array([row.fact_id for row in rows], dtype=np.int64), decode([row.key for row in rows], dim)
