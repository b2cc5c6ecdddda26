"""The log of a run: one CSV line per step, TensorBoard events where it is installed, and a plot."""

from __future__ import annotations

import csv
import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from colmlm.model.training.config import TrainingRefused

LOSS_FILE, PLOT_FILE, BOARD = "loss.csv", "loss.png", "tensorboard"
_SMOOTH = 50  # the plot shows a running mean over this share of the run


class TrainingLog:
    """The log of one run, continued after step `begin`: lines of later steps are removed, since their work was lost.

    `tensorboard` None writes events if the package is installed, True requires it, and False writes none.
    """

    def __init__(self, directory: Path, begin: int, *, tensorboard: bool | None = None) -> None:
        self.directory = directory
        self._board = _board(directory / BOARD, begin, tensorboard)
        self._drop_lines_after(begin)
        self._lines = (directory / LOSS_FILE).open("a", newline="")
        self._writer: csv.DictWriter[str] | None = None

    def write(self, step: int, row: Mapping[str, float]) -> None:
        """Append the line of one step; it is in the file when this returns."""
        line = {"step": step, **row}
        if self._writer is None:
            self._writer = csv.DictWriter(self._lines, fieldnames=list(line))
            if not self._lines.tell():
                self._writer.writeheader()
        self._writer.writerow(line)
        self._lines.flush()
        if self._board is not None:
            for name, value in row.items():
                self._board.add_scalar(name, value, step)

    def plot(self) -> None:
        """Draw the plot of the whole log, replacing the former plot."""
        draw_plot(self.directory / LOSS_FILE, self.directory / PLOT_FILE)

    def close(self) -> None:
        self._lines.close()
        if self._board is not None:
            self._board.close()

    def _drop_lines_after(self, begin: int) -> None:
        path = self.directory / LOSS_FILE
        if not path.is_file():
            return
        with path.open(newline="") as lines:
            header, *rows = list(csv.reader(lines)) or [[]]
        unfinished = path.with_name(f".{LOSS_FILE}")
        with unfinished.open("w", newline="") as target:
            if begin and header:
                writer = csv.writer(target)
                writer.writerow(header)
                writer.writerows(row for row in rows if len(row) == len(header) and int(row[0]) <= begin)
        os.replace(unfinished, path)


def read_log(path: Path) -> dict[str, list[float]]:
    """Read the columns of a run's CSV log: the values of all steps by column name; empty if it has no lines."""
    with path.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    return {name: [float(row[name]) for row in rows] for name in (rows[0] if rows else {})}


def draw_plot(log: Path, target: Path) -> None:
    """Plot every column of a log against the step, each in a panel of its own, with its running mean."""
    from matplotlib.figure import Figure  # importing it takes half a second

    columns = read_log(log)
    steps = columns.pop("step", [])
    names = [name for name in columns if name not in ("tokens", "seconds")]
    if not steps or not names:
        return
    figure = Figure(figsize=(10, 2.4 * -(-len(names) // 2)))
    figure.subplots_adjust(
        left=0.08, right=0.97, bottom=0.06, top=0.95, hspace=0.6
    )  # a layout engine takes longer than everything else here
    panels = figure.subplots(-(-len(names) // 2), 2, squeeze=False).flat
    for name, axes in zip(names, panels, strict=False):
        axes.plot(steps, columns[name], linewidth=0.5, alpha=0.5)
        axes.plot(steps, _running_mean(columns[name]), linewidth=1.5)
        axes.set_title(name.replace("_", " "))
        axes.set_xlabel("step")
    for axes in list(panels):
        axes.set_axis_off()
    unfinished = target.with_name(f".{target.name}")
    figure.savefig(unfinished, format="png", dpi=100)
    os.replace(unfinished, target)


def _running_mean(values: list[float]) -> list[float]:
    width = max(1, len(values) // _SMOOTH)
    sums = [0.0]
    for value in values:
        sums.append(sums[-1] + value)
    starts = (max(0, end - width) for end in range(1, len(sums)))
    return [(sums[end] - sums[start]) / (end - start) for end, start in enumerate(starts, start=1)]


def _board(directory: Path, begin: int, wanted: bool | None) -> Any:
    """Open a TensorBoard writer, which hides earlier events after step `begin`; None if not wanted or not installed."""
    if wanted is False:
        return None
    if importlib.util.find_spec("tensorboard") is None:
        if wanted:
            raise TrainingRefused("tensorboard is not installed: pip install 'colmlm[tensorboard]'")
        return None
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(directory), purge_step=begin + 1 if begin else None)
