"""Draws the plots of the results page as PNG files, each only if there are results for it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from colmlm.lab.paper.published import ANSWERS, PERPLEXITY
from colmlm.lab.paper.tables import is_beside, log10, tofu_reports

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Record = Mapping[str, Any]
_MARKERS = "osD^vP*Xh<>"
_EPOCH = re.compile(r"-epoch-(\d+)")  # as `lab.paper.unlearning` names the checkpoint of an epoch
_WAYS = ("auto", "forced", "off", "standard", "rag", "co-lmlm-rag")


def draw(steps: Sequence[Record], folder: Path) -> list[str]:
    """Draws every plot for which there are results, and gives the files' names."""
    from matplotlib.figure import Figure  # the import takes half a second, and no other command needs it

    drawn = []
    for name, (section, plot) in _PLOTS.items():
        records = [one for one in steps if one["section"] == section and one["state"] == "done"]
        figure = Figure(figsize=(9, 5), layout="constrained")
        file = folder / f"{name}.png"
        if records and plot(figure, records):
            figure.savefig(file, format="png", dpi=120, bbox_inches="tight")  # so that the whole legend fits
            drawn.append(file.name)
        else:
            file.unlink(missing_ok=True)
    return drawn


_FAR = -50  # log10 of p


def _tofu(figure: Figure, records: Sequence[Record]) -> bool:
    """Plots utility against the logarithm of forget quality, by forget set.

    A reference, which has no forget quality, is a line at its utility. A line joins the epochs of one run.
    """
    sets: dict[str, dict[str, list[Record]]] = {}
    for label, report in sorted(tofu_reports(records), key=lambda one: _epoch(one[0])):
        forget, _, name = label.partition(", ") if label.startswith("forget") else ("published", "", label)
        sets.setdefault(forget, {}).setdefault(_EPOCH.sub("", name), []).append(report)
    names = list(dict.fromkeys(name for runs in sets.values() for name in runs))
    figure.set_size_inches(max(9, 3.5 * len(sets)), 5)
    for axes, (forget, runs) in zip(
        figure.subplots(1, len(sets), squeeze=False)[0], sets.items(), strict=True
    ):
        for name, reports in runs.items():
            number = names.index(name)
            _trade_off(
                axes, reports, label=name, color=f"C{number % 10}", marker=_MARKERS[number % len(_MARKERS)]
            )
        axes.axhline(log10(0.05), color="black", linestyle="--", linewidth=1, label="p = 0.05")
        if axes.get_ylim()[0] < _FAR:  # a collapsed model would compress all others into a line
            axes.set_yscale("symlog", linthresh=-_FAR / 5)
            axes.yaxis.set_major_formatter("{x:g}")
            axes.set_ylim(top=1)
        axes.set_title(forget)
        axes.set_xlabel("model utility")
        axes.set_ylabel("log10 of forget quality (p)")
    handles = {
        label: handle
        for axes in figure.axes
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4, fontsize="small")
    return bool(sets)


def _epoch(label: str) -> float:
    """Gives the epoch of a run that a label names; the run's end sorts last."""
    found = _EPOCH.search(label)
    return int(found[1]) if found else math.inf


def _trade_off(axes: Axes, reports: Sequence[Record], **look: Any) -> None:
    """Draws one run's points, with the intervals of utility."""
    measured = [report for report in reports if "forget_quality" in report]
    utilities = [report["model_utility"] for report in measured]
    bounds = [report["intervals"]["model_utility"] for report in measured]
    errors = [
        [max(0, utility - low) for utility, (low, _) in zip(utilities, bounds, strict=True)],
        [max(0, high - utility) for utility, (_, high) in zip(utilities, bounds, strict=True)],
    ]
    if measured:
        qualities = [log10(report["forget_quality"]) for report in measured]
        axes.errorbar(utilities, qualities, xerr=errors, capsize=3, linestyle="-", **look)
    for report in reports:
        if "forget_quality" not in report:
            axes.axvline(
                report["model_utility"],
                color=look["color"],
                linestyle=":",
                label=f"{look['label']}: reference",
            )


def _perplexity(figure: Figure, records: Sequence[Record]) -> bool:
    axes, found = figure.subplots(), records[0]["result"]["perplexity"]
    middles = [p["perplexity"] for p in found.values()]
    errors = [
        [max(0, p["perplexity"] - p["low"]) for p in found.values()],
        [max(0, p["high"] - p["perplexity"]) for p in found.values()],
    ]
    names = [name.replace("_", " ") for name in found]
    colors = ["C1" if is_beside(name) else "C0" for name in found]
    axes.barh(names, middles, xerr=errors, color=colors, capsize=3)
    for name, style in (("dynamic", "--"), ("standard", ":")):
        paper = PERPLEXITY[name]
        axes.axvline(paper.value, color="black", linestyle=style, label=f"the paper, {name}: {paper}")
    axes.invert_yaxis()
    axes.set_xlabel("perplexity, with its 95 % interval (ours at 135M; without lookups in orange)")
    figure.legend(loc="outside upper center", ncols=2)
    return True


def _answers(figure: Figure, records: Sequence[Record]) -> bool:
    """Plots bars by question set, one for each way of asking. A cross is the paper's figure."""
    axes = figure.subplots()
    by_label = {one["label"]: one["result"]["exact_match"] for one in records}
    sets = list(dict.fromkeys(label.rpartition(", ")[0] for label in by_label))
    ways = [way for way in _WAYS if any(f"{name}, {way}" in by_label for name in sets)]
    width = 0.8 / max(1, len(ways))
    crosses = []
    for number, way in enumerate(ways):
        here = [
            (i, by_label[f"{name}, {way}"]) for i, name in enumerate(sets) if f"{name}, {way}" in by_label
        ]
        places = [i + number * width for i, _ in here]
        shares = [100 * s["share"] for _, s in here]
        errors = [
            [max(0, 100 * (s["share"] - s["low"])) for _, s in here],
            [max(0, 100 * (s["high"] - s["share"])) for _, s in here],
        ]
        axes.bar(places, shares, width, yerr=errors, capsize=2, label=way)
        figures = [(i + number * width, ANSWERS.get(f"{name}, {way}")) for i, name in enumerate(sets)]
        crosses += [(place, paper.value) for place, paper in figures if paper is not None]
    if crosses:
        at, values = zip(*crosses, strict=True)
        axes.scatter(at, values, color="black", marker="x", zorder=3, label="the paper")
    axes.set_xticks([i + (len(ways) - 1) * width / 2 for i in range(len(sets))], sets)
    axes.set_ylabel("% answered, with its 95 % interval")
    axes.set_xlabel("ours at 135M; the paper's at 135M, with passages at 360M and of other questions")
    figure.legend(loc="outside upper center", ncols=7)
    return bool(ways)


_ASIDE = 0.003  # shift in radius, since equal intervals would hide each other


def _deletion(figure: Figure, records: Sequence[Record]) -> bool:
    """Plots what forgotten facts' questions find, and which other facts are lost, over the radius of equivalents."""
    runs = records[0]["result"]["runs"]
    checks, lost = figure.subplots(1, 2)
    for number, policy in enumerate(dict.fromkeys(run["policy"] for run in runs)):
        own = sorted((run for run in runs if run["policy"] == policy), key=lambda run: run["radius"])
        radii, color = [run["radius"] for run in own], f"C{number}"
        for outcome, style in (("leaks", "-"), ("abstained", ":")):
            rates = [100 * run["probe_rates"][outcome] for run in own]
            checks.plot(
                radii, rates, style, marker=".", color=color, label=f"{policy}: {outcome.replace('_', ' ')}"
            )
        for axes, name, marker, said in (
            (checks, "wrong_neighbour", "^", "now another value"),
            (lost, "others_lost", "s", "others lost"),
            (lost, "neighbours_lost", "D", "neighbours lost"),
        ):
            aside = _ASIDE * (2 * number + (name == "neighbours_lost"))
            measured = [(run["radius"] + aside, run[name]) for run in own if run.get(name)]
            _with_errors(axes, measured, color=color, marker=marker, label=f"{policy}: {said}")
    for axes, title in (
        (checks, "% of the checks, or of questions that got it before"),
        (lost, "% of other facts found before"),
    ):
        axes.set_title(title)
        axes.set_xlabel("radius: least cosine of what is forgotten too")
        axes.set_ylim(0, max(1.0, axes.get_ylim()[1]))
    figure.legend(loc="outside lower center", ncols=4, fontsize="small")
    return bool(runs)


def _growth(figure: Figure, records: Sequence[Record]) -> bool:
    """Plots answers and lookups over the number of facts."""
    rows = records[0]["result"]["sizes"]
    facts = [row["facts"] for row in rows]
    answered, lookups = figure.subplots(1, 2)
    for name, marker in (("exact_match", "s"), ("right_value", "D")):
        _with_errors(
            answered, [(row["facts"], row[name]) for row in rows], marker=marker, label=name.replace("_", " ")
        )
    answered.set_title("% of questions")
    answered.set_ylim(0, 100)
    for name in ("lookup_p50_ms", "lookup_p99_ms", "search_p50_ms"):
        lookups.plot(
            facts, [row[name] for row in rows], marker=".", label=name.removesuffix("_ms").replace("_", " ")
        )
    lookups.set_title("milliseconds")
    lookups.set_yscale("log")
    for axes in (answered, lookups):
        axes.set_xscale("log")
        axes.set_xlabel("facts")
    figure.legend(loc="outside lower center", ncols=5, fontsize="small")
    return True


def _with_errors(axes: Axes, measured: Sequence[tuple[float, Record]], **look: Any) -> None:
    """Draws a line through shares, in per cent, with their intervals, each at its place on the axis."""
    errors = [
        [max(0, 100 * (s["share"] - s["low"])) for _, s in measured],
        [max(0, 100 * (s["high"] - s["share"])) for _, s in measured],
    ]
    places, shares = [place for place, _ in measured], [100 * s["share"] for _, s in measured]
    axes.errorbar(places, shares, yerr=errors, linestyle="-.", capsize=3, alpha=0.7, **look)


_PLOTS: dict[str, tuple[str, Callable[[Figure, Sequence[Record]], bool]]] = {
    "tofu": ("tofu", _tofu),
    "perplexity": ("perplexity", _perplexity),
    "answers": ("answers", _answers),
    "deletion": ("deletion", _deletion),
    "growth": ("growth", _growth),
}
