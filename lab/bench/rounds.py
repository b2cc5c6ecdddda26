"""Times several ways of doing one job in turns, so that other load on the machine affects all of them alike."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from colmlm.cli.output import progress
from colmlm.lab.bench.durations import seconds_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Seconds:
    """The median, least and greatest seconds of one way over all rounds."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, times: Sequence[float]) -> Seconds:
        return cls(median=statistics.median(times), least=min(times), most=max(times))


def in_turns(ways: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, Seconds]:
    """Times each way in `rounds` rounds, after one that is not counted."""
    return measured_in_turns({name: _timed(work) for name, work in ways.items()}, rounds)


def measured_in_turns(ways: Mapping[str, Callable[[int], float]], rounds: int) -> dict[str, Seconds]:
    """Does the same with ways that take the number of the round and measure their own seconds."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    with progress(f"Timing {' and '.join(ways)}") as advance:
        for number in range(rounds + 1):
            for done, (name, way) in enumerate(ways.items(), start=number * len(ways)):
                advance(done, len(ways) * (rounds + 1))
                seconds = way(number)
                if number:
                    taken[name].append(seconds)
    return {name: Seconds.of(times) for name, times in taken.items()}


def _timed(work: Callable[[], object]) -> Callable[[int], float]:
    def seconds(_number: int) -> float:
        return seconds_of(work)

    return seconds
