"""Lookups in one keyset, active or not, so that several checkpoints can be measured side by side on one base."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from colmlm.kb.lookup.records import Lookup
from colmlm.kb.lookup.searcher import Searcher


@dataclass(frozen=True, slots=True)
class KeysetLookup:
    """Answers a decoder's lookups in place of a knowledge base, where its checkpoint's keyset is not the active one."""

    searcher: Searcher

    @classmethod
    def of(cls, active: Searcher, keyset_id: int) -> Self:
        """Makes lookups in this keyset, with an index of their own that is opened at the first lookup."""
        return cls(Searcher(active.reader, active.sessions, active.directory, active.wait_seconds, keyset_id))

    def find(
        self,
        queries_BD: npt.NDArray[Any],
        *,
        checkpoint_id: str,
        k: int = 1,
        threshold: float | None = None,
        min_seq: int | None = None,
    ) -> list[Lookup]:
        """Finds facts as `Lookups.find` does, in this keyset.

        Raises `KeysetMismatch` where its keys are of another checkpoint.

        Raises `KeysetNotFound`, and `KeysetNotReady` where it is building or retired.
        """
        return self.searcher.lookup(np.asarray(queries_BD), checkpoint_id, k, threshold, min_seq)
