"""The order in which an annotator is trained on its examples: seeded, endless, and with little padding."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

POOL = 16  # the number of steps whose examples are sorted by length together


class LengthBatches:
    """Batches of examples of similar length; batch n is the same in every run.

    Each epoch is shuffled, then cut into pools of a few steps each. Within a pool examples are sorted by length, so
    that a step needs little padding; then the steps of the epoch are shuffled again. Examples that do not fill the last
    batch are left out of this epoch.
    """

    def __init__(self, lengths: Sequence[int], batch: int, seed: int) -> None:
        if not lengths:
            raise ValueError("no examples to train on: the documents have no facts that this annotator needs")
        self.lengths = lengths
        self.batch = min(batch, len(lengths))
        self.seed = seed
        self.per_epoch = len(lengths) // self.batch

    def starting_at(self, step: int) -> Iterator[list[int]]:
        """Yields the batches from step number `step` on, each a list of indices of examples."""
        while True:
            epoch, within = divmod(step, self.per_epoch)
            yield from self._epoch(epoch)[within:]
            step = (epoch + 1) * self.per_epoch

    def _epoch(self, epoch: int) -> list[list[int]]:
        rng = random.Random(f"{self.seed}/{epoch}")
        order = list(range(len(self.lengths)))
        rng.shuffle(order)
        order = order[: self.per_epoch * self.batch]
        size = POOL * self.batch
        pools = (
            sorted(order[at : at + size], key=lambda i: -self.lengths[i]) for at in range(0, len(order), size)
        )
        batches = [pool[at : at + self.batch] for pool in pools for at in range(0, len(pool), self.batch)]
        rng.shuffle(batches)
        return batches
