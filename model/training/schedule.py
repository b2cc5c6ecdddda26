"""Learning rates: warm-up, stable, cooldown (appendix A, pre-training) and cosine (appendix A, annotators)."""

from __future__ import annotations

import math
from dataclasses import dataclass

WSD, COSINE = "wsd", "cosine"


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """The length of a run and its learning rate at each point.

    A run ends at `steps` or after `max_seconds`, whichever is first. The rate rises linearly to `peak` over
    `warmup_steps`. Then ``wsd`` keeps it there and lowers it linearly to `final` over the last `cooldown` share of the
    run; ``cosine`` lowers it along half a cosine from the end of the warm-up.
    """

    kind: str = WSD
    steps: int
    max_seconds: float | None = None
    peak: float
    final: float = 0.0
    warmup_steps: int = 0
    cooldown: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in (WSD, COSINE):
            raise ValueError(f"schedule {self.kind!r} is none of {WSD}, {COSINE}")
        if self.steps < 1 or (self.max_seconds is not None and self.max_seconds <= 0):
            raise ValueError("steps and max_seconds must be positive")
        if not 0 <= self.final <= self.peak or self.warmup_steps < 0 or not 0 <= self.cooldown <= 1:
            raise ValueError("0 <= final <= peak, warmup_steps >= 0 and cooldown within [0, 1] must hold")

    def done(self, step: int, seconds: float) -> float:
        """Gives the share of the run that is done after `step` steps and `seconds`; 1 or more at its end."""
        by_time = seconds / self.max_seconds if self.max_seconds else 0.0
        return max(step / self.steps, by_time)

    def rate(self, step: int, seconds: float) -> float:
        """Gives the learning rate of step number `step`, counted from 0, which begins after `seconds`."""
        if step < self.warmup_steps:
            return self.peak * (step + 1) / self.warmup_steps
        return self.final + (self.peak - self.final) * self._height(self.done(step, seconds))

    def _height(self, done: float) -> float:
        """Gives how far the rate is between `final` (0) and `peak` (1), after the warm-up."""
        if self.kind == COSINE:
            warmed = min(1.0, self.warmup_steps / self.steps)
            along = (done - warmed) / (1 - warmed) if warmed < 1 else 1.0
            return (1 + math.cos(math.pi * min(1.0, max(0.0, along)))) / 2
        left = max(0.0, 1.0 - done)
        return min(1.0, left / self.cooldown) if self.cooldown else 1.0
