"""Two or more ways of doing one job, timed in turns, so that a busy second of the machine meets all of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Seconds:
    """Of one way over all rounds."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, times: Sequence[float]) -> Seconds:
        return cls(median=statistics.median(times), least=min(times), most=max(times))


def in_turns(ways: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, Seconds]:
    """Seconds of each way. One round more comes first and is not counted."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, work in ways.items():
            started = time.perf_counter()
            work()
            if number:
                taken[name].append(time.perf_counter() - started)
    return {name: Seconds.of(times) for name, times in taken.items()}
