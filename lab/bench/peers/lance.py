"""LanceDB: versioned columns in files, an HNSW index over 8-bit keys, and re-ranking by the exact keys."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

import lancedb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from lancedb.index import BTree, HnswSq

from colmlm.lab.bench.peers import THREADS, Keys, PeerHit, bytes_of

_REFINE = 4  # candidates that are re-ranked by their exact keys, per result


class Lance:
    threads = f"{THREADS} (LANCE_CPU_THREADS)"
    durability = "a new version's manifest is written and renamed: survives the death of the process"
    efforts: Sequence[int] = (8, 16, 32, 64, 128, 256, 512, 1024)

    def version(self) -> str:
        return version("lancedb")

    def open(self, directory: Path, dim: int) -> None:
        self._directory = directory / "lance"
        self._effort = self.efforts[0]
        self._schema = pa.schema(
            [
                ("id", pa.int64()),
                ("key", pa.list_(pa.float32(), dim)),
                ("text", pa.utf8()),
                ("source", pa.utf8()),
            ]
        )
        database = lancedb.connect(self._directory)
        self._table = database.create_table("fact", schema=self._schema, exist_ok=True)

    def ingest(
        self, ids: npt.NDArray[np.int64], keys: Keys, texts: Sequence[str], sources: Sequence[str]
    ) -> None:
        flat = pa.array(np.ascontiguousarray(keys).reshape(-1))
        key_column = pa.FixedSizeListArray.from_arrays(flat, keys.shape[1])
        columns = [pa.array(ids), key_column, pa.array(texts), pa.array(sources)]
        self._table.add(pa.Table.from_arrays(columns, schema=self._schema))

    def build(self) -> None:
        self._table.create_index("key", config=HnswSq(distance_type="dot", num_partitions=1))
        self._table.create_index("id", config=BTree())  # a delete finds its row by id
        self._table.optimize()

    def set_search(self, effort: int) -> None:
        self._effort = effort

    def lookup(self, query: Keys) -> PeerHit | None:
        rows = self._search(query).to_arrow().to_pylist()
        return _hit_of_row(rows[0]) if rows else None

    def lookup_batch(self, queries: Keys) -> list[PeerHit | None]:
        if len(queries) == 1:
            return [self.lookup(queries[0])]
        found: list[PeerHit | None] = [None] * len(queries)
        for row in self._search(list(queries)).to_arrow().to_pylist():
            found[row["query_index"]] = _hit_of_row(row)
        return found

    def _search(self, query: Any) -> Any:
        search = self._table.search(query, vector_column_name="key").distance_type("dot")
        search = search.ef(max(self._effort, _REFINE)).refine_factor(_REFINE)
        return search.select(["id", "text", "source", "_distance"]).limit(1)

    def delete(self, fact_id: int) -> None:
        self._table.delete(f"id = {fact_id:d}")

    def clean_up(self) -> None:
        """Run `optimize`, which LanceDB compares to VACUUM, and keep no older version."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # safe, since nobody reads older versions
            self._table.optimize(cleanup_older_than=timedelta(0), delete_unverified=True)

    def bytes_on_disk(self) -> int:
        return bytes_of(self._directory)

    def close(self) -> None:
        del self._table


def _hit_of_row(row: dict[str, Any]) -> PeerHit:
    return PeerHit(row["id"], row["text"], row["source"])
