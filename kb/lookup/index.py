"""The index: holds the keys of one keyset in Faiss and searches them by inner product. Only this file imports faiss.

It is a cache of keys, never of text, and can always be rebuilt from Postgres. A Faiss id is `fact_key.id`: unique,
never reused, never positional. Three traps of Faiss decide the shape of this file:

- `IDMap` around an IVF answers with wrong ids after one removal, with no error. So a small index is exact
  (`IDMap2,Flat`), and an IVF gets the ids natively, with a Hashtable direct map that makes removal cheap.
- The same id added twice can't be removed again. So ids are checked against the set of those present.
- `read_index` believes damaged bytes, and `write_index` overwrites in place. So a snapshot is a file of a new
  name plus a manifest with its checksum, renamed last: a crash leaves the old pair or the new pair.

A sealed index belongs to a release: it never changes, and its keys are read in blocks. Its file is mapped into memory,
so that only the block that is decoded takes memory. Lists are read one after the other, as they lie in the file. Where
it holds codes, the keys are decoded from these: near the keys that were added, and not the same.
"""

from __future__ import annotations

import errno
import fcntl
import math
import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import faiss as untyped_faiss
import numpy as np
import numpy.typing as npt

from colmlm.kb.errors import IndexInvariant, SnapshotRefused, count_of, describe_misread, refusals
from colmlm.kb.lookup.snapshot_files import (
    IndexRecord,
    locked_directory,
    read_manifest,
    replace_snapshot,
    sha256,
)
from colmlm.kb.lookup.specs import FLAT_SPEC, parse_spec

faiss: Any = untyped_faiss  # its type stubs lack half of the methods that SWIG generates
Vectors = npt.NDArray[np.float32]

# Keys that are asked for beyond twice as many as are wanted, where nothing was measured: with codes of a bit for each
# number, the nearest key was among four of 200,000 whenever it was among ten, at the widths that get such codes.
SPARE_OF_BITS, SPARE = 3, 8
LISTS_READ = 64  # inverted lists read for each query where nothing was measured, or all where there are fewer
# For each thread of a call. A batch of lookups that came together uses one: two would wait for each other wherever the
# second core is busy, 44 ms for what one does in 1.3.
VECTORS_PER_THREAD = 32
TRAINED_PER_LIST = 39  # keys for each centroid
ROUNDS = 6  # of k-means; ten, on 64 keys for each centroid, find no more of the nearest keys
# Reading a damaged or foreign snapshot may raise any of these.
_DOUBTS = (
    OSError, ValueError, LookupError, TypeError, AttributeError, RuntimeError, MemoryError, IndexInvariant,
)  # fmt: skip
# From so many queries on a flat search is one product of matrices, a third to a seventh of the time for each query.
# Faiss 1.15 counts queries times width, for all indexes of the process, and begins at 128,000.
MATRIX_FROM = 4


class KeyIndex:
    """An index of keys by id, for one keyset.

    Threads may share it: searches run in parallel, add and remove run alone.
    """

    def __init__(self, dim: int, spec: str = FLAT_SPEC) -> None:
        """Make an empty index.

        Raises `IndexInvariant` where `spec` is not known to remove correctly or can't hold `dim`.
        """
        self.dim, self.spec, self.spare, self._lock = dim, spec, 0, ReadWriteLock()
        index, self.train_min = _build(dim, spec)
        self._adopt(index)

    def _adopt(self, index: Any) -> None:  # also reads back which ids it holds
        self._index, self._ivf = index, faiss.try_extract_index_ivf(index)
        if self._ivf is None:
            self._present = PresentIds(faiss.vector_to_array(index.id_map))
        else:
            self.lists_read = LISTS_READ
            self.spare = SPARE_OF_BITS if self.spec.endswith("RaBitQ") else SPARE
            self._present = PresentIds(_ids_in(self._ivf.invlists))

    @property
    def ids(self) -> Ids:
        """Give the ids present at this instant, ascending."""
        with self._lock.reading():
            return self._present.ascending()

    @property
    def lists(self) -> int:
        """The number of inverted lists; 0 where the index is exact and has none."""
        return 0 if self._ivf is None else int(self._ivf.nlist)

    @property
    def lists_read(self) -> int:
        """The number of inverted lists that a search reads for each query; to be set where there are any."""
        return 0 if self._ivf is None else int(self._ivf.nprobe)

    @lists_read.setter
    def lists_read(self, number: int) -> None:
        if self._ivf is not None:
            self._ivf.nprobe = max(1, min(number, self.lists))

    @property
    def bare(self) -> Any:
        """The Faiss index itself, for measurements that compare with it. Changing it breaks this object."""
        return self._index

    def __len__(self) -> int:
        return len(self._present)

    def add(self, ids: Iterable[int] | Ids, keys: npt.NDArray[Any]) -> None:
        """Add keys [n, d] under ids [n], all or none; raise `IndexInvariant` where one is refused.

        It refuses ids that are given twice, present or negative, keys of another width, and NaN or infinity. The first
        add trains a spec with IVF on its keys, so it should get all keys there are; too few are refused.
        """
        ids_n, xb = as_ids(ids), as_vectors(keys, self.dim)
        if len(ids_n) != len(xb):
            raise IndexInvariant(f"{count_of(len(ids_n), 'id')} came with {count_of(len(xb), 'key')}")
        if len(ids_n) == 0:
            return
        with self._lock.writing():
            self._refuse_duplicates(ids_n)
            if not self._index.is_trained:
                self.train(xb)
            with self.threads(len(xb) // VECTORS_PER_THREAD):
                self._index.add_with_ids(xb, ids_n)
            self._present.add(np.sort(ids_n))

    def remove(self, ids: Iterable[int] | Ids) -> int:
        """Remove the keys of these ids and give how many were present.

        It ignores unknown ids, so a repeated removal does no harm. Pass batches: each call moves a flat index's keys.
        """
        wanted = distinct(as_ids(ids))
        with self._lock.writing():
            present = wanted[self._present.has(wanted)]
            # A Hashtable accepts only an IDSelectorArray; a flat index would scan that in n x m steps, so it gets a
            # hash set.
            selector = faiss.IDSelectorBatch if self._ivf is None else faiss.IDSelectorArray
            removed = int(self._index.remove_ids(selector(present))) if len(present) else 0
            self._present.discard(present)
            if removed != len(present) or self._index.ntotal != len(self):
                raise IndexInvariant(
                    f"Faiss removed {count_of(removed, 'key')} of {len(present):,} that it had"
                )
            return removed

    def missing(self, ids: Iterable[int] | Ids) -> Ids:
        """Give those of these ids that are not in the index, ascending and each once."""
        wanted = distinct(as_ids(ids))
        return wanted[~self._present.has(wanted)]

    def search(self, queries_BD: npt.NDArray[Any], k: int, only: IdBits | None = None) -> tuple[Vectors, Ids]:
        """Find the k keys of largest inner product for each query: scores D [B, k] and ids I [B, k], best first.

        Where fewer are found the rest has id -1 and score -inf. With PQ the scores are estimates: compute them again
        from the stored keys before comparing them with a threshold. With `only`, no other ids are found. Their nearest
        may be in lists that are further off, so `only.widening` times as many lists are read.
        """
        xq = as_vectors(queries_BD, self.dim)
        shape = len(xq), k
        faiss.cvar.distance_compute_blas_threshold = MATRIX_FROM * xq.shape[1]
        D, I = np.full(shape, -np.inf, np.float32), np.full(shape, -1, np.int64)  # noqa: E741
        with self._lock.reading(), self.threads(len(xq) // VECTORS_PER_THREAD):
            k_present = min(k, len(self))
            if k_present and len(xq):  # an untrained index can't be searched
                params = None if only is None else self._among(only)
                D[:, :k_present], I[:, :k_present] = self._index.search(xq, k_present, params=params)
        D[I < 0] = -np.inf  # Faiss fills these with the lowest float32
        return D, I

    def _among(self, only: IdBits) -> Any:
        """Give the parameters with which Faiss searches only the keys of these ids."""
        if self._ivf is None:
            return faiss.SearchParameters(sel=only.selector)
        read = min(self.lists, math.ceil(self.lists_read * only.widening))
        params = faiss.SearchParametersIVF(sel=only.selector, nprobe=read)
        if isinstance(self._index, faiss.IndexPreTransform):
            return faiss.SearchParametersPreTransform(index_params=params)
        return params

    @staticmethod
    @contextmanager
    def threads(wanted: int) -> Iterator[None]:
        """Let Faiss use up to `wanted` threads within the block, and at least one.

        Beside a busy process one query took 18 to 46 ms (p99) with two threads, and under 5 ms with one. Adding one key
        took 12 ms with two threads, and 8 microseconds with one.
        """
        before = faiss.omp_get_max_threads()
        try:
            yield faiss.omp_set_num_threads(max(1, min(before, wanted)))
        finally:
            faiss.omp_set_num_threads(before)  # the setting is the thread's, and torch may share it

    def over_fetch(self, k: int) -> int:
        """Give how many keys to ask for so that the k best are among them after exact scoring and a few deletions.

        Each key costs a read of the database, so the number of extra ones, `spare`, is fitted. Of ten million keys, the
        nearest was among five candidates in 0.96 of the queries, and among twenty in 1.00.
        """
        return k + 4 if self._ivf is None else 2 * k + self.spare

    def save(self, path: Path, *, keyset_id: int, applied_seq: int) -> None:
        """Replace this keyset's snapshot in the directory `path`; on return it is on disk and older ones are gone.

        Edits of the index wait meanwhile, searches do not. Catch up first: a lagging process would write erased keys to
        disk.
        """

        def write(file: Path) -> IndexRecord:
            with self._lock.reading():
                _write(self._index, file)
                count = len(self)
            return IndexRecord(self.dim, self.spec, count, sha256(file))

        replace_snapshot(path, keyset_id, applied_seq, write)

    @classmethod
    def load(cls, path: Path, *, keyset_id: int, dim: int) -> tuple[KeyIndex, int]:
        """Load this keyset's snapshot from `path` with the seq of its last change.

        Raises `SnapshotRefused` on any doubt.
        """
        try:
            with locked_directory(path, fcntl.LOCK_SH):
                manifest = read_manifest(path / f"keyset-{keyset_id}.json", keyset_id, dim)
                file = path / Path(manifest["file"]).name
                if sha256(file) != manifest["sha256"]:
                    raise ValueError(f"{file.name} does not have the checksum of its manifest")
                self = cls(dim, manifest["spec"])
                self._adopt(faiss.read_index(str(file)))
            counts = {self._index.ntotal, len(self), manifest["count"]}
            if len(counts) > 1 or self._index.d != dim:
                raise ValueError(f"{file.name} does not hold the keys that its manifest counts")
            return self, int(manifest["applied_seq"])
        except _DOUBTS as doubt:
            raise SnapshotRefused(keyset_id=keyset_id, cause=describe_misread(doubt)) from doubt

    @property
    def train_size(self) -> int:
        """The number of keys to train on; more would take longer and change little."""
        return max(TRAINED_PER_LIST * self.lists, 2 * self.train_min)

    def train(self, keys: npt.NDArray[Any]) -> None:
        """Train the index on a sample of the keys [n, d], n at least `train_min`.

        To be called once, before the first add.
        """
        xb = as_vectors(keys, self.dim)
        if len(xb) < self.train_min:
            raise IndexInvariant(
                f"{self.spec} trains on its first add: {len(xb):,} of {count_of(self.train_min, 'key')}"
            )
        if not self._index.is_trained:
            self._index.train(xb)

    def _refuse_duplicates(self, ids: Ids) -> None:
        unique, counts = np.unique(ids, return_counts=True)
        twice = unique[(counts > 1) | self._present.has(unique)]
        if len(twice):
            raise IndexInvariant(
                f"keys {twice[:5].tolist()} are in it already, or came twice ({len(twice):,} in all)"
            )


def _build(dim: int, spec: str) -> tuple[Any, int]:
    if (parts := parse_spec(spec)) is None:
        raise IndexInvariant(
            f"{spec!r} is not known to remove rightly. Use {FLAT_SPEC}, RR..,IVF..,RaBitQ or [OPQ..,]IVF..,PQ.."
        )
    try:
        index = faiss.index_factory(dim, spec, faiss.METRIC_INNER_PRODUCT)
    except RuntimeError as error:
        raise IndexInvariant(f"Faiss refuses {spec!r} for width {dim} ({error}). Name another") from error
    if (ivf := faiss.try_extract_index_ivf(index)) is not None:
        ivf.set_direct_map_type(faiss.DirectMap.Hashtable)
        ivf.cp.min_points_per_centroid = 1
        ivf.cp.niter = ROUNDS
    if parts.is_pq:
        _spare_codes(faiss.downcast_index(ivf))
    if parts.is_opq:
        _spare_rotation(index)
    return index, parts.train_min(dim)


def _spare_codes(ivf: Any) -> None:
    """Leave out the steps of the training of PQ codes that take long and improve little."""
    # Polysemous training takes 1.6 s for each code and serves a filter that is not used here.
    ivf.do_polysemous_training = False
    ivf.pq.cp.max_points_per_centroid = 64
    # With fewer points than the default minimum, 39, Faiss prints a warning for each of hundreds of clusterings.
    ivf.pq.cp.min_points_per_centroid = 1


def _spare_rotation(index: Any) -> None:
    """Shorten the training of an OPQ rotation."""
    # 10 rounds take a quarter of the time of 50; the best key is in the top 20 for 0.994 of queries, not 0.998.
    opq = faiss.downcast_VectorTransform(index.chain.at(0))
    opq.niter, opq.max_train_points = 10, 64 * 256
    quiet = faiss.ProductQuantizer(opq.d_out, opq.M, 8)
    quiet.cp.min_points_per_centroid = 1
    opq.pq = quiet
    # Faiss does not own the object, so this keeps it alive.
    index.referenced_objects = [*getattr(index, "referenced_objects", []), quiet]


def _ids_in(lists: Any) -> Ids:
    sizes = [(i, size) for i in range(lists.nlist) if (size := lists.list_size(i))]
    ids = [faiss.rev_swig_ptr(lists.get_ids(i), size) for i, size in sizes]
    return np.concatenate([np.empty(0, dtype=np.int64), *ids])


def as_vectors(x: npt.NDArray[Any], dim: int) -> Vectors:
    """Give vectors as rows of 32 bits; raise `IndexInvariant` unless they are rows of `dim` finite numbers."""
    x = np.ascontiguousarray(x, dtype=np.float32)
    if x.ndim != 2 or x.shape[1] != dim or not np.isfinite(x).all():
        raise IndexInvariant(f"vectors {x.shape} must be rows of {dim} finite numbers")
    return x


def as_ids(ids: Iterable[int] | Ids) -> Ids:
    """Give ids as one row of integers; raise `IndexInvariant` where one is negative."""
    array = ids if isinstance(ids, np.ndarray) else np.array(list(ids))
    if array.size and (array.ndim != 1 or array.dtype.kind not in "iu" or array.min() < 0):
        raise IndexInvariant("ids must be one row of integers from 0 up (-1 is Faiss's 'none')")
    return np.ascontiguousarray(array, dtype=np.int64).reshape(-1)


def _write(index: Any, file: Path) -> None:
    """Write the index to a file. Raises `OSError` where the text of Faiss's error names an error of the system."""
    try:
        faiss.write_index(index, str(file))
    except RuntimeError as error:
        for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES):
            if os.strerror(number) in str(error):
                raise OSError(number, os.strerror(number), str(file)) from error
        raise


# The lock of an index: searches run beside each other, and an edit alone.


class ReadWriteLock:
    """A lock for many readers or one writer. A waiting writer keeps new readers waiting behind it."""

    def __init__(self) -> None:
        self._gate, self._left, self._readers = threading.Lock(), threading.Condition(), 0

    @contextmanager
    def reading(self) -> Iterator[None]:
        with self._gate, self._left:
            self._readers += 1
        try:
            yield
        finally:
            with self._left:
                self._readers -= 1
                self._left.notify_all()

    @contextmanager
    def writing(self) -> Iterator[None]:
        with self._gate:
            with self._left:
                self._left.wait_for(lambda: self._readers == 0)
            yield


# The ids that an index holds, as bits in pages: what an id costs does not depend on how many there are.
#
# Ids come from one sequence, so those of a keyset lie close together: eight million take eight megabytes. An
# array that is kept in order costs a copy of all of it for each key.

Ids = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_PAGE_BITS = 12
PAGE = 1 << _PAGE_BITS  # ids in a page, a byte each


def distinct(ids: Ids) -> Ids:
    """Give ids ascending and each once, by sorting them.

    `np.unique` puts integers into a hash table first, which takes eight seconds for ten million of them; this takes a
    tenth of one.
    """
    ordered = np.sort(ids)
    return ordered[np.diff(ordered, prepend=-1) != 0] if len(ordered) else ordered


class PresentIds:
    """A set of ids from 0 up. Its methods take ids in ascending order, each once."""

    def __init__(self, ids: Ids) -> None:
        self._pages: dict[int, Flags] = {}
        self._number = 0
        self.add(distinct(ids))

    def __len__(self) -> int:
        return self._number

    def has(self, ids: Ids) -> Flags:
        """Say of each of these ids whether it is present."""
        found = np.zeros(len(ids), dtype=np.bool_)
        for number, part, places in split_by_page(ids):
            if (page := self._pages.get(number)) is not None:
                found[part] = page[places]
        return found

    def add(self, ids: Ids) -> None:
        """Add ids of which none is present."""
        for number, _, places in split_by_page(ids):
            page = self._pages.get(number)
            if page is None:
                page = self._pages[number] = np.zeros(PAGE, dtype=np.bool_)
            page[places] = True
        self._number += len(ids)

    def discard(self, ids: Ids) -> None:
        """Take out ids that are all present. A page that gets empty is dropped, since ids do not come back."""
        for number, _, places in split_by_page(ids):
            page = self._pages[number]
            page[places] = False
            if not page.any():
                del self._pages[number]
        self._number -= len(ids)

    def ascending(self) -> Ids:
        """Give all ids in order; no other thread may change them meanwhile."""
        pages = [np.flatnonzero(self._pages[number]) + number * PAGE for number in sorted(self._pages)]
        return np.concatenate([np.empty(0, dtype=np.int64), *pages])


def split_by_page(ids: Ids) -> Iterator[tuple[int, slice, Ids]]:
    """Cut ascending ids by page: the number of each page, which of the ids are in it, and their places there."""
    pages = ids >> _PAGE_BITS
    starts = np.flatnonzero(np.diff(pages, prepend=-1)).tolist()
    for start, end in pairwise([*starts, len(ids)]):
        yield int(pages[start]), slice(start, end), ids[start:end] & (PAGE - 1)


class IdBits:
    """A set of ids as Faiss takes them: a bit for each id up to the largest. One thread changes it, others search."""

    def __init__(self, ids: Ids, widening: float = 1.0) -> None:
        self._bits = np.zeros(int(ids.max(initial=0)) // 4 + 1024, np.uint8)  # room for twice as many
        self.widening = widening
        self.put(ids)

    @property
    def bits(self) -> npt.NDArray[np.uint8]:
        """The bits, eight ids in a byte; an id past them is not in the set."""
        return self._bits

    def put(self, ids: Ids) -> None:
        if int(ids.max(initial=0)) // 8 >= len(self._bits):
            bits = np.zeros(int(ids.max()) // 4 + 1024, np.uint8)
            bits[: len(self._bits)] = self._bits
            self._bits = bits
        np.bitwise_or.at(self._bits, ids >> 3, (1 << (ids & 7)).astype(np.uint8))
        self.selector = faiss.IDSelectorBitmap(self._bits)


_AGAIN = "Copy the file again from where it was published, and compare their checksums."


class SealedIndex:
    """The index file of a release, whose keys are numbered 0 to n-1. Methods raise `InvalidRelease` if damaged."""

    def __init__(self, file: Path) -> None:
        try:
            self._index = faiss.read_index(str(file), faiss.IO_FLAG_MMAP_IFC)
        except (RuntimeError, MemoryError) as error:
            raise refusals.invalid_release(f"{file.name} cannot be read as a Faiss index", _AGAIN) from error
        self.name, self._numbers = file.name, None
        if isinstance(self._index, faiss.IndexIDMap):
            self._owner = self._index  # of the index in it, which would go with it
            self._numbers = faiss.vector_to_array(self._index.id_map)
            self._index = faiss.downcast_index(self._index.index)
        self.dim, self.count = int(self._index.d), int(self._index.ntotal)
        if not 0 <= self.count <= file.stat().st_size:  # memory is taken for as many as it names
            raise refusals.invalid_release(
                f"{self.name} is too short for the {self.count} keys that it names", _AGAIN
            )
        ivf = faiss.try_extract_index_ivf(self._index)
        self._ivf: Any = None if ivf is None else faiss.downcast_index(ivf)
        if "FastScan" in type(self._ivf or self._index).__name__:
            raise refusals.invalid_release(
                f"{self.name} is a FastScan index, whose codes lie transposed", _REMEDY
            )

    @property
    def kind(self) -> str:
        """The name of the index's class in Faiss."""
        return type(self._index).__name__ if self._ivf is None else type(self._ivf).__name__

    def require_numbered(self) -> None:
        """Raise `InvalidRelease` unless each number from 0 to n-1 has exactly one key."""
        seen = np.zeros(self.count, bool)
        for numbers in self._numbers_by_list():
            if len(numbers) and (numbers.min() < 0 or numbers.max() >= self.count):
                raise refusals.invalid_release(
                    f"{self.name} has keys of other numbers than 0 to {self.count - 1}", _AGAIN
                )
            seen[numbers] = True
        if not seen.all():
            raise refusals.invalid_release(
                f"{self.name} has two keys of one number, and none of {seen.argmin()}", _AGAIN
            )

    def blocks(self, size: int, start: int = 0) -> Iterator[tuple[Ids, Vectors]]:
        """Yield blocks of numbers [n] and keys as unit vectors [n, d], from the `start`th key of the file on."""
        source = self._of_lists(size, start) if self._ivf is not None else self._in_order(size, start)
        for numbers, keys in source:
            lengths = np.linalg.norm(keys, axis=1, keepdims=True)
            if not np.isfinite(lengths).all() or not (lengths > 0).all():
                raise refusals.invalid_release(f"{self.name} has keys without a direction", _AGAIN)
            yield self._mapped_numbers(numbers), keys / lengths

    def _mapped_numbers(self, numbers: Ids) -> Ids:
        return numbers if self._numbers is None else self._numbers[numbers]

    def _numbers_by_list(self) -> Iterator[Ids]:
        if self._ivf is None:
            yield self._mapped_numbers(np.arange(self.count, dtype=np.int64))
            return
        for number in range(self._ivf.nlist):
            yield self._mapped_numbers(_ids_of(self._ivf.invlists, number))

    def _in_order(self, size: int, start: int) -> Iterator[tuple[Ids, Vectors]]:
        for first in range(start, self.count, size):
            many = min(size, self.count - first)
            try:
                keys = self._index.reconstruct_n(first, many)
            except RuntimeError as error:
                raise refusals.invalid_release(
                    f"{self.name}, a {self.kind}, does not give its keys back", _REMEDY
                ) from error
            yield np.arange(first, first + many, dtype=np.int64), keys

    def _of_lists(self, size: int, start: int) -> Iterator[tuple[Ids, Vectors]]:
        held: list[tuple[Ids, npt.NDArray[np.uint8]]] = []
        many = 0
        for numbers, codes in self._code_pieces(size, start):
            held.append((numbers, codes))
            many += len(numbers)
            if many >= size:
                yield self._decode_keys(held)
                held, many = [], 0
        if held:
            yield self._decode_keys(held)

    def _code_pieces(self, size: int, start: int) -> Iterator[tuple[Ids, npt.NDArray[np.uint8]]]:
        """Yield the numbers and codes of each list, at most `size` at once; each code begins with its list's number."""
        lists, width, passed = self._ivf.invlists, self._ivf.code_size, 0
        for number in range(self._ivf.nlist):
            length = lists.list_size(number)
            at, passed = max(0, start - passed), passed + length
            if at >= length:
                continue
            ids = _ids_of(lists, number)
            codes = faiss.rev_swig_ptr(lists.get_codes(number), length * width).reshape(length, width)
            prefix = np.frombuffer(number.to_bytes(8, "little"), np.uint8)[: self._ivf.coarse_code_size()]
            for first in range(at, length, size):
                some = codes[first : first + size]
                yield (
                    ids[first : first + size],
                    np.hstack([np.broadcast_to(prefix, (len(some), len(prefix))), some]),
                )

    def _decode_keys(self, held: list[tuple[Ids, npt.NDArray[np.uint8]]]) -> tuple[Ids, Vectors]:
        numbers, codes = (np.concatenate(parts) for parts in zip(*held, strict=True))
        try:
            return numbers, self._index.sa_decode(np.ascontiguousarray(codes))
        except (RuntimeError, AssertionError) as error:
            raise refusals.invalid_release(
                f"{self.name}, a {self.kind}, does not give its keys back", _REMEDY
            ) from error


_REMEDY = "Flat, PQ, SQ and RaBitQ codes are read, in inverted lists and behind a rotation or not."


def _ids_of(lists: Any, number: int) -> Ids:
    length = lists.list_size(number)
    ids: Ids = faiss.rev_swig_ptr(lists.get_ids(number), length).copy() if length else np.empty(0, np.int64)
    return ids
