"""Collection: the keys of one keyset in a Milvus collection. Only this file imports Milvus's client, when it is used.

Four traps of Milvus decide its shape:

- An id that is inserted twice is stored twice, and takes two places of a search. So ids are inserted that a strongly
  consistent query does not find, and none is ever written over.
- What is written or deleted is seen by other requests later, up to some seconds. So a *mark* follows what was written,
  in a partition of its own that no search reads, and says up to which change everything is in; readers hold the rest
  until the mark is old enough.
- A collection may be gone, or older than it was: a mark names its base, keyset, fill and change, and is asked for with
  every search.
- A compaction that is reported as completed may have left deleted rows where they were. So rows are counted.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from colmlm.kb.errors import CandidatesRefused, CandidatesUnavailable, count_of
from colmlm.kb.keys.keysets import Ids, Vectors
from colmlm.kb.lookup.index import distinct
from colmlm.kb.store.settings import MilvusAddress

MOST_FOUND = 16_384  # rows that Milvus gives at most for one query
KEYS = "_default"  # the partition of keys; that of marks is named by who owns the collection
AT_ONCE = 2_000  # rows in one call
_INDEX = {"index_type": "HNSW", "metric_type": "IP", "params": {"M": 16, "efConstruction": 200}}
_LEAST_EFFORT = 128  # candidates that a search of the graph keeps
_NOT_FOUND, _NOT_LOADED = 100, 101  # codes of Milvus
_SEGMENT_NOT_FOUND = 600  # a compaction replaced a segment while the server listed it
SLOW = 60.0  # seconds for what writes, loads or flushes


@dataclass(frozen=True, slots=True)
class CollectionMark:
    """A row that says: the collection has every change up to `seq`, whose hash in the log is `log_hash`.

    `fill` is the random id of the filling it belongs to. `at` is when it was set, in seconds of the database's clock.
    """

    seq: int
    fill: str
    log_hash: str
    at: float

    @property
    def note(self) -> str:
        return f"{self.fill} {self.log_hash} {self.at:.3f}"


@dataclass(slots=True)
class Collection:
    """The Milvus collection `name`. A partition in it, named `owner`, says which base and keyset it belongs to."""

    address: MilvusAddress
    name: str
    dim: int
    owner: str
    _client: Any = field(default=None, repr=False)

    @property
    def where(self) -> str:
        return f"Collection {self.name} of Milvus at {self.address.uri}"

    def _connected_client(self) -> Any:
        if self._client is None:
            from pymilvus import MilvusClient

            # Its own handler writes tracebacks to stderr for errors that are raised anyway.
            logging.getLogger("pymilvus").setLevel(logging.CRITICAL + 1)
            self._client = MilvusClient(
                uri=self.address.uri, token=self.address.token or "", timeout=self.address.timeout_seconds
            )
        return self._client

    @contextmanager
    def _lend_client(self) -> Iterator[Any]:
        """Lend the Milvus client, and raise its errors as `CandidatesUnavailable` or `CandidatesRefused`."""
        try:
            import grpc
            from pymilvus.exceptions import MilvusException
        except ImportError as error:
            cause = "its client is not installed; run: pip install 'colmlm[milvus]'"
            raise CandidatesUnavailable(self.where, cause) from error
        try:
            yield self._connected_client()
        except MilvusException as error:
            if error.code == _NOT_FOUND:
                raise CandidatesRefused(self.where, "it does not exist") from error
            raise CandidatesUnavailable(self.where, _shorten_message(error.message)) from error
        except grpc.RpcError as error:
            code = getattr(error, "code", lambda: None)()
            raise CandidatesUnavailable(self.where, str(getattr(code, "name", error))) from error

    def with_long_timeout(self) -> Collection:
        """Give this collection with a longer timeout, for a writer: no lookup waits for its requests."""
        with self._lend_client() as client:
            slow = replace(self.address, timeout_seconds=max(SLOW, self.address.timeout_seconds))
            return replace(self, address=slow, _client=client)

    # What is read

    def is_there(self) -> bool:
        """Say whether Milvus has a collection of this name that is the owner's."""
        try:
            return self.exists()
        except CandidatesRefused:
            return False

    def exists(self) -> bool:
        """Say whether there is a collection of this name. Raises `CandidatesRefused` where it is not the owner's."""
        with self._lend_client() as client:
            if not client.has_collection(self.name, timeout=self.address.timeout_seconds):
                return False
            is_owned = client.has_partition(self.name, self.owner, timeout=self.address.timeout_seconds)
        if not is_owned:
            cause = "other data is stored there. Create a keyset on another one (`--index-spec milvus:NAME`)"
            raise CandidatesRefused(self.where, cause)
        return True

    def mark(self, *, strong: bool) -> CollectionMark | None:
        """Give the mark of the last change; None where there is none. If not `strong` it may be some seconds old."""
        rows = self._marks("id < 0", MOST_FOUND, strong)
        return max(map(self._mark, rows), key=lambda mark: mark.seq, default=None)

    def has_mark(self, seq: int, fill: str, *, strong: bool) -> bool:
        """Say whether a mark of this `fill` says that the collection has everything up to change `seq`."""
        return any(self._mark(row).fill == fill for row in self._marks(f"id <= {-1 - seq}", 1, strong))

    def _mark(self, row: Any) -> CollectionMark:
        try:
            fill, log_hash, at = row["note"].split(" ")
            return CollectionMark(-1 - row["id"], fill, log_hash, float(at))
        except ValueError as error:
            raise CandidatesRefused(self.where, "its mark cannot be read") from error

    def _marks(self, expression: str, most: int, strong: bool) -> Sequence[Any]:
        return self._query(expression, most, self.owner, strong, ["id", "note"])

    def search(self, queries_BD: npt.NDArray[Any], k: int, *, strong: bool) -> tuple[Vectors, Ids]:
        """Find the k nearest keys of each query, as `CandidateKeys.search` describes.

        Where Milvus finds fewer than k although there are more, the row repeats its last id. Otherwise it would look as
        if there were no more.
        """
        if k > MOST_FOUND:
            raise CandidatesUnavailable(self.where, f"{k} keys are too many for one search. Ask for fewer")
        D, I = np.full((len(queries_BD), k), -np.inf, np.float32), np.full((len(queries_BD), k), -1, np.int64)  # noqa: E741
        with self._lend_client() as client:
            found = client.search(
                self.name,
                data=np.ascontiguousarray(queries_BD, np.float32),
                limit=k,
                output_fields=["id"],
                partition_names=[KEYS],
                search_params={"metric_type": "IP", "params": {"ef": max(_LEAST_EFFORT, k)}},
                consistency_level=_consistency(strong),
                timeout=self.address.timeout_seconds,
            )
        for b, hits in enumerate(found):
            I[b, : len(hits)] = [hit["id"] for hit in hits]
            D[b, : len(hits)] = [hit["distance"] for hit in hits]
        short = np.flatnonzero((I < 0).any(axis=1))
        if len(short) and (held := self.count(strong=strong)):
            for b in short.tolist():
                got = int((I[b] >= 0).sum())
                if got < min(k, held):
                    if got == 0:
                        raise CandidatesUnavailable(
                            self.where, f"a search found none of its {count_of(held, 'key')}"
                        )
                    I[b, got:], D[b, got:] = I[b, got - 1], D[b, got - 1]
        return D, I

    def count(self, *, strong: bool) -> int:
        """Count the rows of keys; a key that is stored twice counts twice."""
        (row,) = self._query("id > 0", None, KEYS, strong, ["count(*)"])
        return int(row["count(*)"])

    def present(self, ids: Sequence[int]) -> set[int]:
        """Give those of these ids whose keys the collection has now."""
        found: set[int] = set()
        for start in range(0, len(ids), MOST_FOUND):
            some = list(ids[start : start + MOST_FOUND])
            found.update(row["id"] for row in self._query(f"id in {some}", len(some), KEYS, True, ["id"]))
        return found

    def ids(self) -> Ids:
        """Give the ids of all keys, ascending and each once, with all that was written before this call."""
        found: list[int] = []
        with self._lend_client() as client:
            rows = client.query_iterator(
                self.name,
                batch_size=MOST_FOUND,
                filter="id > 0",
                output_fields=["id"],
                partition_names=[KEYS],
                timeout=SLOW,
            )
            while batch := rows.next():
                found += [row["id"] for row in batch]
            rows.close()
        return distinct(np.array(found, dtype=np.int64))

    def _query(
        self, expression: str, most: int | None, partition: str, strong: bool, wanted: list[str]
    ) -> Sequence[Any]:
        limit = {} if most is None else {"limit": most}
        with self._lend_client() as client:
            rows: Sequence[Any] = client.query(
                self.name,
                filter=expression,
                output_fields=wanted,
                partition_names=[partition],
                consistency_level=_consistency(strong),
                timeout=self.address.timeout_seconds,
                **limit,
            )
        return rows

    # What is written, by one process at a time

    def drop(self) -> None:
        """Drop the collection, if it exists. Raises `CandidatesRefused` where it is not the owner's."""
        if self.exists():
            with self._lend_client() as client:
                client.drop_collection(self.name, timeout=SLOW)

    def create(self) -> None:
        """Create an empty collection, in place of the one of this name that this owner has."""
        from pymilvus import DataType, MilvusClient

        self.drop()
        schema = MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("id", DataType.INT64, is_primary=True)
        schema.add_field("note", DataType.VARCHAR, max_length=256)
        schema.add_field("key", DataType.FLOAT_VECTOR, dim=self.dim)
        with self._lend_client() as client:
            indexes = client.prepare_index_params()
            indexes.add_index(field_name="key", **_INDEX)
            client.create_collection(
                self.name, schema=schema, num_shards=1, consistency_level=_consistency(True), timeout=SLOW
            )
            client.create_partition(self.name, self.owner, timeout=SLOW)
            client.create_index(self.name, indexes, timeout=SLOW)
        self.load()

    def load(self) -> None:
        """Have Milvus load the collection into memory for searches, if it is not there."""
        with self._lend_client() as client:
            client.load_collection(self.name, replica_number=1, timeout=SLOW)

    def insert(self, ids: Ids, keys: Vectors) -> None:
        """Insert keys [n, d] under ids [n]. None of these ids may be in the collection yet."""
        for start in range(0, len(ids), AT_ONCE):
            rows = zip(ids[start : start + AT_ONCE].tolist(), keys[start : start + AT_ONCE], strict=True)
            self._insert([{"id": id_, "note": "", "key": key} for id_, key in rows], KEYS)

    def _insert(self, rows: list[dict[str, Any]], partition: str) -> None:
        with self._lend_client() as client:
            client.insert(self.name, rows, partition_name=partition, timeout=SLOW)

    def delete(self, ids: Iterable[int]) -> None:
        """Delete the keys of these ids; unknown ids are ignored."""
        self._delete(list(ids), KEYS)

    def _delete(self, ids: list[int], partition: str) -> None:
        for start in range(0, len(ids), AT_ONCE):
            with self._lend_client() as client:
                some = ids[start : start + AT_ONCE]
                client.delete(self.name, ids=some, partition_name=partition, timeout=SLOW)

    def set_mark(self, mark: CollectionMark) -> None:
        """Replace all marks by this one. The former marks stay until it is written."""
        former = {row["id"] for row in self._marks("id < 0", MOST_FOUND, strong=True)}
        row = {"id": -1 - mark.seq, "note": mark.note, "key": np.zeros(self.dim, np.float32)}
        if row["id"] in former:
            with self._lend_client() as client:
                client.upsert(self.name, [row], partition_name=self.owner, timeout=SLOW)
        else:
            self._insert([row], self.owner)
        self._delete(sorted(former - {row["id"]}), self.owner)

    def flush(self) -> None:
        """Have Milvus write all inserted rows to its storage, and index them."""
        with self._lend_client() as client:
            client.flush(self.name, timeout=SLOW)

    def is_indexed(self) -> bool:
        """Say whether Milvus has indexed all that it wrote to its storage."""
        with self._lend_client() as client:
            found = client.describe_index(self.name, index_name="key", timeout=SLOW)
        return not int(found.get("pending_index_rows", 0))

    def compact(self, seconds: float) -> bool:
        """Have Milvus rewrite the segments that hold deleted keys; say whether it did within these `seconds`.

        It did if its segments have as many rows as queries find. Fewer mean that some rows are not written yet.
        """
        until = time.monotonic() + seconds
        self.flush()
        while True:
            with self._lend_client() as client:
                client.compact(self.name, timeout=SLOW)
            rows = self._num_rows_at_rest(until)
            if rows == self.count(strong=True) + len(self._marks("id < 0", MOST_FOUND, True)):
                return True
            if rows is None or time.monotonic() > until:
                return False
            time.sleep(1)

    def _num_rows_at_rest(self, until: float) -> int | None:
        """Count the rows of all segments; count again if a compaction replaces one while they are listed."""
        while True:
            try:
                return self.num_rows()
            except CandidatesUnavailable as unavailable:
                is_moving = getattr(unavailable.__cause__, "code", None) == _SEGMENT_NOT_FOUND
                if not is_moving or time.monotonic() > until:
                    raise
                time.sleep(0.2)

    def num_rows(self) -> int | None:
        """Count the rows of the collection's segments, deleted ones too; None where this server cannot list them."""
        import grpc

        try:
            with self._lend_client() as client:
                segments = client.list_persistent_segments(self.name, timeout=SLOW)
        except CandidatesUnavailable as unavailable:
            if getattr(unavailable.__cause__, "code", lambda: None)() == grpc.StatusCode.UNIMPLEMENTED:
                return None
            raise
        return sum(int(segment.num_rows) for segment in segments)


def _consistency(strong: bool) -> str:
    return "Strong" if strong else "Bounded"


def _shorten_message(message: str) -> str:
    return " ".join(message.split())[:300]
