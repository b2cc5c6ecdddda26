"""The synthetic base that is measured: how many facts, of which width, where; and its keys and queries, as a stream."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from colmlm.cli.output import progress
from colmlm.kb.store.settings import Settings
from colmlm.lab.bench.synthetic import Positions, Vectors, exact_top1_of, key_chunks, queries_among

NUM_QUERIES = 1_000


@dataclass(frozen=True, slots=True)
class SizedBase:
    """A base of so many facts in a directory. Its keys are made again, a chunk at a time, whenever they are needed."""

    directory: Path
    facts: int
    dim: int
    seed: int

    @property
    def settings(self) -> Settings:
        return Settings(home=self.directory / "home", actor="bench")

    @property
    def backup(self) -> Path:
        return self.directory / "size.backup"

    def keys(self, said: str, first: int = 0) -> Iterator[tuple[int, Vectors]]:
        """Gives the keys from the chunk with position `first` on, each chunk with the position of its first key."""
        with progress(said) as advance:
            for start, keys in key_chunks(self.facts, self.dim, seed=self.seed, first=first):
                yield start, keys
                advance(start + len(keys), self.facts)

    def make_queries(self) -> None:
        """Makes queries and finds the exact nearest key of each, in two passes over all keys."""
        number = min(NUM_QUERIES, self.facts // 8)
        queries = queries_among(self.facts, self._keys_at, number, seed=self.seed)
        nearest = exact_top1_of(self.keys("Keys compared with every query"), queries)
        np.save(self.directory / "queries.npy", queries)
        np.save(self.directory / "nearest.npy", nearest)

    def queries(self) -> tuple[Vectors, Positions]:
        """Gives the queries [n, d] with the positions [n] of their nearest keys."""
        return np.load(self.directory / "queries.npy"), np.load(self.directory / "nearest.npy")

    def _keys_at(self, positions: Positions) -> Vectors:
        found = np.empty((len(positions), self.dim), np.float32)
        for start, keys in self.keys("Keys read to make queries of"):
            here = (positions >= start) & (positions < start + len(keys))
            found[here] = keys[positions[here] - start]
        return found
