"""Specs: the Faiss factory strings that an index may have, and which of them suits how many keys of which width.

Up to a size the index is exact. Above, each inverted list holds codes: either a bit for each number of a key behind a
random rotation (RaBitQ), or a byte for each four numbers behind a trained one (OPQ, PQ), which is the paper's form.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

FLAT_SPEC = "IDMap2,Flat"
TORCH_SPEC = "torch"  # exact search by torch, on a device or in main memory: no index of Faiss

FLAT_UP_TO = 50_000  # keys up to which search is exact, without training, at some milliseconds a query

BITS_FROM = 256  # width from which a bit for each number mostly tells keys apart; at 128 it does not


# These are the specs known to remove keys correctly. Left out on purpose are IDMap over IVF (wrong ids), FastScan
# `PQ..fs` and `RaBitQfs` (throws with a Hashtable, or answers wrongly for keys that were removed and added again), and
# HNSW, NSG and RFlat as storage (no removal).
_SPEC = re.compile(
    r"IDMap2,Flat|(?P<turned>OPQ\d+(_\d+)?,|RR\d+,)?IVF(?P<lists>\d+)(_HNSW\d+)?,"
    r"(Flat|RaBitQ|(?P<pq>PQ\d+(x(?P<bits>\d+))?))"
)


@dataclass(frozen=True, slots=True)
class Spec:
    """The parts of a spec: its number of inverted lists, whether it has OPQ and PQ, and the centroids of its codes."""

    lists: int
    is_opq: bool
    is_pq: bool
    centroids: int

    def train_min(self, dim: int) -> int:
        """Give the least number of keys of this width to train on: one per centroid, and for OPQ one per dimension.

        With fewer keys than dimensions Faiss 1.15 writes beyond the matrix of the rotation.
        """
        return max(self.lists, self.centroids, dim if self.is_opq else 0)


def parse_spec(spec: str) -> Spec | None:
    """Give the parts of a spec; None for one with which Faiss is not known to remove keys correctly."""
    if (match := _SPEC.fullmatch(spec)) is None:
        return None
    is_opq, is_pq = (match["turned"] or "").startswith("OPQ"), match["pq"] is not None
    centroids = max(2 ** int(match["bits"] or 8) if is_pq else 0, 256 if is_opq else 0)
    return Spec(int(match["lists"] or 0), is_opq, is_pq, centroids)


def default_spec(num_keys: int, dim: int) -> str:
    """Give the spec that mostly suits this number and width of keys. `fitting_spec` measures whether it does."""
    if num_keys <= FLAT_UP_TO or dim < 4:
        return FLAT_SPEC
    return bits_spec(num_keys, dim) if dim >= BITS_FROM else paper_spec(num_keys, dim)


def bits_spec(num_keys: int, dim: int) -> str:
    """Give the spec whose codes (RaBitQ) have one bit for each number of a key."""
    return f"RR{dim},IVF{default_nlist(num_keys)},RaBitQ"


def bits_code_bytes(dim: int) -> int:
    """Give the bytes of a code with one bit for each number: the bits, and two factors of the estimate."""
    return (dim + 7) // 8 + 8


def paper_spec(num_keys: int, dim: int) -> str:
    """Give the paper's spec, whose codes (PQ) have one byte for each four numbers of a key."""
    # d' is the largest multiple of 4 up to d, since each of the d/4 codes covers 4 numbers.
    return coded_spec(num_keys, dim, dim // 4)


def coded_spec(num_keys: int, dim: int, code_bytes: int) -> str:
    """Give the spec with PQ codes of so many bytes. From a hundred million keys on it has the paper's 65,536 lists."""
    lists = MOST_LISTS if num_keys >= PAPER_KEYS else default_nlist(num_keys)
    return f"OPQ{code_bytes}_{dim // code_bytes * code_bytes},IVF{lists},PQ{code_bytes}"


MOST_LISTS, PAPER_KEYS = 65_536, 100_000_000


def default_nlist(num_keys: int) -> int:
    """Give the number of inverted lists for an index of `num_keys` keys."""
    # The power of two at or below 4 sqrt(n) leaves each list the 39 training keys that k-means wants; 65,536
    # centroids already cost 9 ms a query at d = 960.
    return min(MOST_LISTS, 1 << int(math.log2(4 * math.sqrt(num_keys))))


# What follows the spec of a retired keyset whose collection is gone: it names none any more.
DROPPED = " (dropped)"

_ELSEWHERE = re.compile(r"milvus:(?P<collection>[A-Za-z_][A-Za-z0-9_]{0,254})")


def collection_of(spec: str) -> str | None:
    """Give the Milvus collection that a keyset with this spec names; None where it names none."""
    match = _ELSEWHERE.fullmatch(spec)
    return match and match["collection"]
