"""Fits what stages take to measured runs, and prints the tables of docs/sizing.md.

    python -m colmlm.lab.bench.size.fit benchmarks/results/size/*.json

Each run is what `colmlm-lab bench size --json` printed. A stage is fitted by a sum of terms that grow as its work does,
in the processor's seconds of program and server together, which other work changes less than the clock's. Beyond the
largest run everything printed is extrapolated.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls

from colmlm.cli.operating.estimates import Load, database_bytes, index_bytes, sizes, snapshot_bytes
from colmlm.cli.operating.sizing import readable
from colmlm.kb.lookup.index import ROUNDS, TRAINED_PER_LIST
from colmlm.lab.bench.size.command import TEXT_BYTES
from colmlm.lab.bench.size.stages import STAGES

Row = tuple[object, ...]
Terms = dict[str, Callable[[Load], float]]


def _compared(load: Load) -> float:
    """Counts the numbers of centroids that keys are compared with: those of the sample in each round, then all keys."""
    return (load.facts + ROUNDS * TRAINED_PER_LIST * load.nlist) * load.nlist * load.dim


FACTS: Terms = {"a fact": lambda load: load.facts}
STORED: Terms = FACTS | {"a number of a key": lambda load: load.facts * load.dim}
ON_DISK: Terms = {"a byte of the snapshot": snapshot_bytes}
LAWS: Mapping[str, Terms] = {
    "ingest": FACTS,
    "keys": STORED,
    "settle": STORED,
    "index": FACTS | {"a number of a centroid that a key is compared with": _compared},
    "erase": FACTS | ON_DISK,
    "snapshot": FACTS | ON_DISK,
    "restart": FACTS | ON_DISK,
    "fsck": FACTS | ON_DISK,
    "backup": STORED,
    "verify": STORED,
    "purge": STORED,
}
# Facts, width, and the length of a code where it is not the default: from what was measured to the paper's stores.
ON_PAPER = (
    (1_000_000, 576, None),
    (10_000_000, 64, None),
    (10_000_000, 576, None),
    (100_000_000, 576, None),
    (240_000_000, 960, None),
    (2_200_000_000, 960, 96),
)
LOOKUPS = 100  # a second, that a machine on paper answers
CORE, MEMORY_GB, DISK_GB = 20.0, 4.0, 0.1  # dollars a month, about what clouds asked in 2026


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """One run: what was measured of a load, by stage."""

    load: Load
    stages: Mapping[str, Mapping[str, Any]]

    @classmethod
    def read(cls, file: Path) -> MeasuredRun:
        said = json.loads(file.read_text())
        return cls(Load(facts=said["facts"], dim=said["dim"], text_bytes=TEXT_BYTES), said["stages"])

    @property
    def name(self) -> str:
        return f"{self.load.facts:,} x {self.load.dim}"

    def processor(self, stage: str) -> float:
        """Gives the processor's seconds of a stage, the program's and the server's."""
        return float(self.stages[stage]["cpu_seconds"] + self.stages[stage]["server_cpu_seconds"])


def measured(runs: Sequence[MeasuredRun]) -> Iterator[Row]:
    """Lays the runs side by side: seconds of the clock and of the processor, memory of program and server."""
    yield "stage", *(run.name for run in runs)
    for stage in STAGES:
        yield stage, *(_told(run, stage) for run in runs)


def _told(run: MeasuredRun, stage: str) -> str:
    if (found := run.stages.get(stage)) is None:
        return ""
    memory = " + ".join(readable(found[f"peak_{of}bytes"]) for of in ("", "server_"))
    return f"{found['seconds']:.1f} s ({run.processor(stage):.1f}), {memory}"


def lookups(runs: Sequence[MeasuredRun]) -> Iterator[Row]:
    """Lays side by side what single operations take."""
    yield "", *(run.name for run in runs)
    for said, stage, name, form in _SINGLE:
        yield said, *(format(run.stages[stage][name], form) if stage in run.stages else "" for run in runs)


_SINGLE = (
    ("recall@1", "lookup", "recall_at_1", ".3f"),
    ("lookup p50, ms", "lookup", "p50_ms", ".2f"),
    ("lookup p99, ms", "lookup", "p99_ms", ".2f"),
    ("lookups a second, in batches", "lookup", "batched_per_s", ",.0f"),
    ("edit p50, ms", "edit", "p50_ms", ".2f"),
    ("edit p99, ms", "edit", "p99_ms", ".2f"),
    ("delete p50, ms", "delete", "p50_ms", ".2f"),
    ("delete p99, ms", "delete", "p99_ms", ".2f"),
    ("deleted and found", "delete", "deleted_but_found", "d"),
)


def growth(runs: Sequence[MeasuredRun]) -> Iterator[Row]:
    """Gives by which power of the number of facts a stage's processor time and memory grew between runs of one width.

    1 is in proportion; more is where it bends.
    """
    yield "stage", "from, to", "processor", "memory of the program", "of the server"
    pairs = [(a, b) for a in runs for b in runs if a.load.dim == b.load.dim and a.load.facts < b.load.facts]
    for one, other in pairs:
        for stage in [s for s in LAWS if s in one.stages and s in other.stages]:
            power = _power(one, other, one.processor(stage), other.processor(stage))
            memory = [
                _power(one, other, one.stages[stage][name], other.stages[stage][name])
                for name in ("peak_bytes", "peak_server_bytes")
            ]
            yield stage, f"{one.name}, {other.name}", power, *memory


def _power(one: MeasuredRun, other: MeasuredRun, before: float, after: float) -> str:
    return (
        f"{math.log(max(after, 1e-3) / max(before, 1e-3)) / math.log(other.load.facts / one.load.facts):.2f}"
    )


def fitted(runs: Sequence[MeasuredRun]) -> dict[str, dict[str, float]]:
    """Fits each stage's terms to the runs, none below zero, so that the relative errors are small."""
    found = {}
    for stage, terms in LAWS.items():
        told = [run for run in runs if stage in run.stages]
        if told:
            seconds = np.array([run.processor(stage) for run in told])
            work = np.array([[term(run.load) for term in terms.values()] for run in told])
            found[stage] = dict(zip(terms, _least(work, seconds), strict=True))
    return found


def _least(work: npt.NDArray[np.float64], seconds: npt.NDArray[np.float64]) -> list[float]:
    scale = work.max(axis=0)
    factors, _ = nnls(work / scale / seconds[:, None], np.ones(len(seconds)))
    return (factors / scale).tolist()  # type: ignore[no-any-return]


def laws(runs: Sequence[MeasuredRun]) -> Iterator[Row]:
    """Says the fitted terms, and what they give beside what was measured."""
    yield "stage", "the processor's seconds", *(f"of {run.name}, measured" for run in runs)
    for stage, terms in fitted(runs).items():
        said = " + ".join(f"{factor:.3g} for {name}" for name, factor in terms.items() if factor)
        beside = [
            f"{_seconds(run.load, stage, terms):.1f}, {run.processor(stage):.1f}"
            if stage in run.stages
            else ""
            for run in runs
        ]
        yield stage, said, *beside


def _seconds(load: Load, stage: str, terms: Mapping[str, float]) -> float:
    return sum(factor * LAWS[stage][name](load) for name, factor in terms.items())


def stored(runs: Sequence[MeasuredRun]) -> Iterator[Row]:
    """Says what the formulas of `colmlm db sizing` give beside what was measured."""
    yield "", *(f"{run.name}: the formula, measured" for run in runs)
    yield "database", *(_beside(database_bytes(run.load), run, "settle", "database_bytes") for run in runs)
    yield "snapshot", *(_beside(snapshot_bytes(run.load), run, "index", "index_bytes") for run in runs)
    yield "index in memory", *(_beside(index_bytes(run.load), run, "restart", "peak_bytes") for run in runs)


def _beside(formula: int, run: MeasuredRun, stage: str, name: str) -> str:
    found = run.stages.get(stage)
    return f"{readable(formula)}, {readable(found[name]) if found else 'not measured'}"


def on_paper(runs: Sequence[MeasuredRun]) -> Iterator[Row]:
    """Gives hours of one core, and a machine with its price a month, for each size. No keys are made in that time."""
    yield (
        "facts", "width", "ingest and keys", "index", "fsck", "backup", "restart",
        "disk", "memory", "cores", "a month",
    )  # fmt: skip
    terms = fitted(runs)
    for facts, dim, code in ON_PAPER:
        load = Load(facts=facts, dim=dim, code_bytes=code)
        times = {stage: _seconds(load, stage, found) for stage, found in terms.items()}
        found = sizes(load)
        cores = max(2, math.ceil(LOOKUPS / found.lookups_per_second_and_core))
        price = cores * CORE + found.memory / 1e9 * MEMORY_GB + found.disk / 1e9 * DISK_GB
        spent = (
            times.get("ingest", 0) + times.get("keys", 0),
            *(times.get(stage, 0) for stage in ("index", "fsck", "backup", "restart")),
        )
        yield (
            f"{facts:,}", dim, *map(duration, spent), readable(found.disk), readable(found.memory), cores,
            f"{price:,.0f} $",
        )  # fmt: skip


def duration(seconds: float) -> str:
    """Writes a duration in the unit that suits it."""
    for size, unit in ((86_400, "days"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:,.0f} {unit}"
    return f"{seconds:.0f} s"


def markdown(rows: Iterator[Row]) -> str:
    """Writes rows, of which the first names the columns, as a table."""
    head, *rest = [[str(cell) for cell in row] for row in rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rest))


TABLES = {
    "Measured": measured,
    "One operation": lookups,
    "How it grows": growth,
    "Fitted": laws,
    "Bytes": stored,
    "On paper": on_paper,
}


def read_all(files: Iterable[Path]) -> list[MeasuredRun]:
    """Reads runs, by width and size."""
    return sorted(map(MeasuredRun.read, files), key=lambda run: (run.load.dim, run.load.facts))


def main() -> None:
    runs = read_all(map(Path, sys.argv[1:]))
    if not runs:
        sys.exit("Name files that `colmlm-lab bench size --json` wrote.")
    for title, table in TABLES.items():
        sys.stdout.write(f"## {title}\n{markdown(table(runs))}\n\n")


if __name__ == "__main__":
    main()
