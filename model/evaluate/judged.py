"""Figures from verdicts: SimpleQA's over answers and FActScore's over biographies, with bootstrap intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colmlm.model.evaluate.intervals import Draw, bootstrap
from colmlm.model.evaluate.judge import VERDICTS

LEAST_CLAIMS = 10  # FActScore's gamma: a biography with fewer claims scores less


def simple_qa(verdicts: Sequence[str]) -> dict[str, Any]:
    """Computes SimpleQA's figures.

    They are shares of all answers, `correct_given_attempted`, and `f_score`, the harmonic mean of that and of
    `correct`.
    """
    held = np.array([[verdict == name for name in VERDICTS] for verdict in verdicts]).reshape(-1, 3)
    return _with_intervals(_simple_qa, held)


def _simple_qa(held_N3: NDArray[Any]) -> dict[str, float]:
    correct, incorrect, not_attempted = (float(share) for share in held_N3.mean(axis=0))
    given = _ratio(correct, correct + incorrect)
    return {
        "correct": correct,
        "incorrect": incorrect,
        "not_attempted": not_attempted,
        "correct_given_attempted": given,
        "f_score": _ratio(2 * correct * given, correct + given),
    }


@dataclass(frozen=True, slots=True)
class Checked:
    """The numbers of judged and of supported claims in a biography. No judged claims count as an abstention."""

    claims: int
    supported: int


def fact_score(biographies: Sequence[Checked]) -> dict[str, Any]:
    """Computes FActScore's figures.

    They are the mean share of supported claims over the biographies that state any, the same with those of fewer than
    `LEAST_CLAIMS` claims scored lower, the share that states nothing, and the mean number of claims.
    """
    return _with_intervals(
        _fact_score, np.array([(one.claims, one.supported) for one in biographies]).reshape(-1, 2)
    )


def _fact_score(counts_N2: NDArray[Any]) -> dict[str, float]:
    stated = counts_N2[counts_N2[:, 0] > 0]
    claims = stated[:, 0].astype(float)
    shares = stated[:, 1] / np.maximum(claims, 1)
    penalty = np.where(claims < LEAST_CLAIMS, np.exp(1 - LEAST_CLAIMS / np.maximum(claims, 1)), 1.0)
    return {
        "score": _mean(shares),
        "score_with_length_penalty": _mean(shares * penalty),
        "abstained": 1 - len(stated) / len(counts_N2),
        "claims": _mean(claims),
    }


def _with_intervals(measure: Any, rows: NDArray[Any]) -> dict[str, Any]:
    if not len(rows):
        return {"intervals": {}}
    figures: Mapping[str, float] = measure(rows)

    def drawn(draw: Draw) -> Mapping[str, float]:
        return measure(rows[draw(len(rows))])  # type: ignore[no-any-return]

    return {**figures, "intervals": bootstrap(drawn)}


def _mean(values: NDArray[Any]) -> float:
    return float(values.mean()) if len(values) else 0.0


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole and not math.isnan(whole) else 0.0
