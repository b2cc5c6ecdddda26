"""Chroma: SQLite for the texts and hnswlib for the keys, inside the process."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import chromadb
import numpy as np
import numpy.typing as npt
from chromadb.config import Settings
from chromadb.errors import InternalError

from colmlm.kb import interpreter
from colmlm.lab.bench.peers import THREADS, Keys, PeerHit, bytes_of
from colmlm.lab.bench.servers import CHROMA_COMMAND

_LOCKED_SECONDS = 10.0  # it compacts its log in the background, and refuses changes of a collection meanwhile


class Chroma:
    threads = f"{THREADS} asked for (num_threads)"
    durability = "the transaction of its SQLite log is committed"
    efforts: Sequence[int] = (10, 20, 40, 80, 160, 320, 640, 1280)

    def version(self) -> str:
        return version("chromadb")

    def open(self, directory: Path, dim: int) -> None:
        self._directory = directory / "chroma"
        self._dim = dim  # the first keys set the dimension, which cannot be declared
        settings = Settings(anonymized_telemetry=False)
        self._client = chromadb.PersistentClient(self._directory, settings=settings)
        self._collection = self._client.get_or_create_collection(
            "fact",
            embedding_function=None,  # keys are passed in, so no model is downloaded to make them
            configuration={"hnsw": {"space": "ip", "num_threads": THREADS}},
        )

    def ingest(
        self, ids: npt.NDArray[np.int64], keys: Keys, texts: Sequence[str], sources: Sequence[str]
    ) -> None:
        batch = self._client.get_max_batch_size()
        for start in range(0, len(ids), batch):
            part = slice(start, start + batch)
            self._collection.add(
                ids=[str(fact_id) for fact_id in ids[part].tolist()],
                embeddings=keys[part],
                documents=list(texts[part]),
                metadatas=[{"source": source} for source in sources[part]],
            )

    def build(self) -> None:
        """Do nothing, since keys enter the graph as they are added."""

    def set_search(self, effort: int) -> None:
        """Set ef_search and reloads the index, since Chroma applies a change only then."""
        deadline = time.monotonic() + _LOCKED_SECONDS
        while True:
            try:
                self._collection.modify(configuration={"hnsw": {"ef_search": effort}})
                break
            except InternalError as error:
                if "database is locked" not in str(error) or time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
        self.close()
        self.open(self._directory.parent, self._dim)

    def lookup(self, query: Keys) -> PeerHit | None:
        return self.lookup_batch(query[np.newaxis])[0]

    def lookup_batch(self, queries: Keys) -> list[PeerHit | None]:
        found: Any = self._collection.query(
            query_embeddings=queries, n_results=1, include=["documents", "metadatas"]
        )
        rows = zip(found["ids"], found["documents"], found["metadatas"], strict=True)
        return [
            PeerHit(int(ids[0]), texts[0], about[0]["source"]) if ids else None for ids, texts, about in rows
        ]

    def delete(self, fact_id: int) -> None:
        self._collection.delete(ids=[str(fact_id)])

    def clean_up(self) -> None:
        """Run ``chroma vacuum`` with the client closed, as its documentation requires."""
        self.close()
        vacuum = interpreter.command("-c", CHROMA_COMMAND, "vacuum", "--force", "--path", self._directory)
        subprocess.run(vacuum, check=True, capture_output=True)
        self.open(self._directory.parent, self._dim)

    def bytes_on_disk(self) -> int:
        return bytes_of(self._directory)

    def close(self) -> None:
        self._client.close()


# The same keys behind Chroma's own server, asked for over HTTP at a recall no lower than ours.

SAME = 1e-3  # a score this near to the best is of a key as near


@dataclass(frozen=True, slots=True)
class ChromaSearchRequest:
    """Choose where queries are sent, and as what, with the effort and the recall of a search."""

    path: str
    bodies: list[str]
    ef_search: int
    recall_at_1: float


def recall_at_1(found: Keys, queries: Keys, keys: Keys) -> float:
    """Give the share of queries whose score, `found`, is that of the nearest key."""
    best = np.concatenate([(part @ keys.T).max(axis=1) for part in np.array_split(queries, 10) if len(part)])
    return float(np.mean(found >= best - SAME))


def store_in_chroma(port: int, keys: Keys, queries: Keys, wanted: float) -> ChromaSearchRequest:
    """Store the keys in a collection and give its route, with the least effort that reaches the recall wanted."""
    client = chromadb.HttpClient("127.0.0.1", port, settings=Settings(anonymized_telemetry=False))
    collection = client.create_collection(
        "fact", embedding_function=None, configuration={"hnsw": {"space": "ip", "num_threads": THREADS}}
    )
    batch = client.get_max_batch_size()
    for start in range(0, len(keys), batch):
        part = keys[start : start + batch]
        ids = [str(start + n) for n in range(len(part))]
        collection.add(ids=ids, embeddings=part, documents=[f"value {number}" for number in ids])
    for effort in Chroma.efforts:
        collection.modify(configuration={"hnsw": {"ef_search": effort}})
        found: Any = collection.query(query_embeddings=queries, n_results=1, include=["distances"])
        scores = 1 - np.array([one[0] for one in found["distances"]], dtype=np.float32)
        if (recall := recall_at_1(scores, queries, keys)) >= wanted:
            break
    path = f"/api/v2/tenants/default_tenant/databases/default_database/collections/{collection.id}/query"
    asked = {"n_results": 1, "include": ["documents", "distances"]}
    bodies = [json.dumps({"query_embeddings": [query], **asked}) for query in queries.tolist()]
    return ChromaSearchRequest(path, bodies, effort, recall)
