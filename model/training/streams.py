"""The order in which a corpus is read: seeded, endless, and the same in every run and on any hardware."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colmlm.model.training.corpora import Corpus, DataError

Compose = Callable[[Sequence[NDArray[np.int64]]], list[NDArray[np.int64]]]


@dataclass(frozen=True, slots=True)
class DocumentPiece:
    """A document of a corpus, or a piece of one that is longer than a row: its tokens `start` to `end`."""

    shard: int
    document: int
    start: int
    end: int


class Pieces:
    """The documents of a corpus by number; those longer than `max_length` are cut into pieces of equal length.

    It keeps 16 bytes per document; all other data stay in the corpus.
    """

    def __init__(self, corpus: Corpus, max_length: int) -> None:
        sizes = [len(shard) for shard in corpus.shards]
        self._shards = np.concatenate([[0], np.cumsum(sizes)])
        self._lengths = np.concatenate([np.diff(shard.starts) for shard in corpus.shards])
        self._starts = np.concatenate([[0], np.cumsum(-(-self._lengths // max_length))])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def place(self, piece: int) -> DocumentPiece:
        document = int(np.searchsorted(self._starts, piece, side="right")) - 1
        first, following = (int(n) for n in self._starts[document : document + 2])
        number, count, length = piece - first, following - first, int(self._lengths[document])
        shard = int(np.searchsorted(self._shards, document, side="right")) - 1
        start, end = number * length // count, (number + 1) * length // count
        return DocumentPiece(shard, document - int(self._shards[shard]), start, end)

    def lengths(self) -> NDArray[np.int64]:
        """Gives the number of tokens of every piece."""
        counts = np.diff(self._starts)
        whole = np.repeat(self._lengths, counts)
        number = np.arange(len(self)) - np.repeat(self._starts[:-1], counts)
        count = np.repeat(counts, counts)
        return (number + 1) * whole // count - number * whole // count


@dataclass(frozen=True, kw_only=True, slots=True)
class Quota:
    """The amount that a step takes from a stream: a number of documents, or documents of that many tokens."""

    documents: int | None = None
    tokens: int | None = None


class Stream:
    """An endless order over a corpus's pieces, step by step.

    With `compose` the steps of a window of `window` steps exchange their documents when the first of them is asked for:
    `compose` gets the window's steps and returns the exchanged ones, which `state` then holds.
    """

    def __init__(
        self,
        pieces: Pieces,
        quota: Quota,
        *,
        block: int,
        tag: str,
        compose: Compose | None = None,
        window: int = 1,
    ) -> None:
        self.pieces, self.quota = pieces, quota
        self._block, self._tag = block, tag
        self._compose, self._window = compose, window
        self._epoch: tuple[int, NDArray[np.int64], NDArray[np.int64]] | None = None
        self._composed: tuple[int, list[NDArray[np.int64]]] | None = None
        if quota.tokens is None:
            assert quota.documents is not None
            self.per_epoch = max(1, len(pieces) // quota.documents)
        else:
            self.per_epoch = min(len(pieces), -(-int(pieces.lengths().sum()) // quota.tokens))

    def numbers(self, step: int) -> NDArray[np.int64]:
        """Gives the pieces of a step, by number."""
        if self._compose is None:
            return self._drawn(step)
        epoch, within = divmod(step, self.per_epoch)
        first = epoch * self.per_epoch + within // self._window * self._window
        if self._composed is None or self._composed[0] != first:
            last = min(first + self._window, (epoch + 1) * self.per_epoch)
            self._composed = (first, self._compose([self._drawn(n) for n in range(first, last)]))
        return self._composed[1][step - first]

    def state(self) -> dict[str, Any]:
        """Gives the exchanged steps, which a resumed run cannot compute again, since the model has changed since."""
        if self._composed is None:
            return {}
        return {"first": self._composed[0], "steps": [numbers.tolist() for numbers in self._composed[1]]}

    def restore(self, state: dict[str, Any]) -> None:
        if state:
            steps = [np.array(numbers, dtype=np.int64) for numbers in state["steps"]]
            self._composed = (state["first"], steps)

    def _drawn(self, step: int) -> NDArray[np.int64]:
        epoch, within = divmod(step, self.per_epoch)
        if self._epoch is None or self._epoch[0] != epoch:
            order = epoch_order(len(self.pieces), self._block, f"{self._tag}/{epoch}")
            self._epoch = (epoch, order, self._edges(order))
        _, order, edges = self._epoch
        return order[edges[within] : edges[within + 1]]

    def _edges(self, order: NDArray[np.int64]) -> NDArray[np.int64]:
        """Gives the places in an epoch's order where its steps begin."""
        if self.quota.documents is not None:
            return np.minimum(np.arange(self.per_epoch + 1) * self.quota.documents, len(order))
        reached = np.cumsum(self.pieces.lengths()[order])
        goals = np.arange(self.per_epoch + 1) * (int(reached[-1]) / self.per_epoch)
        edges = np.searchsorted(reached, goals, side="left")
        edges[0], edges[-1] = 0, len(order)
        # Every step has at least one piece, however long pieces are.
        ahead = np.arange(self.per_epoch + 1)
        return np.minimum(np.maximum(edges, ahead), len(order) - ahead[::-1])


def epoch_order(count: int, block: int, tag: str) -> NDArray[np.int64]:
    """Orders the numbers below `count` in shuffled blocks of neighbours, cut at another place for every tag.

    The shuffle sorts raw words of a PCG64, whose stream numpy keeps the same in all its versions.
    """
    seed = int.from_bytes(hashlib.sha256(tag.encode()).digest()[:16])
    words = np.random.PCG64(seed)
    first = int(words.random_raw()) % block or block
    cuts = np.concatenate([[0], np.arange(first, count, block), [count]])
    lengths = np.diff(cuts)
    shuffled = np.argsort(words.random_raw(len(lengths)), kind="stable")
    starts, lengths = cuts[:-1][shuffled], lengths[shuffled]
    before = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    return np.arange(count) + np.repeat(starts - before, lengths)


def apportion(count: int, weights: Sequence[float]) -> list[int]:
    """Divides `count` in proportion to the weights, rounding the largest remainders up.

    Raises DataError if a positive weight would get nothing.
    """
    exact = [count * weight / sum(weights) for weight in weights]
    shares = [int(share) for share in exact]
    by_remainder = sorted(range(len(exact)), key=lambda i: shares[i] - exact[i])
    for i in by_remainder[: count - sum(shares)]:
        shares[i] += 1
    if any(weight > 0 and not share for weight, share in zip(weights, shares, strict=True)):
        raise DataError(f"a batch of {count} documents is too small for the weights {list(weights)}")
    return shares
