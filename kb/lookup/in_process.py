"""InProcess: candidates from a Faiss index in this process, which is built from the database and fitted to its keys.

Fitting measures which codes tell the keys apart, how many lists a search must read, and how many candidates it must
score. The measure is the share of queries whose exact nearest key is among the candidates that a lookup scores. The
queries are keys moved a long way, half of it towards another key: as near to keys as questions are. Questions that
people asked needed up to twice as many lists, so the gate measures with questions too, and may raise the number.
"""

from __future__ import annotations

import math
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence, Sized
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import psycopg
from sqlalchemy.orm import Session

from colmlm.kb.errors import IndexInvariant
from colmlm.kb.keys import activation, keysets
from colmlm.kb.keys.keycopy import indexed_keys
from colmlm.kb.keys.keysets import AUTO_SPEC, Ids, Vectors
from colmlm.kb.keys.records import RECALL, IndexFit, KeysetHead
from colmlm.kb.log import audit
from colmlm.kb.lookup.index import IdBits, KeyIndex
from colmlm.kb.lookup.specs import (
    FLAT_SPEC,
    TORCH_SPEC,
    bits_spec,
    collection_of,
    default_spec,
    paper_spec,
    parse_spec,
)

MEASURED = 500  # queries
TIE = 1e-6  # keys whose scores differ by no more are equally near
# By how much of its length a key is moved to be a query. The first gives queries as near to keys as questions are.
# Codes are compared by queries further off, since those tell poor codes from good ones among few keys as well.
_MOVED, _MOVED_FAR = 0.8, 1.0
_COMPARED = 10_000  # keys that codes are compared on
# The share of nearest keys from which codes of a bit for each number are taken. At width 576 it was 0.90 to 0.98, and
# above 0.99 for queries moved less among 200,000; at width 128 it was 0.6, among any number of keys.
_LEAST_RECALL_OF_BITS = 0.8
_SLACK = 0.005  # below what reading all lists finds, where the codes and not the lists are the limit
_SPARE = (8, 18, 38, 78)  # candidates to spare that are tried where those of the index are too few
_KEYS_AT_ONCE = 20_000  # that are compared with all queries: products of few rows or columns take longer


class NearestKeys:
    """Finds the exact nearest keys of some queries among keys that it gets batch by batch. Ties are all kept."""

    def __init__(self, queries: Vectors) -> None:
        self.queries = queries
        self._best = np.full(len(queries), -np.inf, np.float32)
        self._seen: list[tuple[Ids, Ids, Vectors]] = []

    def compare_with(self, ids: Ids, keys: Vectors) -> None:
        """Compare the queries with these keys [n, d] of these ids [n]."""
        for start in range(0, len(keys), _KEYS_AT_ONCE):
            scores = self.queries @ keys[start : start + _KEYS_AT_ONCE].T
            most = scores.max(axis=1, initial=-np.inf)
            self._best = np.maximum(self._best, most)
            near = np.flatnonzero(most >= self._best - TIE)  # few, once most keys were seen
            scores = scores[near]
            rows, columns = np.nonzero(scores >= self._best[near, None] - TIE)
            self._seen.append((near[rows], ids[start + columns], scores[rows, columns]))

    def recall(self, index: KeyIndex) -> float:
        """Give the share of queries that have one of their nearest keys among the candidates of a lookup."""
        ranks = self.ranks(index, candidates := index.over_fetch(1))
        return float((ranks < candidates).mean()) if len(ranks) else 1.0

    def ranks(self, index: KeyIndex, candidates: int) -> Ids:
        """Give the rank [B], from 0, of each query's nearest key among its `candidates`; if not there, their number."""
        places = np.full(len(self.queries), candidates)
        _, found = index.search(self.queries, candidates)
        for rows, ids, scores in self._seen:
            near = scores >= self._best[rows] - TIE
            rows = rows[near]
            is_there = found[rows] == ids[near, None]
            np.minimum.at(places, rows, np.where(is_there.any(axis=1), is_there.argmax(axis=1), candidates))
        return places


def split_sample(sample: Vectors, spare: int) -> tuple[Vectors, Vectors]:
    """Split a sample of keys [n, d] into queries and keys to train an index on.

    Keys that an index was trained on lie nearer to its centroids, so they are no fair queries. `spare` is how many keys
    training can do without. If these are fewer than the queries, the index is trained on the queries too.
    """
    mixed = sample[np.random.default_rng(0).permutation(len(sample))]
    held_out = mixed[:MEASURED]
    return held_out, mixed[len(held_out) :] if spare >= len(held_out) else sample


def perturb_keys(keys: Vectors, by: float = _MOVED) -> Vectors:
    """Make queries of keys [n, d]: move each key `by` this length, half towards another key, half at random."""
    random = np.random.default_rng(0)
    others = (np.arange(len(keys)) + random.integers(1, max(2, len(keys)), size=len(keys))) % max(
        1, len(keys)
    )
    way = _units(keys[others] - keys) + _units(random.standard_normal(keys.shape))
    return _units(keys + by * _units(way)).astype(np.float32)


def _units(rows: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
    units: npt.NDArray[np.floating] = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    return units


def fitting_spec(sample: Vectors, num_keys: int) -> str:
    """Choose the spec for `num_keys` keys: Flat for few, else one-bit codes if a sample [n, d] allows, or else PQ."""
    dim = sample.shape[1]
    if default_spec(num_keys, dim) == FLAT_SPEC:
        return FLAT_SPEC
    keys = sample[np.random.default_rng(0).permutation(len(sample))[:_COMPARED]]
    index = KeyIndex(dim, f"RR{dim},IVF{max(1, len(keys) // 256)},RaBitQ")
    index.lists_read = index.lists
    ids, nearest = np.arange(len(keys)), NearestKeys(perturb_keys(keys[:MEASURED], _MOVED_FAR))
    index.add(ids, keys)
    nearest.compare_with(ids, keys)
    fits = nearest.recall(index) >= _LEAST_RECALL_OF_BITS
    return bits_spec(num_keys, dim) if fits else paper_spec(num_keys, dim)


def fit_lists(index: KeyIndex, nearest: NearestKeys, goal: float) -> float:
    """Set `index.lists_read` to the fewest lists whose recall (0 to 1) surely reaches the `goal`, and give that recall.

    Where inexact codes limit the recall, `index.spare` is raised too, so that more candidates are scored. If that does
    not suffice either, it takes the fewest lists whose recall is nearly that of all lists.
    """
    steps = sorted({min(index.lists, round(4 * 1.2**step)) for step in range(64)})
    wanted = goal + math.sqrt(goal * (1 - goal) / max(1, len(nearest.queries)))
    index.lists_read = index.lists
    at_most = _fit_spare(index, nearest, wanted + _SLACK)
    return _read_least(index, nearest, steps, min(wanted, at_most - _SLACK))


def _fit_spare(index: KeyIndex, nearest: NearestKeys, wanted: float) -> float:
    """Set `index.spare` to the fewest extra candidates with which a lookup has the recall `wanted`; give its recall.

    Where no number reaches it, the fewest with which the recall is nearly that of the largest number.
    """
    choice = [index.spare, *(spare for spare in _SPARE if spare > index.spare)]
    ranks = nearest.ranks(index, 2 + choice[-1])
    found = [float((ranks < 2 + spare).mean()) if len(ranks) else 1.0 for spare in choice]
    enough = wanted if found[-1] >= wanted else found[-1] - _SLACK
    index.spare, at_most = next(one for one in zip(choice, found, strict=True) if one[1] >= enough)
    return at_most


def _read_least(index: KeyIndex, nearest: NearestKeys, steps: Sequence[int], wanted: float) -> float:
    """Set `index.lists_read` to the least of `steps` that has the recall `wanted`, else the last; give its recall."""

    def recall(step: int) -> float:
        index.lists_read = steps[step]
        return nearest.recall(index)

    return recall(bisect_left(range(len(steps) - 1), wanted, key=recall))


OnKeys = Callable[[int, int], None]


@dataclass(slots=True)
class FaissCandidates:
    """A Faiss index with every change up to `applied_seq` applied, and perhaps later ones.

    `recall` is the share of nearest keys that it found when it was fitted; None where that is unknown.
    """

    index: KeyIndex
    applied_seq: int
    recall: float | None = None

    @property
    def is_lost(self) -> bool:
        return False

    @property
    def ids(self) -> Ids:
        return self.index.ids

    @property
    def fit(self) -> IndexFit:
        index = self.index
        spare = index.spare if index.lists else None
        return IndexFit(index.spec, index.lists, index.lists_read, self.recall, spare)

    @property
    def is_estimating(self) -> bool:
        return self.index.lists > 0

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
        if len(self.index) == 0:
            self.index = build_index(self.index.dim, self.index.spec, ids, keys)
        else:
            self.index.add(ids, keys)

    def remove(self, ids: Iterable[int]) -> None:
        self.index.remove(ids)

    def advance(self, seq: int) -> None:
        self.applied_seq = seq

    def adopt_fit(self, fit: IndexFit | None) -> None:
        """Read as many lists and score as many candidates as this fit says, if its spec and lists are this index's."""
        if fit is not None and (fit.spec, fit.lists) == (self.index.spec, self.index.lists):
            self.index.lists_read, self.recall = fit.lists_read, fit.recall
            if fit.spare is not None:
                self.index.spare = fit.spare

    def has_outgrown(self, index_spec: str) -> bool:
        """Say whether the index is still exact although half its keys would suffice to train the spec that is due."""
        half = len(self.index) // 2
        due = parse_spec(default_spec(half, self.index.dim) if index_spec == AUTO_SPEC else index_spec)
        return (
            self.index.spec == FLAT_SPEC
            and due is not None
            and due.lists > 0
            and due.train_min(self.index.dim) <= half
        )


def require_spec(dim: int, spec: str) -> None:
    """Raise `IndexInvariant` where a keyset of this width can't have this spec."""
    if spec != TORCH_SPEC and collection_of(spec) is None:
        KeyIndex(dim, spec)


def build_index(dim: int, spec: str, ids: Ids, keys: Vectors) -> KeyIndex:
    """Build an index of all these keys. Where they are too few to train its spec, the index is exact."""
    index = KeyIndex(dim, spec)
    if len(ids):
        try:
            index.add(ids, keys)
        except IndexInvariant:
            if spec == FLAT_SPEC:
                raise
            index = KeyIndex(dim, FLAT_SPEC)
            index.add(ids, keys)
    return index


def build_all(
    session: Session, keyset: KeysetHead, on_keys: OnKeys | None = None, goal: float = RECALL
) -> FaissCandidates:
    """Build the index of a keyset from the database alone, a batch of keys at a time, and fit it to its keys.

    Lookups are to find this share, `goal`, of the nearest keys.

    Once the index is trained, `on_keys` is called with the number of keys added and that of all keys.
    """
    head = audit.head_seq(
        session
    )  # read before the keys: what is committed in between is applied again later
    num_keys = activation.num_indexed_keys(session, keyset.keyset_id)
    index, queries = _trained_index(session, keyset, num_keys)
    nearest, report = NearestKeys(queries), on_keys or (lambda done, total: None)
    report(0, num_keys)
    for ids, keys in indexed_keys(session, keyset.keyset_id, keyset.dim):
        index.add(ids, keys)
        nearest.compare_with(ids, keys)
        report(len(index), max(num_keys, len(index)))
    return FaissCandidates(index, head, fit_lists(index, nearest, goal) if index.lists else None)


def _trained_index(session: Session, keyset: KeysetHead, num_keys: int) -> tuple[KeyIndex, Vectors]:
    """Give an empty index, trained for all keys of the keyset, and queries to fit it with.

    Where the keys are too few to train its spec, the index is exact and there are no queries.
    """
    is_auto, none = keyset.index_spec == AUTO_SPEC, np.empty((0, keyset.dim), np.float32)
    index = KeyIndex(keyset.dim, default_spec(num_keys, keyset.dim) if is_auto else keyset.index_spec)
    if not index.lists:
        return index, none
    sample = keysets.sample_keys(session, keyset.keyset_id, keyset.dim, index.train_size, num_keys)
    if len(sample) < index.train_min:
        return KeyIndex(keyset.dim, FLAT_SPEC), none
    if is_auto:
        index = KeyIndex(keyset.dim, fitting_spec(sample, num_keys))
    held_out, trained_on = split_sample(sample, len(sample) - index.train_min)
    index.train(trained_on)
    return index, perturb_keys(held_out)


# Candidates in the documents of some corpora.

MOST_APART = 10_000  # keys that are compared one by one

_IDS_OF_CORPORA = """
SELECT k.id FROM document d
CROSS JOIN LATERAL (SELECT id FROM fact WHERE document_id = d.id OFFSET 0) AS f
CROSS JOIN LATERAL (SELECT id, keyset_id FROM fact_key WHERE fact_id = f.id OFFSET 0) AS k
WHERE d.corpus = ANY(%(corpora)s::text[]) AND k.keyset_id = %(keyset_id)s::bigint
"""
_KEYS_OF_CORPORA = """
SELECT k.id, k.key FROM unnest(%(ids)s::bigint[]) AS sought (id)
CROSS JOIN LATERAL (
    SELECT id, key, fact_id FROM fact_key WHERE keyset_id = %(keyset_id)s::bigint AND id = sought.id OFFSET 0
) AS k
JOIN fact f ON f.id = k.fact_id JOIN document d ON d.id = f.document_id
WHERE d.corpus = ANY(%(corpora)s::text[])
"""


class CorporaKeys:
    """The keys of the facts of some corpora, in one keyset.

    Up to `most_apart` keys are compared one by one, in an index of their own. Where there are more, a bitmap of their
    ids limits a search of the index of all keys. `note` records which ids the log changed. The next lookup reads the
    new keys.
    """

    def __init__(self, keyset_id: int, dim: int, corpora: tuple[str, ...], most_apart: int) -> None:
        self._asked = {"keyset_id": keyset_id, "corpora": list(corpora)}
        self._dim, self._most_apart, self._lock = dim, most_apart, threading.Lock()
        self._touched: set[int] | None = None  # None: nothing was read yet
        self._apart: KeyIndex | None = None
        self._bits: IdBits | None = None

    @property
    def is_behind(self) -> bool:
        return self._touched is None or len(self._touched) > 0

    def note(self, gone: list[int], new: list[int]) -> None:
        """Note key ids from the log: those `gone` from every index, and `new` ones, which may be of any corpus."""
        with self._lock:
            if self._apart is not None:
                self._apart.remove(gone)
            if self._touched is not None:
                self._touched.difference_update(gone)
                self._touched.update(new)

    def read_keys(self, whole: Sized, connection: psycopg.Connection) -> None:
        """Read all keys of the corpora at first, or if their own index grew too large; else only the noted ones."""
        with self._lock, connection.cursor(binary=True) as cursor:
            if self._touched is None or (self._apart is not None and len(self._apart) > 2 * self._most_apart):
                ids = cursor.execute(_IDS_OF_CORPORA, self._asked).fetchall()
                self._begin(np.sort(np.array([key_id for (key_id,) in ids], np.int64)), len(whole))
                sought = [] if self._apart is None else [key_id for (key_id,) in ids]
            else:
                sought = list(self._touched)
            rows = (
                cursor.execute(_KEYS_OF_CORPORA, {**self._asked, "ids": sought}).fetchall() if sought else []
            )
            if rows:
                self._put(np.array([key_id for key_id, _ in rows], np.int64), [key for _, key in rows])
            self._touched = set()

    def _begin(self, ids: Ids, num_keys: int) -> None:
        is_apart = len(ids) <= self._most_apart
        self._apart = KeyIndex(self._dim) if is_apart else None
        # The nearest of a share of the keys is further off than that of all, so more lists are read.
        self._bits = None if is_apart else IdBits(ids, math.sqrt(max(1.0, num_keys / len(ids))))

    def _put(self, ids: Ids, keys: list[bytes]) -> None:
        if self._bits is not None:
            self._bits.put(ids)
        if self._apart is not None:
            self._apart.remove(ids)
            self._apart.add(ids, keysets.decode_keys(keys, self._dim))

    def search(self, whole: SearchAmong, queries_BD: npt.NDArray[Any], k: int) -> tuple[Vectors, Ids]:
        apart = self._apart
        return whole.search(queries_BD, k, self._bits) if apart is None else apart.search(queries_BD, k)

    @property
    def index(self) -> KeyIndex | None:
        """The index of these keys alone; None where they are too many for one."""
        return self._apart


class SearchAmong(Protocol):
    """An index in this process of all keys of a keyset. A search may be limited to a set of ids, `only`."""

    def search(
        self, queries_BD: npt.NDArray[Any], k: int, only: IdBits | None = None
    ) -> tuple[Vectors, Ids]: ...

    def over_fetch(self, k: int) -> int: ...


class IndexHere(Protocol):
    """Candidates of a whole keyset, with an index in this process."""

    @property
    def index(self) -> SearchAmong: ...

    @property
    def is_estimating(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class CorporaCandidates:
    """The candidates among the keys of some corpora instead of the whole keyset."""

    whole: IndexHere
    keys: CorporaKeys

    @property
    def is_estimating(self) -> bool:
        return self.keys.index is None and self.whole.is_estimating

    def search(self, queries_BD: npt.NDArray[Any], k: int) -> tuple[Vectors, Ids]:
        return self.keys.search(self.whole.index, queries_BD, k)

    def over_fetch(self, k: int) -> int:
        """Give how many keys to ask for: twice the usual number of an index that estimates scores, since the nearest of
        a share of its keys are less clearly the nearest.
        """
        usual = (self.keys.index or self.whole.index).over_fetch(k)
        return 2 * usual if self.is_estimating else usual
