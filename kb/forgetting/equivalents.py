"""Equivalents: finds live facts outside a selection that say the same, so that these can be forgotten with it.

A fact is equivalent to a selected one where both have the same value and either the same question or keys near
one another. It conflicts where it answers the same question with another value. Values and questions are
compared after `kb.keys.calibration.normalise`, without case, blanks and closing punctuation, so that
"March 14, 1879" and "14 March 1879" are two values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from sqlalchemy import select
from sqlalchemy.orm import Session

from colmlm.kb.facts.edits import IS_LIVE
from colmlm.kb.keys.calibration import normalise
from colmlm.kb.keys.keysets import Ids, Vectors
from colmlm.kb.keys.keyspace import KeySpace
from colmlm.kb.tables import FactRow, FactVersionRow


@dataclass(frozen=True, slots=True)
class Texts:
    """The questions of all live facts [N] by fact id, and classes of equal values and equal questions, as numbers.

    A fact without a question has the question class -1.
    """

    fact_ids: Ids
    questions: list[str | None]
    value_N: Ids
    question_N: Ids

    @classmethod
    def read(cls, session: Session) -> Texts:
        statement = select(FactRow.id, FactVersionRow.value, FactRow.question).join(
            FactVersionRow, FactVersionRow.fact_id == FactRow.id
        )
        rows = session.execute(statement.where(IS_LIVE).order_by(FactRow.id)).all()
        return cls(
            np.array([row.id for row in rows], dtype=np.int64),
            [row.question for row in rows],
            _numbered([normalise(row.value) for row in rows]),
            _numbered([normalise(row.question) if row.question else None for row in rows]),
        )

    def rows(self, fact_ids: Sequence[int] | Ids) -> Ids:
        """Gives the rows of these facts, without those that are not live."""
        return np.flatnonzero(np.isin(self.fact_ids, np.asarray(fact_ids, dtype=np.int64)))


def _numbered(texts: list[str | None]) -> Ids:
    classes: dict[str, int] = {}
    return np.array([-1 if t is None else classes.setdefault(t, len(classes)) for t in texts], dtype=np.int64)


def same_question(texts: Texts, selected: Sequence[int]) -> tuple[list[int], list[int]]:
    """Finds the facts that answer a selected fact's question with its value, and those that answer it with another."""
    chosen = np.isin(texts.fact_ids, np.array(selected, dtype=np.int64))
    asks = texts.question_N >= 0
    pair_N = texts.question_N * (len(texts.fact_ids) + 1) + texts.value_N
    asked = asks & ~chosen & np.isin(texts.question_N, texts.question_N[chosen & asks])
    same = asked & np.isin(pair_N, pair_N[chosen & asks])
    return texts.fact_ids[same].tolist(), texts.fact_ids[asked & ~same].tolist()


def same_place(
    texts: Texts,
    space: KeySpace,
    selected: Sequence[int],
    radius: float,
    asked: tuple[Ids, Vectors] | None = None,
) -> list[int]:
    """Finds the facts with a selected fact's value and a key within `radius` of one of its keys or questions.

    `asked` gives encoded questions: the selected fact that each one asks for, and the vectors.
    """
    chosen = np.isin(texts.fact_ids, np.array(selected, dtype=np.int64))
    wanted = np.isin(texts.value_N, texts.value_N[chosen])
    pattern, others = space.of(texts.fact_ids[chosen]), space.of(texts.fact_ids[wanted & ~chosen])
    ids, vectors = pattern.fact_ids, pattern.vectors()
    if asked is not None:
        ids, vectors = np.concatenate([ids, asked[0]]), np.concatenate([vectors, asked[1]])
    of_pattern, of_others = _classes(texts, ids), _classes(texts, others.fact_ids)
    found: set[int] = set()
    for rows, keys in _by_class(of_pattern, of_others):
        near = KeySpace(others.fact_ids[keys], others.keys_ND[keys])
        found.update(near.fact_ids[near.within(vectors[rows], radius)].tolist())
    return sorted(found)


def _classes(texts: Texts, fact_ids: Ids) -> Ids:
    return texts.value_N[np.searchsorted(texts.fact_ids, fact_ids)]


def _by_class(left: Ids, right: Ids) -> list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    """Gives, for each class that is on both sides, its rows in either."""
    by_left, by_right = np.argsort(left, kind="stable"), np.argsort(right, kind="stable")
    both = np.intersect1d(left, right)
    sides = [(np.searchsorted(side[order], both, "left"), np.searchsorted(side[order], both, "right"), order)
             for side, order in ((left, by_left), (right, by_right))]  # fmt: skip
    (l0, l1, lo), (r0, r1, ro) = sides
    return [(lo[l0[i] : l1[i]], ro[r0[i] : r1[i]]) for i in range(len(both))]
