"""The plots of the results page, as PNG files; each only where there is something to draw."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli.paper.published import ANSWERS, PERPLEXITY
from cli.paper.tables import log10, tofu_reports

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Record = Mapping[str, Any]
_MARKERS = "osD^vP*Xh<>"
_WAYS = ("auto", "forced", "off", "standard", "rag", "co-lmlm-rag")


def draw(steps: Sequence[Record], folder: Path) -> list[str]:
    """Draw every plot that the results allow, and give the files' names."""
    from matplotlib.figure import Figure  # half a second, and no other command needs it

    drawn = []
    for name, (section, plot) in _PLOTS.items():
        records = [one for one in steps if one["section"] == section and one["state"] == "done"]
        figure = Figure(figsize=(9, 5), layout="constrained")
        file = folder / f"{name}.png"
        if records and plot(figure.subplots(), records):
            figure.savefig(file, format="png", dpi=120)
            drawn.append(file.name)
        else:
            file.unlink(missing_ok=True)
    return drawn


def _tofu(axes: Axes, records: Sequence[Record]) -> bool:
    """Utility against the logarithm of forget quality. What has none, a reference, is a line at its utility."""
    reports = tofu_reports(records)
    for number, (label, report) in enumerate(reports):
        utility, (low, high) = report["model_utility"], report["intervals"]["model_utility"]
        color = f"C{number % 10}"
        if "forget_quality" in report:
            errors = [[max(0, utility - low)], [max(0, high - utility)]]
            axes.errorbar(
                [utility], [log10(report["forget_quality"])], xerr=errors, color=color, capsize=3,
                marker=_MARKERS[number % len(_MARKERS)], linestyle="", label=label,
            )  # fmt: skip
        else:
            axes.axvline(utility, color=color, linestyle=":", label=f"{label}: reference")
    axes.axhline(log10(0.05), color="black", linestyle="--", linewidth=1, label="p = 0.05")
    axes.set_xlabel("model utility, with its 95 % interval")
    axes.set_ylabel("log10 of forget quality (p)")
    _legend_beside(axes)
    return bool(reports)


def _perplexity(axes: Axes, records: Sequence[Record]) -> bool:
    found = records[0]["result"]["perplexity"]
    middles = [p["perplexity"] for p in found.values()]
    errors = [
        [max(0, p["perplexity"] - p["low"]) for p in found.values()],
        [max(0, p["high"] - p["perplexity"]) for p in found.values()],
    ]
    names = [name.replace("_", " ") for name in found]
    colors = ["C1" if ", " in name else "C0" for name in found]
    axes.barh(names, middles, xerr=errors, color=colors, capsize=3)
    for name, style in (("dynamic", "--"), ("standard", ":")):
        figure = PERPLEXITY[name]
        axes.axvline(figure.value, color="black", linestyle=style, label=f"the paper, {name}: {figure}")
    axes.set_xscale("log")
    axes.invert_yaxis()
    axes.set_xlabel("perplexity, with its 95 % interval (ours at 135M; without lookups in orange)")
    axes.legend()
    return True


def _answers(axes: Axes, records: Sequence[Record]) -> bool:
    """Bars by question set, one a way of asking; a cross is the paper's figure."""
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
        crosses += [(place, figure.value) for place, figure in figures if figure is not None]
    if crosses:
        at, values = zip(*crosses, strict=True)
        axes.scatter(at, values, color="black", marker="x", zorder=3, label="the paper")
    axes.set_xticks([i + (len(ways) - 1) * width / 2 for i in range(len(sets))], sets)
    axes.set_ylabel("% answered, with its 95 % interval")
    axes.legend()
    return bool(ways)


def _deletion(axes: Axes, records: Sequence[Record]) -> bool:
    """What is found where facts were forgotten, and what is lost beside them, over how near equivalents lie."""
    runs = records[0]["result"]["runs"]
    for number, policy in enumerate(dict.fromkeys(run["policy"] for run in runs)):
        own = sorted((run for run in runs if run["policy"] == policy), key=lambda run: run["radius"])
        radii = [run["radius"] for run in own]
        color = f"C{number}"
        for outcome, style in (("leaks", "-"), ("wrong_neighbours", "--"), ("abstained", ":")):
            rates = [100 * run["probe_rates"][outcome] for run in own]
            axes.plot(
                radii, rates, style, marker=".", color=color, label=f"{policy}: {outcome.replace('_', ' ')}"
            )
        lost = [(run["radius"], run["others_lost"]) for run in own if run["others_lost"]]
        axes.errorbar(
            [radius for radius, _ in lost],
            [100 * s["share"] for _, s in lost],
            yerr=[
                [max(0, 100 * (s["share"] - s["low"])) for _, s in lost],
                [max(0, 100 * (s["high"] - s["share"])) for _, s in lost],
            ],
            fmt="-.", marker="s", capsize=3, color=color, alpha=0.6, label=f"{policy}: other facts lost",
        )  # fmt: skip
    axes.set_xlabel("radius: least cosine of what is forgotten too")
    axes.set_ylabel("% of probes; of other facts, with its 95 % interval")
    _legend_beside(axes)
    return bool(runs)


def _legend_beside(axes: Axes) -> None:
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize="small")


_PLOTS: dict[str, tuple[str, Callable[[Axes, Sequence[Record]], bool]]] = {
    "tofu": ("tofu", _tofu),
    "perplexity": ("perplexity", _perplexity),
    "answers": ("answers", _answers),
    "deletion": ("deletion", _deletion),
}
