"""Maps between key spaces: predicts keys of one checkpoint from those of another, fitted on facts that both have keyed.

- `procrustes`: the rotation, or reflection, that brings the old keys nearest to the new ones. Facts that are fewer
  than the dimensions of keys leave it open in part; of those that do as well it is the one nearest to the identity.
- `ridge`: the linear map of least squares. The fewer facts there are to fit it on, the more it is held to a map that
  is known beforehand: the identity, where both checkpoints come from one base, or that rotation.

A map is judged by the keys that it predicts for documents it was not fitted on, since facts of one document have much
in common.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from colmlm.kb.errors import InvalidValue
from colmlm.kb.keys.keysets import Vectors

METHODS = ("auto", "procrustes", "ridge")
FOLDS = 5
FEWEST = 10  # facts to fit a map on
_QUERIES_AT_ONCE = 256
_OF_IDENTITY = 1e-3  # by the mean square of the singular values, in a rotation that few facts leave open
_STRENGTHS = (
    0.1,
    0.3,
    1.0,
    3.0,
    10.0,
    30.0,
    100.0,
)  # of holding to the known map, by the variance of the old keys

Matrix = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class LinearMap:
    """A linear map of keys about their means: a rotation, or what is known beforehand with a correction.

    The correction is kept as factors, so that one decomposition serves every `strength` of holding to what is known.
    """

    known_DE: Matrix
    mean_D: Matrix
    mean_E: Matrix
    factors: tuple[Matrix, Matrix, Matrix] | None = None
    strength: float = 0.0

    def __call__(self, keys_ND: Vectors) -> Vectors:
        """Predicts keys [n, e] from keys [n, d]. Rows are unit vectors."""
        off_ND = keys_ND - self.mean_D
        made_NE = off_ND @ self.known_DE + self.mean_E
        if self.factors is not None:
            axes_DR, lengths_R, targets_RE = self.factors
            held = self.strength * float((lengths_R**2).sum()) / len(self.known_DE)
            made_NE += ((off_ND @ axes_DR) * (lengths_R / (lengths_R**2 + held))) @ targets_RE
        return unit(made_NE)


Fitter = Callable[[Vectors, Vectors], LinearMap]


@dataclass(frozen=True, slots=True)
class FittedMap:
    """A map, the method that made it, and what it predicted for each fact of the fit when it was fitted on others."""

    method: str
    map: LinearMap
    held_out_NE: Vectors
    cosine: float


def unit(rows: npt.NDArray[Any]) -> Vectors:
    """Gives the rows at length 1; a row of zeros stays."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    units: Vectors = (rows / np.maximum(lengths, 1e-12)).astype(np.float32)
    return units


def procrustes(old_ND: Vectors, new_NE: Vectors) -> LinearMap:
    """Gives the rotation, or reflection, with the least squared distance to the new keys."""
    old, new, mean_D, mean_E = _centred(old_ND, new_NE)
    return LinearMap(_rotation(old, new), mean_D, mean_E)


def held_to_identity(old_ND: Vectors, new_NE: Vectors) -> LinearMap:
    """Gives the ridge held to the identity, for any strength. Both spaces have one width."""
    old, new, mean_D, mean_E = _centred(old_ND, new_NE)
    return _corrected(np.eye(old.shape[1]), old, new, mean_D, mean_E)


def held_to_rotation(old_ND: Vectors, new_NE: Vectors) -> LinearMap:
    """Gives the ridge held to the rotation of `procrustes`, for any strength."""
    old, new, mean_D, mean_E = _centred(old_ND, new_NE)
    return _corrected(_rotation(old, new), old, new, mean_D, mean_E)


def require_fit(method: str, sample: int) -> None:
    """Raises `InvalidValue` for a method that there is not, and a sample that is too small."""
    if method not in METHODS:
        raise InvalidValue("method", f"{method!r} is none of {', '.join(METHODS)}")
    if sample < FEWEST:
        raise InvalidValue("sample", f"{sample} facts are too few to fit a map on; {FEWEST} are the fewest")


def are_few(groups_N: Sequence[int]) -> bool:
    """Tells whether facts of these documents are too few to fit a map on."""
    return len(groups_N) < FEWEST or len(set(groups_N)) < 2


def best_map(method: str, old_ND: Vectors, new_NE: Vectors, groups_N: Sequence[int]) -> FittedMap:
    """Fits a map by a method, in that of its ways which predicts best what it was not fitted on.

    `groups_N` are the documents of the facts, of which none is on both sides. Raises `InvalidValue` where there are too
    few.
    """
    fold_N = _folds(groups_N)
    same_width = old_ND.shape[1] == new_NE.shape[1]
    tried = (
        one
        for name, fitter, strengths in _ways(method, same_width)
        for one in _fitted(name, fitter, strengths, old_ND, new_NE, fold_N)
    )
    return max(tried, key=lambda one: one.cosine)


def _ways(method: str, same_width: bool) -> Iterator[tuple[str, Fitter, Sequence[float]]]:
    """Gives the fitters of a method with their names and strengths; "auto" stands for all methods."""
    if method != "ridge":
        yield "procrustes", procrustes, (0.0,)
    if method != "procrustes":
        if same_width:
            yield "ridge to the identity", held_to_identity, _STRENGTHS
        yield "ridge to the rotation", held_to_rotation, _STRENGTHS


def _fitted(
    name: str,
    fitter: Fitter,
    strengths: Sequence[float],
    old_ND: Vectors,
    new_NE: Vectors,
    fold_N: npt.NDArray[np.int64],
) -> Iterator[FittedMap]:
    """Fits a map at each strength on all facts, and on all but a fold for what it predicts of that."""
    held_out = {strength: np.zeros_like(new_NE, dtype=np.float32) for strength in strengths}
    for fold in np.unique(fold_N):
        out = fold_N == fold
        without = fitter(old_ND[~out], new_NE[~out])
        for strength, made_NE in held_out.items():
            made_NE[out] = replace(without, strength=strength)(old_ND[out])
    whole = fitter(old_ND, new_NE)
    for strength, made_NE in held_out.items():
        cosine = float(np.mean(np.einsum("nd,nd->n", made_NE, new_NE)))
        named = f"{name}, {strength:g}" if len(strengths) > 1 else name
        yield FittedMap(named, replace(whole, strength=strength), made_NE, cosine)


def _folds(groups_N: Sequence[int]) -> npt.NDArray[np.int64]:
    """Gives the fold of each fact. Documents of one topic have neighbouring ids, so a fold is a stretch of them."""
    if are_few(groups_N):
        raise InvalidValue("sample", f"{len(groups_N)} facts are too few to fit a map on")
    known, group_N = np.unique(np.asarray(groups_N, dtype=np.int64), return_inverse=True)
    folds: npt.NDArray[np.int64] = group_N * FOLDS // len(known)
    return folds


def _corrected(known_DE: Matrix, old: Matrix, new: Matrix, mean_D: Matrix, mean_E: Matrix) -> LinearMap:
    left_NR, lengths_R, axes_RD = np.linalg.svd(old, full_matrices=False)
    targets_RE = left_NR.T @ (new - old @ known_DE)
    return LinearMap(known_DE, mean_D, mean_E, (axes_RD.T, lengths_R, targets_RE), 1.0)


def shares_found(queries_BD: Vectors, own_B: Sequence[int], keys_ND: Vectors) -> dict[int, float]:
    """Gives recall at 1 and at 10: the shares of queries whose own key is that near. On ties it ranks last."""
    rank_B = np.empty(len(queries_BD), dtype=np.int64)
    for start in range(0, len(queries_BD), _QUERIES_AT_ONCE):
        rows = slice(start, start + _QUERIES_AT_ONCE)
        scores_BN = queries_BD[rows] @ keys_ND.T
        own = np.take_along_axis(scores_BN, np.asarray(own_B[rows])[:, None], axis=1)
        rank_B[rows] = (~(scores_BN < own)).sum(axis=1)
    return {k: float(np.mean(rank_B <= k)) for k in (1, 10)}


def _centred(old_ND: Vectors, new_NE: Vectors) -> tuple[npt.NDArray[np.float64], ...]:
    old, new = old_ND.astype(np.float64), new_NE.astype(np.float64)
    mean_D, mean_E = old.mean(axis=0), new.mean(axis=0)
    return old - mean_D, new - mean_E, mean_D, mean_E


def _rotation(old: npt.NDArray[np.float64], new: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    product = old.T @ new
    # A little of the identity decides what the facts leave open. Without it the product of few facts has many singular
    # values of about zero, for which LAPACK sometimes finds no decomposition.
    little = _OF_IDENTITY * float(np.linalg.norm(product)) / np.sqrt(min(product.shape))
    left, _, right = np.linalg.svd(product + little * np.eye(*product.shape), full_matrices=False)
    rotation: npt.NDArray[np.float64] = left @ right
    return rotation
