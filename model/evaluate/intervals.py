"""Percentile bootstrap intervals."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

Draw = Callable[[int], NDArray[np.int64]]
Interval = tuple[float, float]


def bootstrap(
    measure: Callable[[Draw], Mapping[str, float]], *, resamples: int = 1000, seed: int = 0
) -> dict[str, Interval]:
    """Gives the 95 % interval of every number that `measure` gives.

    `measure` is called once per resample, with a function that draws rows with replacement from a count of them.
    """
    rng = np.random.default_rng(seed)
    measured = [measure(lambda n: rng.integers(0, n, n)) for _ in range(resamples)]
    return {name: _middle([m[name] for m in measured]) for name in measured[0]}


def of_share(share: float, interval: Interval, independent: int) -> Interval:
    """Gives the interval of a share of so many independent draws.

    If all or none hold, every resample is the same and the bootstrap does not show how few there were. The interval is
    then the exact one (Clopper and Pearson, 1934); of 0 out of 14 it is 0 to 0.232.
    """
    rare = 1 - 0.025 ** (1 / independent)
    if share == 0:
        return 0.0, rare
    return (1 - rare, 1.0) if share == 1 else interval


def _middle(values: list[float]) -> Interval:
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)
