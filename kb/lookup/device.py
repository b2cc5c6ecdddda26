"""Device: exact search of keys by torch, on a CUDA device where there is one, else in main memory.

A key has 16 bits for each number, as the database stores it, so nothing is lost. A search multiplies its queries with
a block of rows at a time, in 32 bits, so that the scores take bounded memory and rank as exact ones do.

A delete is a flag in a mask. It also zeroes the row, since an erased key must not stay in memory, and frees it for the
next key. Torch keeps the device's memory that is freed, so copies that a search or a write makes there are zeroed
after it, and the rows of an index when it is dropped. Where no row is free, the capacity doubles by another block:
nothing is copied. What exceeds the memory that an index may take on the device stays in main memory. Nothing is written
to disk: a process reads the keys from the database when it opens the index, and again where the device fails.

Only this file of `kb` imports torch, and only once it is needed.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from sqlalchemy.orm import Session

from colmlm.kb.errors import CandidatesUnavailable, IndexInvariant, count_of
from colmlm.kb.keys import activation
from colmlm.kb.keys.keycopy import indexed_keys
from colmlm.kb.keys.keysets import AUTO_SPEC, Ids, Vectors
from colmlm.kb.keys.records import IndexFit, KeysetHead
from colmlm.kb.log import audit
from colmlm.kb.lookup.in_process import OnKeys
from colmlm.kb.lookup.index import PAGE, IdBits, ReadWriteLock, as_ids, as_vectors, distinct, split_by_page
from colmlm.kb.lookup.records import IndexMemory
from colmlm.kb.lookup.specs import FLAT_UP_TO, TORCH_SPEC
from colmlm.kb.store.settings import Settings

if TYPE_CHECKING:
    import torch

CUDA, MAIN_MEMORY = "cuda", "cpu"
QUERIES_AT_ONCE = 64
# Rows that are multiplied at once. In main memory they are made 32 bits wide for it, which the cache should hold; on a
# device each product is a call, and its scores take 128 MB.
ROWS_AT_ONCE = {MAIN_MEMORY: 4_096, CUDA: 1 << 18}
LEAST_ROWS = 1_024  # of a block, and to multiply at once where the device has little memory left
SPARE = 4  # keys that a search fetches in addition, for deleted ones, as from an exact index of Faiss
_ROW_BYTES = 9  # of a row besides its key: the id, and the flag
_DRIVERS = (Path("/dev/nvidiactl"), Path("/dev/dxg"))  # on Linux, and on Linux within Windows

_REMEDY = "Try again. What the device has no room for is in main memory after a restart."

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Block:
    """Rows in one memory: `keys` [n, d] of 16 bits, `ids` [n], and which are `dead`. The first `used` are in use."""

    start: int
    keys: torch.Tensor
    ids: torch.Tensor
    dead: torch.Tensor
    used: int = 0

    @property
    def rows(self) -> int:
        return len(self.ids)

    @property
    def device(self) -> str:
        return str(self.keys.device.type)


class DeviceIndex:
    """An exact index of keys by id, for one keyset, on a `device` as torch names it.

    It takes at most `most_bytes` there (None: no bound), and main memory beyond. `capacity` is the number of keys that
    it is to have room for at first. It `is_spilled` once keys had no room on the device. Threads may share it: searches
    run in parallel, add and remove run alone.

    Where the device fails, a call raises `CandidatesUnavailable`. It then `is_lost`: it holds nothing more, and raises
    that for every call. Where the device only has too little memory for a search, the index is not lost.
    """

    def __init__(self, dim: int, device: str, *, capacity: int = 0, most_bytes: int | None = None) -> None:
        self.dim, self.device, self.most_bytes = dim, device, most_bytes
        self._capacity, self._lock, self._rows = capacity, ReadWriteLock(), RowsOfIds()
        self._blocks: list[_Block] = []
        self._free: list[int] = []
        self.is_spilled = self.is_lost = False
        weakref.finalize(self, _drop_blocks, self._blocks).atexit = False

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def ids(self) -> Ids:
        """Give the ids present at this instant, ascending."""
        with self._lock.reading():
            return self._rows.ascending()

    @property
    def capacity(self) -> int:
        """The number of keys that it holds without taking more memory."""
        return sum(block.rows for block in self._blocks)

    @property
    def memory(self) -> IndexMemory:
        """The number of keys that it holds and has room for, and the bytes on the device and in main memory."""
        blocks = tuple(self._blocks)
        taken = [(block.device != MAIN_MEMORY, block.rows * self.row_bytes) for block in blocks]
        return IndexMemory(
            self.device,
            len(self),
            sum(block.rows for block in blocks),
            sum(size for is_on_device, size in taken if is_on_device),
            sum(size for is_on_device, size in taken if not is_on_device),
        )

    @property
    def row_bytes(self) -> int:
        return row_bytes(self.dim)

    def add(self, ids: Iterable[int] | Ids, keys: npt.NDArray[Any]) -> None:
        """Add keys [n, d] under ids [n], all or none; raise `IndexInvariant` where one is refused.

        It refuses ids that are given twice, present or negative, keys of another width, and NaN or infinity.
        """
        ids_n, xb = as_ids(ids), as_vectors(keys, self.dim)
        if len(ids_n) != len(xb):
            raise IndexInvariant(f"{count_of(len(ids_n), 'id')} came with {count_of(len(xb), 'key')}")
        order = np.argsort(ids_n, kind="stable")
        ids_n, xb = ids_n[order], xb[order]
        with self._changing():
            if (np.diff(ids_n) == 0).any() or (self._rows.of(ids_n) >= 0).any():
                raise IndexInvariant("keys are in it already, or came twice")
            rows = self._take_rows(len(ids_n))
            for block, part, places in self._split_by_block(rows):
                _write(block, places, xb[part], ids_n[part])
            self._rows.put(ids_n, rows)

    def remove(self, ids: Iterable[int] | Ids) -> int:
        """Remove the keys of these ids and give how many were present; unknown ids are ignored."""
        wanted = distinct(as_ids(ids))
        with self._changing():
            rows = self._rows.of(wanted)
            present, rows = wanted[rows >= 0], rows[rows >= 0]
            for block, _, places in self._split_by_block(rows):
                _erase(block, places)
            self._rows.drop(present)
            self._free += rows.tolist()
            return len(present)

    def missing(self, ids: Iterable[int] | Ids) -> Ids:
        """Give those of these ids that are not in the index, ascending and each once."""
        wanted = distinct(as_ids(ids))
        return wanted[self._rows.of(wanted) < 0]

    def search(self, queries_BD: npt.NDArray[Any], k: int, only: IdBits | None = None) -> tuple[Vectors, Ids]:
        """Find the k keys of largest inner product for each query: scores D [B, k] and ids I [B, k], best first.

        Where fewer are found the rest has id -1 and score -inf. Ids that are not in `only` are passed over.
        """
        xq = as_vectors(queries_BD, self.dim)
        D, I = np.full((len(xq), k), -np.inf, np.float32), np.full((len(xq), k), -1, np.int64)  # noqa: E741
        try:
            with self._lock.reading():
                self._require_not_lost()
                for start in range(0, len(xq), QUERIES_AT_ONCE):
                    some = slice(start, start + QUERIES_AT_ONCE)
                    for block in self._blocks if k > 0 else ():
                        _merge_into_best(D[some], I[some], *_search_block(block, xq[some], k, only))
        except RuntimeError as error:
            if self.device == MAIN_MEMORY:
                raise
            if not _is_out_of_memory(error):
                with self._lock.writing():
                    self._drop_all_keys()
            raise self._unavailable(error) from error
        I[np.isneginf(D)] = -1
        return D, I

    def over_fetch(self, k: int) -> int:
        """Give how many keys to ask for so that the k best are among them after a few deletions."""
        return k + SPARE

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Let one thread change the index alone. If it fails halfway all keys are dropped, lest a removed one stays."""
        with self._lock.writing():
            self._require_not_lost()
            try:
                yield
            except RuntimeError as error:
                self._drop_all_keys()
                raise self._unavailable(error) from error

    def _require_not_lost(self) -> None:
        if self.is_lost:
            raise self._unavailable("it failed, and the program reads the keys again")

    def _drop_all_keys(self) -> None:
        self.is_lost, self._rows, self._free = True, RowsOfIds(), []
        _drop_blocks(self._blocks)

    def _unavailable(self, cause: object) -> CandidatesUnavailable:
        said = str(cause).partition("\n")[0]
        return CandidatesUnavailable(f"the device {self.device}", said, by="Torch", remedy=_REMEDY)

    def _take_rows(self, number: int) -> npt.NDArray[np.int64]:
        """Take rows for `number` keys, freed ones first, then unused ones; give their positions [number]."""
        reused = [self._free.pop() for _ in range(min(number, len(self._free)))]
        taken, wanted = [np.array(reused, np.int64)], number - len(reused)
        while wanted:
            block = self._blocks[-1] if self._blocks else None
            if block is None or block.used == block.rows:
                block = self._grow(wanted)
            fresh = min(wanted, block.rows - block.used)
            taken.append(np.arange(block.used, block.used + fresh) + block.start)
            block.used, wanted = block.used + fresh, wanted - fresh
        return np.concatenate(taken)

    def _grow(self, wanted: int) -> _Block:
        """Add a block for at least `wanted` rows: the first has the capacity asked for, later ones double it."""
        start = self.capacity
        rows = max(start or self._capacity, wanted, LEAST_ROWS)
        fitting = rows if self.most_bytes is None else max(0, self.most_bytes // self.row_bytes - start)
        is_fitting = fitting >= wanted
        if is_fitting:
            rows = min(rows, fitting)
        block = _new_block(start, rows, self.dim, self.device if is_fitting else MAIN_MEMORY)
        if not is_fitting or block.device != self.device.partition(":")[0]:
            self.is_spilled = True
            _log.warning("the device has no room for more than %d keys; the others are in main memory", start)
        self._blocks.append(block)
        return block

    def _split_by_block(
        self, rows: npt.NDArray[np.int64]
    ) -> Iterator[tuple[_Block, npt.NDArray[Any], npt.NDArray[Any]]]:
        """Yield each block with some of these rows, which of the rows are in it, and their places in it."""
        for block in self._blocks:
            part = np.flatnonzero((rows >= block.start) & (rows < block.start + block.rows))
            if len(part):
                yield block, part, rows[part] - block.start


def _write(block: _Block, places: npt.NDArray[Any], keys: Vectors, ids: Ids) -> None:
    """Write keys and ids to these places of a block. The keys' copy on the device is zeroed: torch keeps its memory."""
    import torch

    device = block.keys.device
    at = torch.from_numpy(places).to(device)
    copied = torch.from_numpy(keys).half().to(device)
    block.keys[at] = copied
    copied.zero_()
    block.ids[at] = torch.from_numpy(ids).to(device)
    block.dead[at] = False


def _erase(block: _Block, places: npt.NDArray[Any]) -> None:
    """Mask these places of a block, zero their keys and unset their ids."""
    import torch

    at = torch.from_numpy(places).to(block.keys.device)
    block.dead[at], block.ids[at], block.keys[at] = True, -1, 0


def _drop_blocks(blocks: list[_Block]) -> None:
    """Zero the keys of blocks and give their memory back, which torch would keep as it is."""
    if not blocks:
        return
    import torch

    is_on_cuda = any(block.device == CUDA for block in blocks)
    with suppress(RuntimeError):  # of a device that failed
        for block in blocks:
            block.keys[: block.used].zero_()
    blocks.clear()
    with suppress(RuntimeError):
        if is_on_cuda:
            torch.cuda.empty_cache()


def _is_out_of_memory(error: RuntimeError) -> bool:
    import torch

    return isinstance(error, torch.OutOfMemoryError)


def row_bytes(dim: int) -> int:
    """Give the bytes that a key of this width takes."""
    return 2 * dim + _ROW_BYTES


def _new_block(start: int, rows: int, dim: int, device: str) -> _Block:
    """Take the memory of a block on the device, or main memory where the device has too little."""
    import torch

    def take(where: str) -> _Block:
        return _Block(
            start,
            torch.zeros((rows, dim), dtype=torch.float16, device=where),
            torch.full((rows,), -1, dtype=torch.int64, device=where),
            torch.ones(rows, dtype=torch.bool, device=where),
        )

    try:
        return take(device)
    except torch.OutOfMemoryError:  # other programs took what was free
        return take(MAIN_MEMORY)


def _search_block(block: _Block, xq: Vectors, k: int, only: IdBits | None) -> tuple[Vectors, Ids]:
    """Find the k best of a block's keys, or all where there are fewer: scores and ids, best first.

    Where the device has too little memory for it, fewer rows are multiplied at once.
    """
    import torch

    at_once = ROWS_AT_ONCE[CUDA if block.device == CUDA else MAIN_MEMORY]
    while True:
        try:
            return search_rows(block, xq, k, only, at_once)
        except torch.OutOfMemoryError:
            if at_once <= LEAST_ROWS:
                raise
        at_once = max(LEAST_ROWS, at_once // 16)


def search_rows(block: _Block, xq: Vectors, k: int, only: IdBits | None, at_once: int) -> tuple[Vectors, Ids]:
    """Find the k best of a block's keys by multiplying so many rows `at_once`."""
    import torch

    queries = torch.from_numpy(xq).to(block.keys.device)
    bits = None if only is None else torch.from_numpy(only.bits).to(block.keys.device)
    best = queries.new_empty((len(queries), 0))
    found = torch.empty((len(queries), 0), dtype=torch.int64, device=block.keys.device)
    for scores, ids, dead in _score_rows(block, queries, at_once):
        scores.masked_fill_(dead if bits is None else dead | ~_have_bit_set(bits, ids), -torch.inf)
        near, at = scores.topk(min(k, len(ids)))
        best, found = torch.cat([best, near], 1), torch.cat([found, ids[at]], 1)
        if best.shape[1] > k:
            best, at = best.topk(k)
            found = found.gather(1, at)
    return best.cpu().numpy(), found.cpu().numpy()


def _score_rows(
    block: _Block, queries: torch.Tensor, at_once: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Yield the scores [B, n] of a block's rows, `at_once` rows at a time, with their ids [n] and dead flags [n]."""
    import torch

    # Products of 16 bits with sums of 32 are new in torch 2.8. Without them, as in main memory, keys are made wide.
    is_mixed = block.device == CUDA and hasattr(torch.ops.aten.mm, "dtype")
    wide = None if is_mixed else queries.new_empty((min(at_once, block.used), queries.shape[1]))
    halves, scale = split_queries(queries) if is_mixed else (queries, None)
    try:
        for start in range(0, block.used, at_once):
            some = slice(start, min(start + at_once, block.used))
            keys = block.keys[some]
            if wide is None:
                scores = torch.mm(halves, keys.T, out_dtype=torch.float32).view(2, len(queries), -1).sum(0)
                scores *= scale
            else:
                scores = halves @ wide[: len(keys)].copy_(keys).T
            yield scores, block.ids[some], block.dead[some]
    finally:
        if wide is not None:
            wide.zero_()


def split_queries(queries_BD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Split queries into two halves of 16 bits [2B, D], and a scale [B, 1] by which to multiply their summed scores.

    The scaled sum of the halves is the query but for a ten-millionth. So the device multiplies numbers of 16 bits, and
    the scores do not contain the query's rounding.
    """
    import torch

    scale = queries_BD.abs().amax(1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)
    scaled = queries_BD / scale
    high = scaled.half()
    return torch.cat([high, (scaled - high.float()).half()]), scale


def _have_bit_set(bits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Say of each id whether its bit is set; an id past the end of the bits has none."""
    byte = ids >> 3
    known = bits[byte.clamp(0, len(bits) - 1)] >> (ids & 7).to(bits.dtype) & 1
    return known.bool() & (byte < len(bits))


def _merge_into_best(D: Vectors, I: Ids, scores: Vectors, ids: Ids) -> None:  # noqa: E741
    """Merge these scores and ids into the best ones found before, D and I [B, k], in place."""
    all_D, all_I = np.concatenate([D, scores], 1), np.concatenate([I, ids], 1)
    order = np.argsort(-all_D, axis=1, kind="stable")[:, : D.shape[1]]
    D[:], I[:] = np.take_along_axis(all_D, order, 1), np.take_along_axis(all_I, order, 1)


class RowsOfIds:
    """The row in an index of each key, by the key's id. Its methods take ids in ascending order, each once."""

    def __init__(self) -> None:
        self._pages: dict[int, npt.NDArray[np.int32]] = {}
        self._number = 0

    def __len__(self) -> int:
        return self._number

    def of(self, ids: Ids) -> npt.NDArray[np.int64]:
        """Give the row of each of these ids; -1 where there is none."""
        rows = np.full(len(ids), -1, np.int64)
        for number, part, places in split_by_page(ids):
            if (page := self._pages.get(number)) is not None:
                rows[part] = page[places]
        return rows

    def put(self, ids: Ids, rows: npt.NDArray[np.int64]) -> None:
        """Store the rows [n] of these ids [n], which have none yet."""
        for number, part, places in split_by_page(ids):
            page = self._pages.get(number)
            if page is None:
                page = self._pages[number] = np.full(PAGE, -1, np.int32)
            page[places] = rows[part]
        self._number += len(ids)

    def drop(self, ids: Ids) -> None:
        """Remove ids that all have a row, to free those rows. A page that gets empty is dropped."""
        for number, _, places in split_by_page(ids):
            page = self._pages[number]
            page[places] = -1
            if (page < 0).all():
                del self._pages[number]
        self._number -= len(ids)

    def ascending(self) -> Ids:
        """Give all ids in order; no other thread may change them meanwhile."""
        pages = [np.flatnonzero(self._pages[number] >= 0) + number * PAGE for number in sorted(self._pages)]
        return np.concatenate([np.empty(0, dtype=np.int64), *pages])


@dataclass(slots=True)
class DeviceCandidates:
    """An exact index of torch with every change up to `applied_seq` applied, and perhaps later ones.

    Where other processes may search the same keyset with Faiss, it keeps the `fit` of their indexes.
    """

    index: DeviceIndex
    applied_seq: int
    fit: IndexFit = field(default_factory=lambda: IndexFit(TORCH_SPEC, 0, 0))

    @property
    def is_lost(self) -> bool:
        return self.index.is_lost

    @property
    def ids(self) -> Ids:
        return self.index.ids

    @property
    def is_estimating(self) -> bool:
        return False

    @property
    def num_twice(self) -> int:
        return 0

    def __len__(self) -> int:
        return len(self.index)

    def search(self, queries_BD: npt.NDArray[Any], k: int) -> tuple[Vectors, Ids]:
        return self.index.search(queries_BD, k)

    def over_fetch(self, k: int) -> int:
        return self.index.over_fetch(k)

    def missing(self, ids: Iterable[int]) -> Ids:
        return self.index.missing(ids)

    def put(self, ids: Ids, keys: Vectors) -> None:
        self.index.add(ids, keys)

    def remove(self, ids: Iterable[int]) -> None:
        self.index.remove(ids)

    def advance(self, seq: int) -> None:
        self.applied_seq = seq

    def adopt_fit(self, fit: IndexFit | None) -> None:
        """Keep this fit, which the processes that search the keyset with Faiss use; None changes nothing."""
        self.fit = fit or self.fit

    def has_outgrown(self, index_spec: str) -> bool:
        """Say whether Faiss should search the keyset: its spec is "auto", and the device has no room for its keys."""
        return index_spec == AUTO_SPEC and self.index.is_spilled


# Choosing: torch searches a keyset that names it, and one that leaves the choice where a device has room for its keys.


@dataclass(frozen=True, slots=True)
class DevicePlace:
    """A device, and how many bytes an index may take there; None: any number."""

    device: str
    most_bytes: int | None = None


def choose_device(session: Session, keyset: KeysetHead, settings: Settings) -> DevicePlace | None:
    """Choose the device on which torch searches this keyset; None where Faiss or Milvus searches it.

    A keyset with the spec "torch" is in main memory where no device may be used. One with the spec "auto" is searched
    by Faiss up to `FLAT_UP_TO` keys, for which Faiss is exact, and where the device has no room for all of its keys.
    """
    if keyset.index_spec == TORCH_SPEC:
        return find_cuda(settings) or DevicePlace(MAIN_MEMORY)
    if not may_choose_device(session, keyset, settings) or (place := find_cuda(settings)) is None:
        return None
    num_keys, room = activation.num_indexed_keys(session, keyset.keyset_id), place.most_bytes
    return place if room is None or num_keys * row_bytes(keyset.dim) <= room else None


def may_choose_device(session: Session, keyset: KeysetHead, settings: Settings) -> bool:
    """Say, without using a device, whether torch searches this keyset, or would if a device has room for its keys."""
    if keyset.index_spec != AUTO_SPEC or not may_use_cuda(settings):
        return keyset.index_spec == TORCH_SPEC
    return activation.num_indexed_keys(session, keyset.keyset_id) > FLAT_UP_TO


def may_use_cuda(settings: Settings) -> bool:
    """Say whether there is a CUDA device and keys may be on it, without using it: a process may fork after this."""
    if settings.index_device_percent == 0 or not any(driver.exists() for driver in _DRIVERS):
        return False
    import torch

    return bool(torch.cuda.device_count())


def find_cuda(settings: Settings) -> DevicePlace | None:
    """Give the CUDA device, and the share of its free memory that the settings grant; None where none can be used."""
    if not may_use_cuda(settings):
        return None
    import torch

    try:
        torch.cuda.empty_cache()  # what an index had that is closed counts as free
        torch.zeros(1, device=CUDA).cpu()  # a driver, or torch's programs, may be too old for it
        free, _ = torch.cuda.mem_get_info()
    except RuntimeError as error:
        _log.warning("the CUDA device cannot be used: %s", str(error).partition("\n")[0])
        return None
    return DevicePlace(CUDA, free * settings.index_device_percent // 100)


def read_to_device(
    session: Session, keyset: KeysetHead, place: DevicePlace, on_keys: OnKeys | None = None
) -> DeviceCandidates:
    """Read all keys of a keyset into an index on a device; `on_keys` gets the number of keys read and that of all."""
    head = audit.head_seq(session)  # before the keys: what is committed in between is applied again later
    num_keys = activation.num_indexed_keys(session, keyset.keyset_id)
    capacity = num_keys + num_keys // 16  # room for edits before it doubles
    index = DeviceIndex(keyset.dim, place.device, capacity=capacity, most_bytes=place.most_bytes)
    report = on_keys or (lambda done, total: None)
    report(0, num_keys)
    for ids, keys in indexed_keys(session, keyset.keyset_id, keyset.dim):
        index.add(ids, keys)
        report(len(index), max(num_keys, len(index)))
    found = DeviceCandidates(index, head)
    if keyset.index_spec != TORCH_SPEC:
        found.adopt_fit(keyset.index_fit)
    return found
