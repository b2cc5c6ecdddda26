"""Other stores behind one protocol: each stores keys with texts, finds a text by its key, and deletes for good."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

THREADS = 2  # threads that each store may use, where it can be set

Keys = npt.NDArray[np.float32]


class PeerHit(NamedTuple):
    """The nearest stored fact."""

    fact_id: int
    text: str
    source: str


class Peer(Protocol):
    """A store under test. One thread uses it, and every call returns when its work is done."""

    threads: str  # the number of threads it uses, in words
    durability: str  # which failures an acknowledged write survives, in words
    efforts: Sequence[int]  # the values that `set_search` takes, least effort first

    def version(self) -> str:
        """Give the store's name and version, once it is open."""

    def open(self, directory: Path, dim: int) -> None:
        """Make the store in `directory`, or opens the one that is there."""

    def ingest(
        self, ids: npt.NDArray[np.int64], keys: Keys, texts: Sequence[str], sources: Sequence[str]
    ) -> None:
        """Store a batch durably."""

    def build(self) -> None:
        """Build the index where that is a separate step, and do what the store optimizes after an ingest."""

    def set_search(self, effort: int) -> None:
        """Set the effort of a search: ef_search, nprobe, or what the store calls it."""

    def lookup(self, query: Keys) -> PeerHit | None:
        """Give the nearest fact to one query [dim], with its texts."""

    def lookup_batch(self, queries: Keys) -> list[PeerHit | None]:
        """Give the nearest fact to each query [num, dim], in the fastest way that the store has."""

    def delete(self, fact_id: int) -> None:
        """Delete a fact, so that no later lookup finds it, also after a restart."""

    def clean_up(self) -> None:
        """Run what the store's documentation says removes deleted data from the files."""

    def bytes_on_disk(self) -> int:
        """Give the size of its files."""

    def close(self) -> None:
        """Release everything; the files stay."""


@dataclass(frozen=True, slots=True)
class PeerKind:
    """A kind of store to compare with: its name, the package it needs, and the class that adapts it."""

    name: str
    package: str  # as pip names it
    adapter: str  # module:class

    def version(self) -> str | None:
        """Give the installed version of its package, or None."""
        try:
            return version(self.package)
        except PackageNotFoundError:
            return None

    def make(self) -> Peer:
        """Make an adapter that is not open yet. The package is imported only here."""
        module, _, name = self.adapter.partition(":")
        peer: Peer = getattr(import_module(module), name)()
        return peer

    @property
    def install_command(self) -> str:
        return f"pip install {self.package}"


PEERS = {
    kind.name: kind
    for kind in (
        PeerKind("colmlm", "colmlm", "colmlm.lab.bench.peers.ours:ColmlmPeer"),
        PeerKind("pgvector", "pgvector", "colmlm.lab.bench.peers.pgvector:Pgvector"),
        PeerKind("qdrant", "qdrant-edge-py", "colmlm.lab.bench.peers.qdrant:Qdrant"),
        PeerKind("lancedb", "lancedb", "colmlm.lab.bench.peers.lance:Lance"),
        PeerKind("chroma", "chromadb", "colmlm.lab.bench.peers.chroma:Chroma"),
    )
}


def bytes_of(directory: Path) -> int:
    """Give the disk space of the files under `directory`, in allocated blocks, since some files are sparse."""
    return sum(path.stat().st_blocks * 512 for path in directory.rglob("*") if path.is_file())
