"""Other stores behind one protocol: each holds keys with texts, finds the text by key, and deletes for good."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

THREADS = 2  # what each store may use, where it lets one say

Keys = npt.NDArray[np.float32]


class Found(NamedTuple):
    """The nearest stored fact."""

    fact_id: int
    text: str
    source: str


class Peer(Protocol):
    """A store under test. One thread uses it; every call returns when its work is done."""

    threads: str  # how many threads it works with, in words
    durability: str  # when an acknowledged write survives what, in words
    efforts: Sequence[int]  # what `set_search` takes, least effort first

    def version(self) -> str:
        """What answers, with its version; once it is open."""

    def open(self, directory: Path, dim: int) -> None:
        """Make the store in `directory`, or open the one that is there."""

    def ingest(
        self, ids: npt.NDArray[np.int64], keys: Keys, texts: Sequence[str], sources: Sequence[str]
    ) -> None:
        """Store a batch durably."""

    def build(self) -> None:
        """Build the index, where that is a step of its own; also what optimizing after an ingest is."""

    def set_search(self, effort: int) -> None:
        """How hard a search tries: ef_search, nprobe or whatever the store calls it."""

    def lookup(self, query: Keys) -> Found | None:
        """The nearest fact to one query [dim], with its texts."""

    def lookup_batch(self, queries: Keys) -> list[Found | None]:
        """The nearest fact to each query [num, dim], in the way the store does that best."""

    def delete(self, fact_id: int) -> None:
        """Delete a fact; it is gone for every later lookup, and after a restart."""

    def clean_up(self) -> None:
        """What the store's documentation says to run so that deleted data leaves the files."""

    def bytes_on_disk(self) -> int:
        """What its files take up."""

    def close(self) -> None:
        """Release everything; the files stay."""


@dataclass(frozen=True, slots=True)
class PeerKind:
    """A store that can be compared with: its name, the package it needs and the class that adapts it."""

    name: str
    package: str  # as pip names it
    adapter: str  # module:class

    def version(self) -> str | None:
        """The installed version of its package, or None."""
        try:
            return version(self.package)
        except PackageNotFoundError:
            return None

    def make(self) -> Peer:
        """A new adapter, not yet open. Only here is the package imported."""
        module, _, name = self.adapter.partition(":")
        peer: Peer = getattr(import_module(module), name)()
        return peer

    @property
    def install_command(self) -> str:
        return f"pip install {self.package}"


PEERS = {
    kind.name: kind
    for kind in (
        PeerKind("colmlm", "colmlm", "colmlm.lab.bench.peers.ours:Ours"),
        PeerKind("pgvector", "pgvector", "colmlm.lab.bench.peers.pgvector:Pgvector"),
        PeerKind("qdrant", "qdrant-edge-py", "colmlm.lab.bench.peers.qdrant:Qdrant"),
        PeerKind("lancedb", "lancedb", "colmlm.lab.bench.peers.lance:Lance"),
        PeerKind("chroma", "chromadb", "colmlm.lab.bench.peers.chroma:Chroma"),
    )
}


def bytes_of(directory: Path) -> int:
    """What the files under `directory` take up on the disk: blocks and not lengths, as some are sparse."""
    return sum(path.stat().st_blocks * 512 for path in directory.rglob("*") if path.is_file())
