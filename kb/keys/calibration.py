"""Calibration: the score below which a lookup is *no match*, chosen for one keyset from its own facts.

Every sampled question is scored twice against the keys of live facts:

- *genuine*: the best score of a fact that has the asked one's value, which a lookup should accept;
- *impostor*: the best score of any fact with another value, which is what a lookup would find once the asked
  fact and all that say the same are deleted, and should refuse.

A false reject is a genuine score below the threshold, a false accept an impostor score at or above it.
Cosines differ from checkpoint to checkpoint (the paper's 0.7 refuses half of the right answers of a small
one), so there is no threshold for all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from colmlm.kb.errors import InvalidValue

Scores = npt.NDArray[np.float64]
_CHUNK = 256  # questions scored at once: bounds the memory of [questions, keys]

# Where questions hardly tell facts apart, as generated ones may not, both errors together are about 1 at any threshold,
# and the least of them may refuse nearly everything. A knowledge base that answers nothing is of no use to anyone, and
# one that refuses nothing answers what is about something else.
_MOST_REJECTS = 1 / 3


@dataclass(frozen=True, slots=True)
class Calibration:
    """A threshold and what it does to the questions it was chosen on.

    `right_first` is the share of questions whose best fact has the right value, which no threshold can raise.
    """

    threshold: float
    false_accept_rate: float
    false_reject_rate: float
    right_first: float
    num_questions: int


def calibrate(
    queries_BD: npt.NDArray[np.float32],
    asked: Sequence[int],
    keys_ND: npt.NDArray[np.float32],
    fact_ids: Sequence[int],
    values: Mapping[int, str],
    *,
    false_accept_rate: float | None = None,
) -> Calibration:
    """Choose the threshold for queries [B, d] that ask for facts `asked` [B], among keys [N, d] of `fact_ids` [N].

    Without a rate: the threshold that makes the mean of both error rates least, or where that would refuse more than
    a third of the genuine, the highest that does not. With one: the lowest that accepts no more than this share of
    impostors. `values` names every
    fact's live value. Raises `InvalidValue` without questions, and where all facts have one value: then nothing can
    be mistaken.
    """
    genuine, impostor = score(queries_BD, asked, keys_ND, fact_ids, values)
    if not len(genuine) or not np.isfinite(impostor).any():
        raise InvalidValue("threshold", "calibration needs questions, and keyed facts of at least two values")
    threshold = (
        _balanced(genuine, impostor) if false_accept_rate is None else _at_rate(impostor, false_accept_rate)
    )
    return Calibration(
        threshold=threshold,
        false_accept_rate=float(np.mean(impostor >= threshold)),
        false_reject_rate=float(np.mean(genuine < threshold)),
        right_first=float(np.mean(genuine > impostor)),
        num_questions=len(genuine),
    )


def score(
    queries_BD: npt.NDArray[np.float32],
    asked: Sequence[int],
    keys_ND: npt.NDArray[np.float32],
    fact_ids: Sequence[int],
    values: Mapping[int, str],
) -> tuple[Scores, Scores]:
    """Genuine and impostor scores [B] of each question; -inf where there is no such fact."""
    classes: dict[str, int] = {}
    class_of = {
        fact_id: classes.setdefault(normalise(value), len(classes)) for fact_id, value in values.items()
    }
    class_N = np.array([class_of[fact_id] for fact_id in fact_ids], dtype=np.int64)
    class_B = np.array([class_of[fact_id] for fact_id in asked], dtype=np.int64)
    genuine, impostor = (np.full(len(asked), -np.inf) for _ in range(2))
    for start in range(0, len(asked), _CHUNK):
        rows = slice(start, start + _CHUNK)
        scores_BN = (queries_BD[rows] @ keys_ND.T).astype(np.float64)
        same_BN = class_B[rows, None] == class_N[None, :]
        genuine[rows] = np.where(same_BN, scores_BN, -np.inf).max(axis=1, initial=-np.inf)
        impostor[rows] = np.where(same_BN, -np.inf, scores_BN).max(axis=1, initial=-np.inf)
    return genuine, impostor


def normalise(value: str) -> str:
    """What two values have in common that say the same: case, runs of blanks and closing punctuation aside."""
    return " ".join(value.casefold().split()).strip(" .,;:!?\"'")


def _balanced(genuine: Scores, impostor: Scores) -> float:
    """The threshold that makes false rejects plus false accepts least, or the highest within bounds."""
    candidates = np.unique(np.concatenate([genuine[np.isfinite(genuine)], impostor[np.isfinite(impostor)]]))
    edges = np.concatenate(
        [candidates[:1], (candidates[1:] + candidates[:-1]) / 2, np.nextafter(candidates[-1:], 2)]
    )
    rejects = np.searchsorted(np.sort(genuine), edges, side="left") / len(genuine)
    accepts = 1 - np.searchsorted(np.sort(impostor), edges, side="left") / len(impostor)
    highest = int(np.searchsorted(rejects, max(_MOST_REJECTS, rejects[0]), side="right")) - 1
    return _as_cosine(edges[min(int(np.argmin(rejects + accepts)), highest)])


def _at_rate(impostor: Scores, rate: float) -> float:
    """The lowest threshold that accepts at most this share of the impostors."""
    descending = np.sort(impostor)[::-1]
    allowed = int(np.floor(rate * len(descending) + 1e-9))
    if allowed >= len(descending):
        return -1.0
    # Just above the first impostor that must be refused: equal scores are refused with it.
    return _as_cosine(np.nextafter(descending[allowed], 2))


def _as_cosine(threshold: float) -> float:
    """Rounding may carry an inner product of unit vectors past 1."""
    return float(min(1.0, max(-1.0, threshold)))
