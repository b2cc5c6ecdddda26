"""Qdrant Edge: Qdrant's shard inside the process, with HNSW segments and the texts as payload."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from qdrant_edge import (
    Distance,
    EdgeConfig,
    EdgeOptimizersConfig,
    EdgeShard,
    EdgeVectorParams,
    HnswIndexConfig,
    Point,
    Query,
    QueryBatchRequest,
    QueryRequest,
    SearchParams,
    UpdateOperation,
)

from colmlm.lab.bench.peers import THREADS, Keys, PeerHit, bytes_of

_BATCH = 1_000  # points per operation; each operation is a record of the write-ahead log
_SOME_KB = (
    100  # larger segments get an HNSW index; the default of 10 MB would search small sets by brute force
)


class Qdrant:
    threads = f"{THREADS} to build, {THREADS} for the segments of a lookup"
    durability = "update and flush: the log and the segments are written through"
    efforts: Sequence[int] = (8, 16, 32, 64, 128, 256, 512, 1024)

    def version(self) -> str:
        return version("qdrant-edge-py")

    def open(self, directory: Path, dim: int) -> None:
        self._directory = directory / "shard"
        self._dim = dim
        self._effort = self.efforts[0]
        if self._directory.is_dir():
            self._shard = EdgeShard.load(str(self._directory))
            return
        self._directory.mkdir()
        self._shard = EdgeShard.create(str(self._directory), self._config(EdgeOptimizersConfig()))

    def _config(self, optimizers: Any) -> Any:
        optimizers = EdgeOptimizersConfig(
            deleted_threshold=optimizers.deleted_threshold,
            vacuum_min_vector_number=optimizers.vacuum_min_vector_number,
            default_segment_number=1,
            indexing_threshold=_SOME_KB,
        )
        return EdgeConfig(
            vectors=EdgeVectorParams(size=self._dim, distance=Distance.Dot),
            hnsw_config=HnswIndexConfig(
                m=16, ef_construct=100, full_scan_threshold=_SOME_KB, max_indexing_threads=THREADS
            ),
            optimizers=optimizers,
            max_search_threads=THREADS,
        )

    def ingest(
        self, ids: npt.NDArray[np.int64], keys: Keys, texts: Sequence[str], sources: Sequence[str]
    ) -> None:
        for start in range(0, len(ids), _BATCH):
            part = slice(start, start + _BATCH)
            rows = zip(ids[part].tolist(), keys[part].tolist(), texts[part], sources[part], strict=True)
            points = [Point(i, key, {"text": text, "source": source}) for i, key, text, source in rows]
            self._shard.update(UpdateOperation.upsert_points(points))
        self._shard.flush()

    def build(self) -> None:
        self._shard.optimize()
        self._shard.flush()

    def set_search(self, effort: int) -> None:
        self._effort = effort

    def lookup(self, query: Keys) -> PeerHit | None:
        return _hit_of_points(self._shard.query(self._request(query)))

    def lookup_batch(self, queries: Keys) -> list[PeerHit | None]:
        found = self._shard.query_batch(QueryBatchRequest([self._request(query) for query in queries]))
        return [_hit_of_points(points) for points in found]

    def _request(self, query: Keys) -> Any:
        return QueryRequest(
            limit=1,
            query=Query.Nearest(query.tolist()),
            with_payload=True,
            params=SearchParams(hnsw_ef=self._effort),
        )

    def delete(self, fact_id: int) -> None:
        self._shard.update(UpdateOperation.delete_points([fact_id]))
        self._shard.flush()

    def clean_up(self) -> None:
        """Run the vacuum optimizer with a lower threshold; by default it runs once a fifth is deleted."""
        self._shard.close()
        vacuum = EdgeOptimizersConfig(deleted_threshold=1e-9, vacuum_min_vector_number=1)
        self._shard = EdgeShard.load(str(self._directory), self._config(vacuum))
        self._shard.optimize()
        self._shard.flush()

    def bytes_on_disk(self) -> int:
        """Give the size of the segments, without the write-ahead log, whose files are preallocated."""
        return bytes_of(self._directory / "segments")

    def close(self) -> None:
        self._shard.flush()
        self._shard.close()


def _hit_of_points(points: list[Any]) -> PeerHit | None:
    if not points:
        return None
    (point,) = points
    return PeerHit(point.id, point.payload["text"], point.payload["source"])
