"""Compares the keys that are stored with those that their encoder makes, and with what the log says was predicted."""

from __future__ import annotations

from collections.abc import Container, Iterator

import numpy as np
from sqlalchemy import Connection, text

from colmlm.kb.keys.keysets import decode
from colmlm.lab.crashlab.encoder import DIM, HashEncoder

TRUE, PREDICTED = (
    0.999,
    0.95,
)  # the least cosine with the encoder's own key: half floats round, and a map is fitted

_KEYS = text("""
SELECT k.id, f.question, k.key, EXISTS (
    SELECT FROM change c
    WHERE c.kind = 'key' AND c.payload -> 'predicted' IS NOT NULL AND CAST(c.payload ->> 'keyset' AS bigint) = s.id
      AND k.id BETWEEN CAST(c.payload -> 'keys' ->> 0 AS bigint) AND CAST(c.payload -> 'keys' ->> 1 AS bigint)
) AS predicted
FROM keyset s JOIN fact_key k ON k.keyset_id = s.id JOIN fact f ON f.id = k.fact_id
WHERE s.checkpoint_id = :checkpoint_id AND s.state <> 'retired' AND f.question IS NOT NULL
ORDER BY k.id
""")


def wrong_keys(connection: Connection, encoder: HashEncoder, predicted: Container[str]) -> Iterator[str]:
    """Says which keys are others than they should be: true ones, or predicted ones of the facts that may have such."""
    rows = connection.execute(_KEYS, {"checkpoint_id": encoder.checkpoint.checkpoint_id}).all()
    keys_ND = decode([row.key for row in rows], DIM)
    made_ND = encoder.encode_questions([row.question for row in rows])
    cosines = np.einsum("nd,nd->n", keys_ND, made_ND)
    for row, cosine in zip(rows, cosines.tolist(), strict=True):
        if row.predicted and row.question not in predicted:
            yield f"key {row.id} of {row.question!r} is still a predicted one"
        elif cosine < (PREDICTED if row.predicted else TRUE):
            yield f"key {row.id} of {row.question!r} has a cosine of {cosine:.3f} with what its encoder makes"
