"""The keys that a run of the store's bench stores, one for each of its facts, and the queries that it asks.

They are synthetic, or those of a keyset of a base and the questions of its facts as the keyset's model asks them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from colmlm.kb.errors import InvalidValue, KeysetMismatch
from colmlm.kb.keys import keysets
from colmlm.kb.keys.keysets import context_keys
from colmlm.kb.keys.rekey import Encoder
from colmlm.kb.service import KnowledgeBase
from colmlm.lab.bench.synthetic import queries_near, synthetic_keys

NUM_QUERIES = 1000
LEAST = 600  # keys: of fewer too little is deleted and asked to measure anything
_ENCODED_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class MeasuredKeys:
    """Keys [n, d] and queries [m, d], and where they are from."""

    keys: npt.NDArray[np.float32]
    queries: npt.NDArray[np.float32]
    source: str = "synthetic"

    @classmethod
    def synthetic(cls, num_facts: int, dim: int, seed: int) -> Self:
        keys = synthetic_keys(num_facts, dim, seed=seed)
        return cls(keys, queries_near(keys, _num_queries(num_facts), seed=seed))

    @classmethod
    def of_keyset(
        cls, kb: KnowledgeBase, keyset_id: int, encoder: Encoder, num_facts: int, seed: int
    ) -> Self:
        """Reads up to so many context keys of live facts, and asks some of these facts' questions.

        Raises `KeysetMismatch` where another checkpoint made the keys, and `InvalidValue` where they are too few.
        """
        checkpoint_id = encoder.checkpoint.checkpoint_id
        with kb.sessions() as session:
            keyset = keysets.keyset_head(session, keyset_id)
            if keyset.checkpoint_id != checkpoint_id:
                raise KeysetMismatch(checkpoint_id, keyset.checkpoint_id)
            fact_ids, keys = context_keys(session, keyset_id, None)
        fact_ids, keys = fact_ids[:num_facts], keys[:num_facts]
        wanted = _num_queries(len(keys))
        some = np.random.default_rng(seed).permutation(fact_ids)[
            : 2 * wanted
        ]  # not every fact has a question
        asked = [fact.question for fact in kb.facts.show_many(some.tolist()) if fact.question][:wanted]
        if len(keys) < LEAST or len(asked) < wanted:
            raise InvalidValue("keyset", f"{len(keys)} keys and {len(asked)} questions are too few")
        return cls(keys, _encoded(encoder, asked), f"keyset {keyset_id}")


def _num_queries(num_facts: int) -> int:
    return min(NUM_QUERIES, num_facts // 8)


def _encoded(encoder: Encoder, questions: list[str]) -> npt.NDArray[np.float32]:
    parts = [
        encoder.encode_questions(questions[start : start + _ENCODED_AT_ONCE])
        for start in range(0, len(questions), _ENCODED_AT_ONCE)
    ]
    return np.concatenate(parts).astype(np.float32)
