"""How likely people ask for a stretch of a text, counted on the questions that people asked about other texts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier

from colmlm.lab.marks.candidates import CATEGORIES, Candidates
from colmlm.model.annotate.evaluate import normalise_value

SEED = 17


class AskedValues:
    """The share of candidates like this one that are what somebody asked for."""

    def __init__(
        self, texts: Sequence[str], found: Sequence[Candidates], asked: Sequence[Sequence[tuple[int, int]]]
    ) -> None:
        self.model = HistGradientBoostingClassifier(
            max_iter=300, learning_rate=0.06, max_leaf_nodes=63, min_samples_leaf=60, l2_regularization=1.0,
            categorical_features=list(range(len(CATEGORIES))), early_stopping=False, random_state=SEED,
        )  # fmt: skip
        labels = [labelled(*one) for one in zip(texts, found, asked, strict=True)]
        self.model.fit(np.concatenate([one.features_NF for one in found]), np.concatenate(labels))

    def shares(self, found: Candidates) -> NDArray[np.float64]:
        """Gives the share for each candidate of a text."""
        if not found.spans:
            return np.zeros(0)
        shares_N: NDArray[np.float64] = self.model.predict_proba(found.features_NF)[:, 1]
        return shares_N


def labelled(text: str, found: Candidates, asked: Sequence[tuple[int, int]]) -> NDArray[np.int64]:
    """Gives 1 for each candidate that is, up to articles and punctuation, a value that was asked for at this place."""
    labels_N = np.zeros(len(found.spans), dtype=np.int64)
    for begin, end in set(asked):
        value = normalise_value(text[begin:end])
        for n, (start, stop) in enumerate(found.spans):
            if start < end and begin < stop and normalise_value(text[start:stop]) == value:
                labels_N[n] = 1
    return labels_N
