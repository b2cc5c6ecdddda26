"""Fits how sure an answer is: a logistic model of what the search and the reader say of it, on questions with gold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from colmlm.kb.answers.confidence import NAMES, Confidence
from colmlm.kb.answers.outcomes import RIGHT, outcome
from colmlm.kb.answers.places import ReadPlace, best_first, weigh

SEARCH_WEIGHTS = (0.0, 0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0)
RIDGE = 1.0
STEPS = 50
FOLDS = 5

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ReadQuestion:
    """A question with every place that was read for it, and its gold answers (none: nothing there answers it)."""

    text: str
    answers: tuple[str, ...]
    places: tuple[ReadPlace, ...]


def fit(read: Sequence[ReadQuestion], most_wrong: float, most_alarms: float) -> Confidence:
    """Fits the search's weight, the logistic model and its threshold.

    The weight is the one with the most right answers. The threshold is the least at which no more than `most_wrong` of
    the answerable questions are answered wrongly, and `most_alarms` of the others at all; the scores that it is chosen
    by are those of models that were fitted without the question.
    """
    read = [one for one in read if one.places]
    search = max(SEARCH_WEIGHTS, key=lambda weight: sum(_right(one, weight) for one in read))
    evidence = [weigh(one.text, best_first(one.places, search)) for one in read]
    values_NF = np.array([[getattr(row, name) for name in NAMES] for row in evidence], dtype=np.float64)
    means_F, scales_F = values_NF.mean(axis=0), np.maximum(values_NF.std(axis=0), 1e-6)
    rows_NF = np.concatenate([(values_NF - means_F) / scales_F, np.ones((len(read), 1))], axis=1)
    right_N = np.array([_right(one, search) for one in read], dtype=np.float64)
    fold_N = np.arange(len(read)) % FOLDS
    scores_N = np.zeros(len(read))
    for fold in range(FOLDS):
        weights_F = _logistic(rows_NF[fold_N != fold], right_N[fold_N != fold])
        scores_N[fold_N == fold] = _probability(rows_NF[fold_N == fold], weights_F)
    weights_F = _logistic(rows_NF, right_N)
    return Confidence(
        search=search,
        bias=float(weights_F[-1]),
        weights=dict(zip(NAMES, weights_F.tolist(), strict=False)),
        means=dict(zip(NAMES, means_F.tolist(), strict=True)),
        scales=dict(zip(NAMES, scales_F.tolist(), strict=True)),
        threshold=_threshold(read, search, scores_N, most_wrong, most_alarms),
    )


def _right(one: ReadQuestion, search: float) -> bool:
    return bool(one.answers) and _outcome(one, search) in RIGHT


def _outcome(one: ReadQuestion, search: float) -> str:
    return outcome(best_first(one.places, search)[0].text, one.answers)


def _logistic(rows_NF: Floats, right_N: Floats) -> Floats:
    """Fits by Newton's method, with a ridge on all weights but the bias, which is the last."""
    weights_F = np.zeros(rows_NF.shape[1])
    ridge_F = np.full(len(weights_F), RIDGE)
    ridge_F[-1] = 1e-6
    for _ in range(STEPS):
        found_N = _probability(rows_NF, weights_F)
        slope_F = rows_NF.T @ (found_N - right_N) + ridge_F * weights_F
        bend_FF = (rows_NF * (found_N * (1 - found_N))[:, None]).T @ rows_NF + np.diag(ridge_F)
        step_F = np.linalg.solve(bend_FF, slope_F)
        weights_F = weights_F - step_F
        if np.abs(step_F).max() < 1e-8:
            break
    return weights_F


def _probability(rows_NF: Floats, weights_F: Floats) -> Floats:
    found: Floats = 1 / (1 + np.exp(-np.clip(rows_NF @ weights_F, -60, 60)))
    return found


def _threshold(
    read: Sequence[ReadQuestion], search: float, scores_N: Floats, most_wrong: float, most_alarms: float
) -> float:
    wrong_N = np.array([bool(one.answers) and _outcome(one, search) == "wrong" for one in read])
    there_N = np.array([bool(one.answers) for one in read])
    for threshold in np.linspace(0, 1, 201).tolist():
        said_N = scores_N >= threshold
        wrong = (said_N & wrong_N).sum() / max(1, there_N.sum())
        alarms = (said_N & ~there_N).sum() / max(1, (~there_N).sum())
        if wrong <= most_wrong and alarms <= most_alarms:
            return float(threshold)
    return 1.0
