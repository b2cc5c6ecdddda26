"""Deleted facts near a question: how near their keys are, though no lookup finds them.

A sentence that is read because of a fact is read as well once the fact is deleted. Else what stands behind it in the
order would be read in its place, look surer than it was, and be said.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from sqlalchemy import text
from sqlalchemy.orm import Session

from colmlm.kb.answers.held import HELD
from colmlm.kb.keys.keysets import STORED, decode
from colmlm.kb.lookup.records import AskedQuery

_KEYS = text(
    """
SELECT held.sentence_id, k.key
FROM HELD JOIN fact f ON f.id = held.fact_id AND f.deleted_seq IS NOT NULL AND f.erased_seq IS NULL
JOIN fact_key k ON k.fact_id = f.id
JOIN keyset y ON y.id = k.keyset_id AND y.state IN ('active', 'ready') AND y.checkpoint_id = :checkpoint_id
""".replace("HELD", HELD)
)


def deleted_in(session: Session, sentence_ids: Collection[int], asked: AskedQuery) -> dict[int, float]:
    """Gives, of these sentences, those that hold deleted facts with keys, each with the best cosine of such a fact."""
    rows = session.execute(_KEYS, {"ids": list(sentence_ids), "checkpoint_id": asked.checkpoint_id}).all()
    if not rows:
        return {}
    query_D = np.frombuffer(asked.query, STORED).astype(np.float32)
    cosines = decode([row.key for row in rows], len(query_D)) @ query_D
    best: dict[int, float] = {}
    for row, cosine in zip(rows, cosines.tolist(), strict=True):
        best[row.sentence_id] = max(best.get(row.sentence_id, -1.0), cosine)
    return best
