"""Measures what it costs to take one key out of an index and to put it back, at several sizes of one index.

The lists and the width stay the same, so that only the number of keys changes. What choosing the list of a key costs
grows with both: it is a part of every search as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated

import numpy as np
import typer

from colmlm.cli.options import AsJson, examples
from colmlm.cli.output import note, print_json, print_table
from colmlm.kb.lookup.index import KeyIndex
from colmlm.lab.bench.durations import milliseconds, seconds_of
from colmlm.lab.bench.machine import machine
from colmlm.lab.bench.synthetic import CHUNK, synthetic_keys

EDITS_EXAMPLES = examples(
    "colmlm bench edits",
    "colmlm bench edits --keys 100000 --keys 1000000 --keys 8000000 --json",
)
LISTS = 1024
NUM_EDITS, WARM_UP = 1_000, 50


@dataclass(frozen=True, slots=True)
class EditFigures:
    """What one edit costs in an index of `keys` keys, in milliseconds."""

    keys: int
    remove_p50_ms: float
    remove_p99_ms: float
    add_p50_ms: float
    add_p99_ms: float


def edits(
    keys: Annotated[list[int], typer.Option("--keys", min=10_000, help="Sizes of the index, ascending.")] = [  # noqa: B006
        100_000,
        1_000_000,
        8_000_000,
    ],
    dim: Annotated[int, typer.Option("--dim", min=8, help="Width of a key.")] = 64,
    as_json: AsJson = False,
) -> None:
    """Measure what adding and removing one key costs in an index of several sizes."""
    figures = measure(sorted(keys), dim)
    if as_json:
        print_json(
            {"figures": [asdict(one) for one in figures], "dim": dim, "lists": LISTS, "machine": machine()}
        )
        return
    rows = [
        (
            f"{one.keys:,}",
            *(f"{ms:.4f}" for ms in (one.remove_p50_ms, one.remove_p99_ms, one.add_p50_ms, one.add_p99_ms)),
        )
        for one in figures
    ]
    print_table(("keys", "remove p50 ms", "p99", "add p50 ms", "p99"), rows)


def measure(sizes: Sequence[int], dim: int) -> list[EditFigures]:
    """Fills one index to each of these sizes in turn, and edits it there."""
    vectors = synthetic_keys(CHUNK, dim, seed=0)
    index = KeyIndex(dim, f"RR{dim},IVF{LISTS},RaBitQ")
    index.train(vectors)
    figures = []
    for size in sizes:
        note(f"filling the index to {size:,} keys")
        while (held := len(index)) < size:
            ids = np.arange(held, min(held + CHUNK, size))
            index.add(ids, vectors[: len(ids)])
        figures.append(_edited(index, vectors))
    return figures


def _edited(index: KeyIndex, vectors: np.ndarray) -> EditFigures:
    removing, adding = [], []
    for one in np.random.default_rng(0).choice(len(index), NUM_EDITS, replace=False).tolist():
        key = vectors[one % CHUNK][None]
        removing.append(seconds_of(lambda one=one: index.remove([one])))  # type: ignore[misc]
        adding.append(seconds_of(lambda one=one, key=key: index.add([one], key)))  # type: ignore[misc]
    return EditFigures(
        len(index),
        *(milliseconds(times[WARM_UP:], rank) for times in (removing, adding) for rank in (50, 99)),
    )
