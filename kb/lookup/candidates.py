"""Candidates: the seam between lookups and what searches keys, be it in this process or on a server elsewhere.

Who implements it only proposes keys near a query. Which of them are of live facts, and at what exact scores, the
database decides afterwards. So it may lag and propose too much; what it leaves out is lost for an answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import numpy.typing as npt

from colmlm.kb.keys.keysets import Ids, Vectors
from colmlm.kb.keys.records import IndexFit


class CandidateKeys(Protocol):
    """The keys of one keyset by id, with every change up to `applied_seq` applied, and perhaps later ones."""

    applied_seq: int

    @property
    def is_lost(self) -> bool:
        """Says that it answers nothing more and has to be opened anew."""

    @property
    def ids(self) -> Ids:
        """Gives the ids that it holds, ascending and each once."""

    @property
    def fit(self) -> IndexFit:
        """Tells how it was fitted to its keys."""

    @property
    def is_estimating(self) -> bool:
        """Says whether it ranks keys by estimates of their scores."""

    @property
    def num_twice(self) -> int:
        """Counts the keys that it holds more than once."""

    def __len__(self) -> int: ...

    def search(self, queries_BD: npt.NDArray[Any], k: int) -> tuple[Vectors, Ids]:
        """Finds the k keys of largest inner product for each query: scores [B, k] and ids [B, k], best first.

        Where it holds fewer the rest has id -1 and score -inf. Threads may search while one puts, removes or advances.
        """

    def over_fetch(self, k: int) -> int:
        """Gives how many keys to ask for so that the k best are among them after exact scoring and a few deletions."""

    def missing(self, ids: Iterable[int]) -> Ids:
        """Gives those of these ids that a search may not find, ascending and each once."""

    def put(self, ids: Ids, keys: Vectors) -> None:
        """Adds keys [n, d] under ids [n] that are `missing`."""

    def remove(self, ids: Iterable[int]) -> None:
        """Makes it hold none of these ids; those that it does not hold are ignored."""

    def advance(self, seq: int) -> None:
        """Notes that everything up to change `seq` was put and removed."""

    def take(self, fit: IndexFit | None) -> None:
        """Searches as was found best for one like this, perhaps by another process."""

    def has_outgrown(self, index_spec: str) -> bool:
        """Says whether another kind is due for so many keys of a keyset with this spec."""
