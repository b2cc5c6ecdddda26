"""This program as one of the stores it is compared with: it stores documents and keys, and gives the value of the
nearest fact.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path

import numpy as np
import numpy.typing as npt
from sqlalchemy import text

from colmlm.kb.corpus.format import AnnotatedDocument, FactSpan, Parsed
from colmlm.kb.keys.records import CheckpointInfo
from colmlm.kb.lookup.records import Lookup
from colmlm.kb.removal.erase import Erasure
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.settings import Settings
from colmlm.lab.bench.peers import Keys, PeerHit, bytes_of

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
