"""Perplexities over many documents, of the sums that `model.evaluate.perplexity` makes of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colmlm.model.evaluate.intervals import bootstrap
from colmlm.model.evaluate.perplexity import TextTally

Sums = tuple[NDArray[np.float64], NDArray[np.float64]]  # for each document: losses in nats, and tokens


@dataclass(slots=True)
class DocumentSums:
    """The sums of each document: for the model with lookups in three readings and in each other index, and for each
    baseline in two. Without `gated` that reading is left out.
    """

    static: list[TextTally]
    nearest: list[TextTally]
    gated: list[TextTally]
    beside: dict[str, tuple[list[TextTally], list[TextTally]]]
    indexes: dict[str, list[TextTally]]

    def sums(self) -> dict[str, Sums]:
        """Gives losses and tokens of every reported figure, by its name."""
        found = {
            "static": _outside(self.static),
            "static_without_markup": _without_markup(self.static),
            "normalised": _with_openings(self.static, by_text=True),
            "dynamic": _outside(self.nearest),
            "dynamic_without_markup": _without_markup(self.nearest),
            "dynamic_normalised": _with_openings(self.nearest),
        }
        if self.gated:
            found["dynamic_gated"] = _outside(self.gated)
            found["dynamic_gated_normalised"] = _with_openings(self.gated)
        for name, tallies in self.indexes.items():
            found[f"dynamic, {name}"] = _outside(tallies)
        for name, (every, same) in self.beside.items():
            found[f"{name}, all tokens"] = _outside(every)
            found[f"{name}, same tokens"] = _outside(same)
        return found


def _outside(tallies: Sequence[TextTally]) -> Sums:
    return np.array([t.loss for t in tallies]), np.array([t.tokens for t in tallies], dtype=np.float64)


def _without_markup(tallies: Sequence[TextTally]) -> Sums:
    losses_N, tokens_N = _outside(tallies)
    return losses_N - np.array([t.markup_loss for t in tallies]), tokens_N


def openings(tallies: Sequence[TextTally]) -> dict[str, float]:
    """Gives the probability of ``<FACT>`` where a span follows, and that of markup elsewhere, as geometric means."""
    spans, tokens = sum(t.lookups for t in tallies), sum(t.tokens for t in tallies)
    opening, markup = sum(t.opening_loss for t in tallies), sum(t.markup_loss for t in tallies)
    return {"at_spans": exp(-opening / max(spans, 1)), "elsewhere": 1 - exp(-markup / max(tokens, 1))}


def _with_openings(tallies: Sequence[TextTally], *, by_text: bool = False) -> Sums:
    losses_N = np.array([t.loss + t.opening_loss for t in tallies])
    tokens_N = np.array([t.text_tokens if by_text else t.tokens for t in tallies], dtype=np.float64)
    return losses_N, tokens_N


def perplexities(sums: dict[str, Sums], documents: int) -> dict[str, dict[str, Any]]:
    """Gives perplexities over all tokens together, so that long documents weigh more, with intervals over documents."""

    def measure(draw: Callable[[int], NDArray[np.int64]]) -> dict[str, float]:
        rows = draw(documents)
        return {name: _perplexity(losses[rows], tokens[rows]) for name, (losses, tokens) in sums.items()}

    intervals = bootstrap(measure)
    return {
        name: {
            "perplexity": _perplexity(losses, tokens),
            "low": intervals[name][0],
            "high": intervals[name][1],
            "tokens": int(tokens.sum()),
        }
        for name, (losses, tokens) in sums.items()
    }


def _perplexity(losses: NDArray[np.float64], tokens: NDArray[np.float64]) -> float:
    return float(np.exp(losses.sum() / tokens.sum()))
