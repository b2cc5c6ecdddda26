"""The learning curve of a reader: its figures on held-out questions, by the examples it has seen."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path

from colmlm.model.reader.examples import ReaderExample
from colmlm.model.reader.measure import measure
from colmlm.model.reader.training import ReaderTask
from colmlm.model.training.task import StepMetrics

CURVE_FILE = "held_out.csv"
_COLUMNS = ("examples", "exact", "f1", "none_auc")


def trained(
    task: ReaderTask, directory: Path, held_out: Sequence[ReaderExample], every: int
) -> Iterator[StepMetrics]:
    """Trains in `directory`, and measures after each `every` examples and at the end; yields each step's metrics."""
    path, batch = directory / CURVE_FILE, task.config.batch
    for metrics in task.run(directory):
        seen = metrics.step * batch
        at_end = metrics.step == task.num_steps or metrics.done >= 1.0
        if held_out and (at_end or seen // every > (seen - batch) // every):
            _add(path, seen, task, held_out)
        yield metrics


def _add(path: Path, seen: int, task: ReaderTask, held_out: Sequence[ReaderExample]) -> None:
    """Adds a line, and removes those of later steps, whose work was lost in an interruption."""
    with task.reader() as reader:
        measured = measure(reader, held_out)
    rows = [row for row in _rows(path) if int(row["examples"]) < seen]
    figures = (seen, measured.answered.exact, measured.answered.f1, measured.none_auc)
    rows.append(dict(zip(_COLUMNS, map(str, figures), strict=True)))
    with path.open("w", newline="") as target:
        writer = csv.DictWriter(target, _COLUMNS)
        writer.writeheader()
        writer.writerows(rows)


def _rows(path: Path) -> list[dict[str, str]]:
    if not path.is_file():
        return []
    with path.open(newline="") as source:
        return list(csv.DictReader(source))
