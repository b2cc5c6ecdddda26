"""pgvector: an HNSW index over fp16 keys in PostgreSQL, on the server that this project embeds."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, LiteralString

import numpy as np
import numpy.typing as npt
import psycopg
from pgvector import HalfVector
from pgvector.psycopg import register_vector

from colmlm.kb.store.database import START_SECONDS
from colmlm.kb.store.embedded_server import EmbeddedServer
from colmlm.lab.bench.peers import THREADS, Keys, PeerHit

_TABLE = "CREATE TABLE fact (id bigint PRIMARY KEY, key halfvec NOT NULL, text text NOT NULL, source text NOT NULL)"
_COPY = "COPY fact (id, key, text, source) FROM STDIN (FORMAT BINARY)"
_NEAREST = "SELECT id, text, source FROM fact ORDER BY key <#> %s LIMIT 1"
# The graph is built in memory if it fits; a million fp16 keys with their links need about 1.5 GB.
_BUILD_MEMORY = "2GB"


class Pgvector:
    threads = f"{THREADS} to build, 1 a lookup"
    durability = "COMMIT has written the log through to the disk: survives a power failure"
    efforts: Sequence[int] = (10, 20, 40, 80, 160, 320, 640, 1000)

    def version(self) -> str:
        extension = self._value("SELECT extversion FROM pg_extension WHERE extname = 'vector'")
        return f"{extension} on PostgreSQL {self._value('SHOW server_version')}"

    def open(self, directory: Path, dim: int) -> None:
        self._server = EmbeddedServer(directory / "postgres")
        self._server.start(time.monotonic() + START_SECONDS)
        self._connection = psycopg.connect(str(self._server.url()), autocommit=True)
        self._connection.execute("SET client_min_messages = warning")
        self._connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        register_vector(self._connection)
        if self._value("SELECT to_regclass('fact')") is None:
            # A type's size cannot be a parameter of a statement; dim is an integer.
            self._connection.execute(_TABLE.replace("halfvec", f"halfvec({dim:d})").encode())

    def ingest(
        self, ids: npt.NDArray[np.int64], keys: Keys, texts: Sequence[str], sources: Sequence[str]
    ) -> None:
        with (
            self._connection.transaction(),
            self._connection.cursor() as cursor,
            cursor.copy(_COPY) as copy,
        ):
            copy.set_types(("int8", "halfvec", "text", "text"))
            for fact_id, key, text, source in zip(ids.tolist(), keys, texts, sources, strict=True):
                copy.write_row((fact_id, HalfVector(key), text, source))

    def build(self) -> None:
        self._set("maintenance_work_mem", _BUILD_MEMORY)
        self._set("max_parallel_maintenance_workers", str(THREADS - 1))  # besides the leader
        self._connection.execute("CREATE INDEX fact_key ON fact USING hnsw (key halfvec_ip_ops)")
        self._connection.execute("VACUUM ANALYZE fact")

    def set_search(self, effort: int) -> None:
        self._set("hnsw.ef_search", str(effort))

    def lookup(self, query: Keys) -> PeerHit | None:
        row = self._connection.execute(_NEAREST, (HalfVector(query),), prepare=True, binary=True).fetchone()
        return PeerHit(*row) if row else None

    def lookup_batch(self, queries: Keys) -> list[PeerHit | None]:
        with self._connection.pipeline():
            cursors = [
                self._connection.execute(_NEAREST, (HalfVector(q),), prepare=True, binary=True)
                for q in queries
            ]
            rows = [cursor.fetchone() for cursor in cursors]
        return [PeerHit(*row) if row else None for row in rows]

    def delete(self, fact_id: int) -> None:
        self._connection.execute("DELETE FROM fact WHERE id = %s", (fact_id,), prepare=True)

    def clean_up(self) -> None:
        """Rebuild the index and vacuum the table, as pgvector's README says, and write both to the files."""
        self._connection.execute("REINDEX INDEX CONCURRENTLY fact_key")
        self._connection.execute("VACUUM fact")
        self._connection.execute("CHECKPOINT")

    def bytes_on_disk(self) -> int:
        """Give the size of the table and its indexes, without the WAL, whose files are recycled, and the system
        catalogue.
        """
        size: int = self._value("SELECT pg_total_relation_size('fact')")
        return size

    def close(self) -> None:
        self._connection.close()
        self._server.stop()

    def _set(self, name: str, value: str) -> None:
        self._connection.execute("SELECT set_config(%s, %s, false)", (name, value))

    def _value(self, statement: LiteralString) -> Any:
        row = self._connection.execute(statement).fetchone()
        return row[0] if row else None
