"""Measures the threshold of a keyset: asks questions of its own facts among all of its keys, of which few are held."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from colmlm.kb.keys.calibration import Calibration, calibrate_threshold
from colmlm.kb.keys.keysets import Vectors, asked_facts, valued_keys
from colmlm.kb.keys.records import KeysetHead
from colmlm.kb.store.store import Store

Encode = Callable[[Sequence[str]], Vectors]


def measure_threshold(
    store: Store, keyset: KeysetHead, encode: Encode, size: int, *, false_accept_rate: float | None = None
) -> Calibration:
    """Ask up to `size` questions, spread evenly over the facts, that `encode` makes queries [B, d] of.

    Raises `InvalidValue` where there are none, and where all facts have one value.
    """
    with store.reports() as session:
        asked = asked_facts(session, keyset.keyset_id, size)
    queries_BD = encode([fact.question for fact in asked])
    with store.reports() as session:
        keys = valued_keys(session, keyset.keyset_id, keyset.dim)
        said = [fact.value for fact in asked]
        return calibrate_threshold(queries_BD, said, keys, false_accept_rate=false_accept_rate)
