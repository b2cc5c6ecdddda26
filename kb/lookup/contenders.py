"""Contenders: the candidates of an exact search that can be among the k best facts.

Reading a key from the database takes longer than finding it, and of the spare ones that a search asks for few are ever
needed: where one of the best is dead, or a fact has two.
"""

from __future__ import annotations

import numpy as np

from colmlm.kb.keys.keysets import Ids, Vectors

ROUNDING = 1e-4  # by more than this no two products of the same unit vectors differ


def contenders(scores_BF: Vectors, candidates_BF: Ids, k: int) -> Ids:
    """Gives the candidates [B, F], best first, with -1 in place of those that k others beat."""
    if candidates_BF.shape[1] <= k:
        return candidates_BF
    return np.where(scores_BF >= scores_BF[:, k - 1 : k] - ROUNDING, candidates_BF, -1)
