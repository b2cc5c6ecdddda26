"""Recall of question -> fact: does a question's key find the fact it asks for?

A lookup splices the top hit whatever else is near, so the share of questions whose own fact comes first bounds how
often an output can be right. Recall at 10 says what a better ranking in the same space could still gain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from colmlm.kb.corpus.format import AnnotatedDocument
from colmlm.model.training.steps import question_answer

Floats = NDArray[np.float32]
OnDone = Callable[[int], None]


class Encodes(Protocol):
    """An encoder of documents' facts and of questions into one key space: `model.lm.encoder.KeyEncoder`."""

    def encode_documents(self, documents: Sequence[AnnotatedDocument]) -> list[Floats]: ...
    def encode_questions(self, questions: Sequence[str]) -> Floats: ...


@dataclass(frozen=True, slots=True)
class Recall:
    """Shares in [0, 1] over `questions` asked of `facts`. `value_at_1`: the top fact has the right value."""

    facts: int
    questions: int
    recall_at_1: float
    recall_at_10: float
    mrr: float
    value_at_1: float
    mean_true_score: float


def recall(
    queries_QD: Floats, target_Q: NDArray[np.int64], keys: Floats | Sequence[Floats], values_K: Sequence[str]
) -> Recall:
    """Ranks every fact for every query; `target_Q[i]` is the row of the fact that query i asks for.

    `keys` are [K, D], or an array for each kind of key: a fact scores as its best key, and a row of NaN is no key. On
    ties the target ranks last among its equals, so that a model that gives all facts one key scores 0.
    """
    ranks, top, true = [], [], []
    names = np.array([" ".join(value.lower().split()) for value in values_K])
    for at in range(0, len(queries_QD), 512):
        scores_QK = best_scores(queries_QD[at : at + 512], keys)
        wanted = target_Q[at : at + 512]
        own_Q = scores_QK[np.arange(len(wanted)), wanted]
        ranks.append((~(scores_QK < own_Q[:, None])).sum(axis=1))
        top.append(names[scores_QK.argmax(axis=1)] == names[wanted])
        true.append(own_Q)
    rank_Q = np.concatenate(ranks) if ranks else np.ones(0)
    if not len(rank_Q):
        raise ValueError("no questions to measure recall with: the corpus has no fact with a question")
    return Recall(
        facts=len(values_K),
        questions=len(rank_Q),
        recall_at_1=_share(rank_Q <= 1),
        recall_at_10=_share(rank_Q <= 10),
        mrr=_share(1.0 / rank_Q),
        value_at_1=_share(np.concatenate(top)),
        mean_true_score=_share(_finite(np.concatenate(true))),
    )


def best_scores(queries_QD: Floats, keys: Floats | Sequence[Floats]) -> Floats:
    """Gives [Q, K]: the score of each fact's best key; minus infinity for a fact without one."""
    kinds = [keys] if isinstance(keys, np.ndarray) else keys
    scores = [queries_QD @ keys_KD.T for keys_KD in kinds]
    best_QK = np.fmax.reduce(scores)
    return np.where(np.isnan(best_QK), -np.inf, best_QK).astype(np.float32)


def _finite(values: Floats) -> Floats:
    kept = values[np.isfinite(values)]
    return kept if len(kept) else np.zeros(1, np.float32)


def _share(values: NDArray[np.floating] | NDArray[np.bool_]) -> float:
    return round(float(np.mean(values)), 4)


def in_batches(
    encode: Callable[[list[str]], Floats], texts: Sequence[str], done: OnDone, size: int = 128
) -> Floats:
    """Encodes texts in batches, telling `done` how many more are finished.

    The longest come first, so that texts of similar length are padded together, and too little memory shows at once.
    """
    order = sorted(range(len(texts)), key=lambda n: -len(texts[n]))
    rows: Floats | None = None
    for at in range(0, len(order), size):
        chosen = order[at : at + size]
        part = encode([texts[n] for n in chosen])
        rows = np.empty((len(texts), part.shape[1]), np.float32) if rows is None else rows
        rows[chosen] = part
        done(len(chosen))
    if rows is None:
        raise ValueError("no questions to measure recall with: the corpus has no fact with a question")
    return rows


def document_keys(
    encoder: Encodes, documents: Sequence[AnnotatedDocument], done: OnDone, size: int = 32
) -> Floats:
    """Gives the [num_facts, dim] keys of all facts of `documents`, in order."""
    parts = []
    for at in range(0, len(documents), size):
        batch = documents[at : at + size]
        parts += encoder.encode_documents(batch)
        done(sum(len(document.facts) for document in batch))
    return np.concatenate(parts)


def decoder_queries(encoder: Encodes, questions: Sequence[str], done: OnDone) -> Floats:
    """Gives the queries that the decoder itself sends: the states at ``<FACT>`` after ``Question: ... Answer:``."""

    def at_fact(batch: list[str]) -> Floats:
        return np.concatenate(encoder.encode_documents([question_answer(q, "?") for q in batch]))

    return in_batches(at_fact, questions, done)
