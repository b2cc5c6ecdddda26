"""Histograms of the scores of keysets as PNG files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from colmlm.kb.switching.gate import ScoreDrift
    from colmlm.kb.switching.measures import Scores

BINS = 40


def score_histograms(drift: ScoreDrift, file: Path) -> None:
    """Draw the threshold and histograms of the scores of questions with right and wrong facts, for each keyset."""
    from matplotlib.figure import Figure  # takes half a second, and no other command needs it

    figure = Figure(figsize=(8, 6), layout="constrained")
    new, active = figure.subplots(2, 1, sharex=True)
    _histogram(new, "checked keyset", drift.genuine, drift.impostor, drift.threshold)
    if drift.active_genuine is not None and drift.active_impostor is not None:
        _histogram(
            active, "active keyset", drift.active_genuine, drift.active_impostor, drift.active_threshold
        )
    else:
        active.set_axis_off()
    (active if drift.active_genuine is not None else new).set_xlabel(
        "exact inner product of question and key"
    )
    figure.savefig(file, format="png", dpi=120)


def _histogram(axes: Axes, title: str, genuine: Scores, impostor: Scores, threshold: float | None) -> None:
    found = [scores[np.isfinite(scores)] for scores in (genuine, impostor)]
    both = np.concatenate(found)
    low, high = (float(both.min()), float(both.max())) if len(both) else (0.0, 1.0)
    edges = np.linspace(low, max(high, low + 0.01), BINS + 1).tolist()
    for scores, label in zip(found, ("a fact of the right value", "the best other fact"), strict=True):
        axes.hist(scores, bins=edges, alpha=0.6, label=label)
    if threshold is not None:
        axes.axvline(threshold, color="black", linestyle="--", label=f"threshold {threshold:.3f}")
    axes.set_title(title)
    axes.set_ylabel("questions")
    axes.legend()
