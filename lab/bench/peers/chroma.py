"""Chroma: SQLite for the texts and hnswlib for the keys, inside the process."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
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

_VACUUM = "import sys; from chromadb.cli.cli import app; sys.argv = ['chroma', *sys.argv[1:]]; app()"
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
        """Does nothing, since keys enter the graph as they are added."""

    def set_search(self, effort: int) -> None:
        """Sets ef_search and reloads the index, since Chroma applies a change only then."""
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
        """Runs ``chroma vacuum`` with the client closed, as its documentation requires."""
        self.close()
        vacuum = interpreter.command("-c", _VACUUM, "vacuum", "--force", "--path", self._directory)
        subprocess.run(vacuum, check=True, capture_output=True)
        self.open(self._directory.parent, self._dim)

    def bytes_on_disk(self) -> int:
        return bytes_of(self._directory)

    def close(self) -> None:
        self._client.close()
