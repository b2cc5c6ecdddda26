"""Plots the benchmarks' results as PNG files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from colmlm.lab.bench.compare import PeerResult

_BLUE, _GREY, _RED = "#2b6cb0", "#a0aec0", "#c05621"


@dataclass(frozen=True, slots=True)
class System:
    """The figures of one system in the plots, a peer or this program."""

    name: str
    lookup_p50_ms: float
    lookup_p99_ms: float
    facts_per_second: float
    recall_at_1: float

    @classmethod
    def of(cls, peer: PeerResult) -> System:
        return cls(
            f"{peer.name} {peer.version}",
            peer.lookup_ms.p50,
            peer.lookup_ms.p99,
            peer.facts_per_second,
            peer.recall_at_1,
        )


def plot_systems(systems: Sequence[System], path: Path, *, title: str) -> None:
    """Plots bars of lookup latency and of ingest by system, each with the recall it was measured at."""
    figure = Figure(figsize=(11, 1.6 + 0.55 * len(systems)), layout="constrained")
    figure.suptitle(title)
    latency, ingest = figure.subplots(1, 2, sharey=True)
    names = [f"{system.name}\nrecall@1 {system.recall_at_1:.3f}" for system in systems]
    rows = range(len(systems))
    for offset, label, color, values in (
        (-0.2, "p50", _BLUE, [system.lookup_p50_ms for system in systems]),
        (0.2, "p99", _GREY, [system.lookup_p99_ms for system in systems]),
    ):
        bars = latency.barh([row + offset for row in rows], values, 0.38, label=label, color=color)
        latency.bar_label(bars, fmt="%.2f", padding=3, fontsize=8)
    latency.set_yticks(rows, names)
    latency.invert_yaxis()
    latency.legend(loc="best")
    bars = ingest.barh(rows, [system.facts_per_second for system in systems], 0.6, color=_BLUE)
    ingest.bar_label(bars, fmt="{:,.0f}", padding=3, fontsize=8)
    _name(latency, "one lookup, key to text (ms; shorter is better)")
    _name(ingest, "facts a second, index build included (longer is better)")
    _save(figure, path)


def plot_latencies(series: Mapping[str, Mapping[float, float]], path: Path, *, title: str) -> None:
    """Plots latency by percentile, one line for each label of `series`: milliseconds by percentile (0 to 100).

    Percentiles are placed by how rare the slower calls are, so that p99 and p99.9 are far apart.
    """
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    figure.suptitle(title)
    axes = figure.subplots()
    ticks = sorted({percentile for line in series.values() for percentile in line if percentile < 100})
    for (label, line), color in zip(series.items(), (_BLUE, _GREY, _RED, "#2f855a", "#6b46c1"), strict=False):
        points = sorted((p, ms) for p, ms in line.items() if p < 100)
        axes.plot([_rarity(p) for p, _ in points], [ms for _, ms in points], "o-", label=label, color=color)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks([_rarity(p) for p in ticks], [f"p{p:g}" for p in ticks])
    axes.minorticks_off()
    # Figures within one decade would get no tick at a power of ten.
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_ylabel("milliseconds")
    axes.grid(axis="y", alpha=0.3)
    axes.legend(loc="best")
    _save(figure, path)


def _rarity(percentile: float) -> float:
    """Gives n where one call in n is slower."""
    return 100 / (100 - percentile)


def _name(axes: Axes, label: str) -> None:
    axes.set_xscale("log")
    axes.margins(x=0.18)
    axes.set_xlabel(label)
    axes.spines[["top", "right"]].set_visible(False)


def _save(figure: Figure, path: Path) -> None:
    """Saves a figure made without pyplot, so that no display is needed and no global state is left."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png")
