"""Draws right against wrong answers over the threshold."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


def draw_curves(ways: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """Writes a PNG with a curve for each way of answering, and a point where its threshold is.

    `ways` holds reports of `answer_shares.report`. Wrong is what is neither right nor held by a gold answer.
    """
    from matplotlib.figure import Figure  # the import takes half a second, and no other command needs it

    figure = Figure(figsize=(8, 6), layout="constrained")
    axes = figure.subplots()
    for number, (name, found) in enumerate(ways.items()):
        color = f"C{number}"
        curve = found["curve"][::-1]  # the highest threshold first
        wrong = [0.0, *(one["wrong"] + one["made_up"] for one in curve)]
        axes.plot(
            wrong,
            [0.0, *(one["right"] for one in curve)],
            color=color,
            label=f"{name} ({found['questions']})",
        )
        axes.plot(found["wrong"] + found["made_up"], found["right"], "o", color=color)
    axes.axvline(0.05, color="black", linestyle=":", linewidth=1)
    axes.set_xlabel("wrong or made up, share of the questions")
    axes.set_ylabel("right, share of the questions")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.legend(title="a point: at its threshold", loc="upper right")
    figure.savefig(path, format="png", dpi=120)
