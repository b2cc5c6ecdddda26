"""Other stores behind one protocol: each stores keys with texts, finds a text by its key, and deletes for good."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from sqlalchemy import text

from colmlm.kb.corpus.format import AnnotatedDocument, FactSpan, Parsed
from colmlm.kb.keys.records import CheckpointInfo
from colmlm.kb.lookup.records import Lookup
from colmlm.kb.removal.erase import Erasure
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.settings import Settings

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
        PeerKind("colmlm", "colmlm", "colmlm.lab.bench.peers:ColmlmPeer"),
        PeerKind("pgvector", "pgvector", "colmlm.lab.bench.peers.pgvector:Pgvector"),
        PeerKind("qdrant", "qdrant-edge-py", "colmlm.lab.bench.peers.qdrant:Qdrant"),
        PeerKind("lancedb", "lancedb", "colmlm.lab.bench.peers.lance:Lance"),
        PeerKind("chroma", "chromadb", "colmlm.lab.bench.peers.chroma:Chroma"),
    )
}


def bytes_of(directory: Path) -> int:
    """Give the disk space of the files under `directory`, in allocated blocks, since some files are sparse."""
    return sum(path.stat().st_blocks * 512 for path in directory.rglob("*") if path.is_file())


CHECKPOINT = "synthetic"
FACTS_A_DOCUMENT = 20


class ColmlmPeer:
    """This program.

    Fact `i` of the comparison has id `i + 1` here. A lookup gives the value; its source is another read.
    """

    threads = "1 for one query, 2 for a batch; PostgreSQL 1"
    durability = "a commit that waits for the disk: survives the loss of power"
    efforts: Sequence[int] = (0,)  # as in the product

    def open(self, directory: Path, dim: int) -> None:
        self._directory = directory / "colmlm"
        self._kb = KnowledgeBase.open(Settings(home=self._directory, actor="bench"))
        self._keyset_id = self._kb.keysets.create(CheckpointInfo(CHECKPOINT, CHECKPOINT, dim)).keyset_id

    def ingest(
        self, ids: npt.NDArray[np.int64], keys: Keys, texts: Sequence[str], sources: Sequence[str]
    ) -> None:
        documents = (Parsed(document) for document in _documents(int(ids[0]), texts, sources))
        self._kb.corpora.ingest(documents, "bench", actor="bench", reason="benchmark")
        self._kb.keysets.store_keys(self._keyset_id, ids + 1, keys, actor="bench", reason="benchmark")

    def build(self) -> None:
        self._kb.keysets.finish(self._keyset_id)

    def version(self) -> str:
        with self._kb.sessions() as session:
            return f"{version('colmlm')} on PostgreSQL {session.scalar(text('SHOW server_version'))}"

    def set_search(self, effort: int) -> None:
        """Do nothing, since it is compared with its own settings."""

    def lookup(self, query: Keys) -> PeerHit | None:
        return self.lookup_batch(query[None])[0]

    def lookup_batch(self, queries: Keys) -> list[PeerHit | None]:
        return [
            _first_hit(lookup)
            for lookup in self._kb.lookups.find(queries, checkpoint_id=CHECKPOINT, threshold=-1)
        ]

    def delete(self, fact_id: int) -> None:
        self._kb.facts.delete([fact_id + 1], actor="bench", reason="benchmark")

    def clean_up(self) -> None:
        """Erase the deleted facts to the highest level."""
        deleted = [fact.fact_id for fact in self._kb.facts.find(deleted=True, limit=10_000)]
        Erasure(self._kb).erase(deleted, actor="bench", reason="benchmark", now=True)

    def bytes_on_disk(self) -> int:
        return bytes_of(self._directory)

    def close(self) -> None:
        self._kb.close()


def _documents(first: int, texts: Sequence[str], sources: Sequence[str]) -> Iterator[AnnotatedDocument]:
    for at in range(0, len(texts), FACTS_A_DOCUMENT):
        passages, spans, length = [], [], 0
        several = slice(at, at + FACTS_A_DOCUMENT)
        for value, source in zip(texts[several], sources[several], strict=True):
            start = length + source.index(value)
            spans.append(FactSpan(start, start + len(value), value))
            passages.append(source)
            length += len(source)
        yield AnnotatedDocument(f"d{first + at}", "".join(passages), tuple(spans))


def _first_hit(lookup: Lookup) -> PeerHit | None:
    if not lookup.hits:
        return None
    hit = lookup.hits[0]
    return PeerHit(hit.fact_id - 1, hit.value, "")
