"""A run's rows as JSON Lines, from which it is resumed, and bootstrap intervals of what they measure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

Row = dict[str, Any]
NAME = "row"  # the field that names a row


class EvaluationFileError(ValueError):
    """A file that an evaluation reads or goes on with is not what it has to be; the message says why."""


class RunLog:
    """The rows of one run by name. The file's first line is the run's configuration; without a file none are saved."""

    def __init__(self, path: Path | None, rows: dict[str, Row]) -> None:
        self.path = path
        self.rows = rows

    @classmethod
    def open(cls, path: Path | None, run: Mapping[str, Any]) -> Self:
        """Open the log of `run` with its rows so far. Raises `EvaluationFileError` if the file is of another run."""
        if path is None:
            return cls(None, {})
        if not path.is_file() or not path.stat().st_size:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(_line({"run": dict(run)}), encoding="utf-8")
            return cls(path, {})
        text = path.read_text(encoding="utf-8")
        whole = text[: text.rfind("\n") + 1]  # a kill may have cut the last line short
        head, *lines = whole.removesuffix("\n").split("\n") if whole else [text]
        _require_same(path, head, run)
        if whole != text:
            path.write_text(whole, encoding="utf-8")
        rows = [json.loads(line) for line in lines]
        return cls(path, {row.pop(NAME): row for row in rows})

    def add(self, rows: Mapping[str, Row]) -> None:
        """Add these rows, and write them if there is a file."""
        self.rows |= rows
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as target:
                target.writelines(_line({NAME: name, **row}) for name, row in rows.items())


def _require_same(path: Path, head: str, run: Mapping[str, Any]) -> None:
    try:
        found = json.loads(head)["run"]
    except (ValueError, TypeError, KeyError) as error:
        raise EvaluationFileError(f"{path} holds no rows of this command; name another file") from error
    if differing := sorted(name for name in {*found, *run} if found.get(name) != run.get(name)):
        raise EvaluationFileError(
            f"{path} holds another run (its {', '.join(differing)} differ); name another --out, or run it as before"
        )


def _line(record: Mapping[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False) + "\n"


Draw = Callable[[int], NDArray[np.int64]]
Interval = tuple[float, float]


def bootstrap(
    measure: Callable[[Draw], Mapping[str, float]], *, resamples: int = 1000, seed: int = 0
) -> dict[str, Interval]:
    """Compute the 95 % interval, as lower and upper end, of every number that `measure` returns, by its name.

    `measure` is called once per resample, with a function that draws rows with replacement from a count of them.
    """
    rng = np.random.default_rng(seed)
    measured = [measure(lambda n: rng.integers(0, n, n)) for _ in range(resamples)]
    return {name: _middle([m[name] for m in measured]) for name in measured[0]}


def share_bounds(share: float, interval: Interval, independent: int) -> Interval:
    """Give the 95 % interval of a share of `independent` draws: the bootstrap's `interval`, unless it is 0 or 1.

    Of such a share every resample is the same, and the bootstrap does not show how few draws there were. So the
    interval is the exact one (Clopper and Pearson, 1934); of 0 out of 14 it is 0 to 0.232.
    """
    rare = 1 - 0.025 ** (1 / independent)
    if share == 0:
        return 0.0, rare
    return (1 - rare, 1.0) if share == 1 else interval


def _middle(values: list[float]) -> Interval:
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)
