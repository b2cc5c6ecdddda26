"""Measures durations: the seconds of one piece of work, and percentiles of many in milliseconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np


def seconds_of(work: Callable[[], object]) -> float:
    """Runs `work` and gives the seconds that it took."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def milliseconds(seconds: Sequence[float], percentile: float) -> float:
    """Gives a percentile of these durations in milliseconds, or nan where there are none."""
    return 1000 * float(np.percentile(seconds, percentile)) if len(seconds) else float("nan")
