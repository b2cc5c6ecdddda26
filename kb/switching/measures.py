"""Computes the figures of a gate: the recall of an index, the answers to questions, and tombstones that fail."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from sqlalchemy import ColumnElement, Text, and_, cast, exists, func, select
from sqlalchemy.orm import Session

from colmlm.kb.facts.edits import IS_LIVE
from colmlm.kb.keys import keysets
from colmlm.kb.keys.calibration import normalise_value
from colmlm.kb.keys.keysets import Ids, Vectors, active_keyset_id
from colmlm.kb.keys.records import KeysetHead, KeysetRecord
from colmlm.kb.lookup.in_process import FaissCandidates, NearestKeys, fit_lists
from colmlm.kb.lookup.open_replicas import open_caught_up_replica
from colmlm.kb.lookup.options import KEY
from colmlm.kb.lookup.replica import CandidateKeys, Replica
from colmlm.kb.store.settings import Settings
from colmlm.kb.tables import (
    AttributionRow,
    FactKeyRow,
    FactRow,
    FactVersionRow,
    GenerationRow,
    KeysetRow,
    TombstoneRow,
    answer_modes,
)

Scores = npt.NDArray[np.float64]

_CHUNK = 128  # queries scored at once, to limit the memory of [queries, keys]
_NOISE = 0.05  # the length of the noise that is added to a stored key, which has length 1
_TIE = 1e-6


def noisy_keys(keys: IndexedKeys, size: int) -> Vectors:
    """Make up to `size` queries from stored keys by adding a little noise, for facts without questions."""
    random = np.random.default_rng(0)
    chosen = random.permutation(len(keys.ids))[:size]
    near = keys.vectors_at(chosen)
    noisy = near + _NOISE * _units(random.standard_normal(near.shape))
    return _units(noisy).astype(np.float32)


def _units(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    units: npt.NDArray[Any] = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return units


def index_recall(index: CandidateKeys, keys: IndexedKeys, queries_BD: Vectors, k: int) -> float:
    """Give the share of the exact k nearest keys that are among the candidates of a lookup. Ties count as found."""
    k = min(k, len(keys.ids))
    kth_B = _kth_best(keys, queries_BD, k)
    found = 0
    for start in range(0, len(queries_BD), _CHUNK):
        chunk = queries_BD[start : start + _CHUNK]
        _, candidates = index.search(chunk, index.over_fetch(k))  # as many as a lookup scores for k facts
        for query, row, kth in zip(chunk, candidates, kth_B[start : start + _CHUNK], strict=True):
            places = np.searchsorted(keys.ids, row)
            known = (places < len(keys.ids)) & (keys.ids[np.minimum(places, len(keys.ids) - 1)] == row)
            found += min(k, int((keys.vectors_at(places[known]) @ query >= kth - _TIE).sum()))
    wanted = k * len(queries_BD)
    return found / wanted if wanted else 0.0


def _kth_best(keys: IndexedKeys, queries_BD: Vectors, k: int) -> Vectors:
    """Give each query's [B] exact k-th best score among all keys."""
    best_BK = np.full((len(queries_BD), k), -np.inf, np.float32)
    for _, vectors in keys.blocks():
        for start in range(0, len(queries_BD), _CHUNK):
            rows = slice(start, start + _CHUNK)
            scores = np.concatenate([best_BK[rows], queries_BD[rows] @ vectors.T], axis=1)
            best_BK[rows] = np.partition(scores, -k, axis=1)[:, -k:]
    kth_B: Vectors = best_BK.min(axis=1, initial=np.inf)
    return kth_B


def read_more_lists(candidates: CandidateKeys, keys: IndexedKeys, queries_BD: Vectors, goal: float) -> None:
    """Make lookups read more lists of an index, if they find less than the share `goal` of the nearest keys."""
    if not isinstance(candidates, FaissCandidates) or not candidates.index.lists:
        return
    index, nearest = candidates.index, NearestKeys(queries_BD)
    for block, vectors in keys.blocks():
        nearest.compare_with(keys.ids[block], vectors)
    if nearest.recall(index) >= goal:
        return
    lists, spare = index.lists_read, index.spare
    fit_lists(index, nearest, goal)
    index.lists_read, index.spare = max(lists, index.lists_read), max(spare, index.spare)
    candidates.recall = nearest.recall(index)


def tombstones_passed_over(index: CandidateKeys, keys: IndexedKeys) -> int:
    """Count the tombstones that a query with their own key does not find first. Ties with a live fact are allowed."""
    graves = np.flatnonzero(keys.class_N == NOT_LIVE)
    passed_over = 0
    for start in range(0, len(graves), _CHUNK):
        chunk = keys.vectors_at(graves[start : start + _CHUNK])
        _, candidates = index.search(chunk, 4 + 16)
        for query, row in zip(chunk, candidates, strict=True):
            near = np.flatnonzero(np.isin(keys.ids, row))
            scores, dead = keys.vectors_at(near) @ query, keys.class_N[near] == NOT_LIVE
            passed_over += bool(not dead.any() or scores[dead].max() < scores.max() - _TIE)
    return passed_over


@dataclass(frozen=True, slots=True)
class Answers:
    """For each question, the best score of a right and of a wrong key, and the rank (from 1) of the best right key."""

    genuine: Scores
    impostor: Scores
    rank: npt.NDArray[np.int64]

    @property
    def recall_at_1(self) -> float:
        return float(np.mean(self.rank == 1))

    @property
    def mrr(self) -> float:
        return float(np.mean(1 / self.rank))

    def share_answered(self, threshold: float) -> float:
        """Give the share of the questions, from 0 to 1, whose best key is at or above the threshold: right or wrong."""
        return float(np.mean(np.maximum(self.genuine, self.impostor) >= threshold))


def ask_sample(queries_BD: Vectors, asked: ClassedTexts, keys: IndexedKeys) -> Answers:
    """Score queries against live keys. A key is right if its fact has the value asked for; ties count as wrong."""
    genuine, impostor = (np.full(len(queries_BD), -np.inf) for _ in range(2))
    for rows, right_BN, scores_BN in _score_blocks(queries_BD, asked, keys):
        for best, side_BN in ((genuine[rows], right_BN), (impostor[rows], ~right_BN)):
            np.maximum(best, scores_BN.max(axis=1, where=side_BN, initial=-np.inf), out=best)
    rank = np.ones(len(queries_BD), dtype=np.int64)
    for rows, right_BN, scores_BN in _score_blocks(queries_BD, asked, keys):
        rank[rows] += (~right_BN & (scores_BN >= genuine[rows, None])).sum(axis=1)
    return Answers(genuine, impostor, rank)


def _score_blocks(
    queries_BD: Vectors, asked: ClassedTexts, keys: IndexedKeys
) -> Iterator[tuple[slice, npt.NDArray[np.bool_], Scores]]:
    """Yield for blocks of queries and live keys: which queries, which keys are right [B, N], and the scores [B, N]."""
    for class_N, vectors in keys.live_blocks():
        for start in range(0, len(queries_BD), _CHUNK):
            rows = slice(start, start + _CHUNK)
            right_BN = asked.class_B[rows, None] == class_N[None, :]
            yield rows, right_BN, (queries_BD[rows] @ vectors.T).astype(np.float64)


# The sample that a gate measures a keyset with: its index, its keys, and questions, prefixes and tombstones
# to query.
#
# All of it is read from one snapshot of the database, so that edits during the minutes of encoding cannot
# make index and keys disagree. The keys of the keyset, and of the active one, are in memory for that time,
# two bytes a number.

BATCH = 20_000
NOT_LIVE = -1


@dataclass(frozen=True, slots=True)
class IndexedKeys:
    """The keys [N, d] that an index should hold, in their stored form, which takes half of float32.

    Facts of one value share a number in `class_N`; tombstones have -1.
    """

    ids: Ids
    class_N: Ids
    stored_ND: npt.NDArray[np.float16]

    def vectors_at(self, places: npt.NDArray[np.integer]) -> Vectors:
        """Give the keys at these places as float32 vectors."""
        found: Vectors = self.stored_ND[places].astype(np.float32)
        return found

    def blocks(self) -> Iterator[tuple[slice, Vectors]]:
        """Yield all keys in blocks: the slice of each block, and its keys as vectors."""
        for start in range(0, len(self.ids), BATCH):
            block = slice(start, start + BATCH)
            yield block, self.stored_ND[block].astype(np.float32)

    def live_blocks(self) -> Iterator[tuple[Ids, Vectors]]:
        """Yield the keys of live facts in blocks: the classes of each block, and its keys as vectors."""
        for block, vectors in self.blocks():
            live = self.class_N[block] != NOT_LIVE
            yield self.class_N[block][live], vectors[live]


@dataclass(frozen=True, slots=True)
class ClassedTexts:
    """Texts to encode, and for each the class of the value that is the right answer (see `IndexedKeys.class_N`)."""

    texts: tuple[str, ...]
    class_B: Ids


@dataclass(frozen=True, slots=True)
class Sample:
    """The sample of a keyset, as of change `seq`. `active` is the active keyset if that is another one, else None."""

    seq: int
    keyset: KeysetRecord
    active: KeysetHead | None
    active_gate: dict[str, Any] | None
    replica: Replica
    keys: IndexedKeys
    active_keys: IndexedKeys | None
    questions: ClassedTexts
    contexts: ClassedTexts
    lost: tuple[int, ...]
    tombstones_unkeyed: int
    has_questions: bool

    @property
    def candidates(self) -> CandidateKeys:
        return self.replica.candidates


def draw_sample(session: Session, settings: Settings, keyset: KeysetRecord, size: int) -> Sample:
    """Draw up to `size` questions of facts and as many prefixes of outputs. The session must be REPEATABLE READ."""
    replica = open_caught_up_replica(session, keyset, settings)
    active_id = active_keyset_id(session)
    active = None
    if active_id is not None and active_id != keyset.keyset_id:
        active = keysets.keyset_head(session, active_id)
    classes = _classes(session)
    return Sample(
        seq=replica.applied_seq,
        keyset=keyset,
        active=active,
        active_gate=session.scalar(select(KeysetRow.gate).where(KeysetRow.id == active_id))
        if active
        else None,
        replica=replica,
        keys=_keys(session, keyset, classes),
        active_keys=_keys(session, active, classes) if active else None,
        questions=_questions(session, keyset, active, classes, size),
        contexts=_contexts(session, classes, size),
        lost=tuple(session.scalars(_live_without_key(keyset.keyset_id))),
        tombstones_unkeyed=_tombstones_unkeyed(session, keyset.keyset_id),
        has_questions=bool(session.scalar(select(exists().where(FactRow.question.is_not(None))))),
    )


def _classes(session: Session) -> dict[int, int]:
    """Give each live fact a number that facts of the same value share."""
    numbers: dict[str, int] = {}
    statement = select(FactVersionRow.fact_id, FactVersionRow.value).where(IS_LIVE)
    rows = session.execute(statement.execution_options(yield_per=BATCH))
    return {row.fact_id: numbers.setdefault(normalise_value(row.value), len(numbers)) for row in rows}


def _keys(session: Session, keyset: KeysetHead, classes: dict[int, int]) -> IndexedKeys:
    live = exists().where(FactVersionRow.fact_id == FactKeyRow.fact_id, IS_LIVE)
    kept = live | exists().where(TombstoneRow.fact_id == FactKeyRow.fact_id)
    statement = (
        select(FactKeyRow.id, FactKeyRow.fact_id, FactKeyRow.key)
        .where(FactKeyRow.keyset_id == keyset.keyset_id, kept)
        .order_by(FactKeyRow.id)
        .execution_options(yield_per=BATCH)
    )
    ids, class_N = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    stored = [np.empty((0, keyset.dim), keysets.STORED)]
    for rows in session.execute(statement).partitions():
        ids.append(np.array([row.id for row in rows], dtype=np.int64))
        class_N.append(np.array([classes.get(row.fact_id, NOT_LIVE) for row in rows], dtype=np.int64))
        keys = np.frombuffer(b"".join(row.key for row in rows), dtype=keysets.STORED)
        stored.append(keys.reshape(-1, keyset.dim))
    return IndexedKeys(np.concatenate(ids), np.concatenate(class_N), np.concatenate(stored))


def _is_keyed(keyset_id: int, fact_id: Any) -> ColumnElement[bool]:
    return exists().where(FactKeyRow.keyset_id == keyset_id, FactKeyRow.fact_id == fact_id)


def _live_without_key(keyset_id: int) -> Any:
    keyed = _is_keyed(keyset_id, FactVersionRow.fact_id)
    return select(FactVersionRow.fact_id).where(IS_LIVE, ~keyed).order_by(FactVersionRow.fact_id)


def _tombstones_unkeyed(session: Session, keyset_id: int) -> int:
    keyed = _is_keyed(keyset_id, TombstoneRow.fact_id)
    return session.scalar(select(func.count()).select_from(TombstoneRow).where(~keyed)) or 0


def _questions(
    session: Session, keyset: KeysetHead, active: KeysetHead | None, classes: dict[int, int], size: int
) -> ClassedTexts:
    """Draw questions of live facts that both keysets have keys of, so that the comparison is fair."""
    statement = (
        select(FactRow.id, FactRow.question)
        .join(FactVersionRow, and_(FactVersionRow.fact_id == FactRow.id, IS_LIVE))
        .where(FactRow.question.is_not(None), _is_keyed(keyset.keyset_id, FactRow.id))
    )
    if active is not None:
        statement = statement.where(_is_keyed(active.keyset_id, FactRow.id))
    # Ordered by a digest of the id: this gives the same sample on every run, spread over the corpora.
    rows = session.execute(statement.order_by(func.md5(cast(FactRow.id, Text))).limit(size)).all()
    return _classed_texts([(row.question, classes[row.id]) for row in rows])


def _contexts(session: Session, classes: dict[int, int], size: int) -> ClassedTexts:
    """Draw the texts before the newest splices of live facts, where the decoder looked these facts up by key.

    An answer has no such text: its question was asked as a question.
    """
    prefix = GenerationRow.prompt + func.substr(GenerationRow.output, 1, AttributionRow.output_start)
    statement = (
        select(prefix.label("prefix"), AttributionRow.fact_id)
        .join(GenerationRow, GenerationRow.id == AttributionRow.generation_id)
        .join(FactVersionRow, and_(FactVersionRow.fact_id == AttributionRow.fact_id, IS_LIVE))
        .where(AttributionRow.outcome == "hit", GenerationRow.redacted_seq.is_(None))
        .where(GenerationRow.mode.not_in(answer_modes), GenerationRow.ranking == KEY)
        .order_by(GenerationRow.id.desc(), AttributionRow.ordinal)
        .limit(size)
    )
    return _classed_texts([(row.prefix, classes[row.fact_id]) for row in session.execute(statement)])


def _classed_texts(pairs: list[tuple[str, int]]) -> ClassedTexts:
    classes: npt.NDArray[np.int64] = np.array([number for _, number in pairs], dtype=np.int64)
    return ClassedTexts(tuple(asked for asked, _ in pairs), classes)
