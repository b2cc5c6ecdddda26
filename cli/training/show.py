"""Shows a run's progress while it trains."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from colmlm.cli.output import note

if TYPE_CHECKING:
    from colmlm.model.training.task import StepMetrics

_EVERY_SECONDS = 10.0


class Show(Protocol):
    def __call__(self, metrics: StepMetrics, steps: int) -> None: ...


@contextmanager
def shown() -> Iterator[Show]:
    """Show each step on stderr: as a progress bar on a terminal, else as a line now and then."""
    if not sys.stderr.isatty():
        yield _Lines()
        return
    columns = (TextColumn("training"), BarColumn(), TimeElapsedColumn(), TextColumn("{task.fields[status]}"))
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("training", total=1.0, status="")
        yield lambda m, steps: bar.update(task, completed=m.done, status=_status(m, steps))


class _Lines:
    def __init__(self) -> None:
        self._last = -_EVERY_SECONDS  # the first step is shown at once

    def __call__(self, metrics: StepMetrics, steps: int) -> None:
        if time.monotonic() - self._last >= _EVERY_SECONDS:
            self._last = time.monotonic()
            note(_status(metrics, steps))


def _status(metrics: StepMetrics, steps: int) -> str:
    """Describe a run's state: its losses, its speed, and how long it will take at the speed so far."""
    parts = "  ".join(f"{name.replace('_', ' ')} {value:.3g}" for name, value in metrics.parts.items())
    left = metrics.seconds_left / 60
    return (
        f"step {metrics.step} of {steps}  loss {metrics.loss:.3f}  {parts}  "
        f"{metrics.tokens_per_second:.0f} tokens/s  {left:.0f} min left"
    )
