"""Hard negatives: documents that the model confuses are put into the same step.

The current model makes keys and queries for the facts of a window of steps. If a query of one document is near a fact
of another document with another question, the two documents belong in one step. No document is added or lost: the steps
of the window only exchange them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from colmlm.model.text.tokens import Encoded
from colmlm.model.training.corpora import question_sequence

FACTS_PER_DOCUMENT = 4
_ROWS = 2048  # questions scored at once


@dataclass(frozen=True, slots=True)
class Mined:
    """A document cut after the last of the facts chosen from it, and the questions of these facts."""

    context: Encoded
    questions: tuple[Encoded, ...]

    @classmethod
    def of(cls, encoded: Encoded, questions: Sequence[tuple[int, ...]]) -> Mined:
        """Chooses at most `FACTS_PER_DOCUMENT` facts with a question, spread over the document."""
        asked = [i for i, ids in enumerate(questions) if ids]
        spread = np.linspace(0, len(asked) - 1, min(FACTS_PER_DOCUMENT, len(asked))).round().astype(int)
        chosen = [asked[i] for i in spread]
        positions = tuple(encoded.fact_positions[i] for i in chosen)
        end = positions[-1] + 1 if positions else 0
        return cls(
            Encoded(encoded.ids[:end], positions, encoded.masked[:end]),
            tuple(question_sequence(questions[i]) for i in chosen),
        )


def confusable(
    steps: Sequence[NDArray[np.int64]],
    mined: Sequence[Mined],
    keys: Callable[[Sequence[Encoded]], list[NDArray[np.float32]]],
    count: int,
) -> list[NDArray[np.int64]]:
    """Regroups the documents of `steps` so that each is beside up to `count` documents that it is confused with.

    Steps keep their sizes. `mined` has one entry per document, in the order of the steps. The first document that is
    not placed yet takes the nearest ones that are not placed either, and so on; nothing is random.
    """
    with_facts = [i for i, document in enumerate(mined) if document.questions]
    if not with_facts:
        return list(steps)
    facts = keys([mined[i].context for i in with_facts])
    queries = keys([question for i in with_facts for question in mined[i].questions])
    owners = np.repeat(with_facts, [len(mined[i].questions) for i in with_facts]).astype(np.int64)
    asked = [question.ids for i in with_facts for question in mined[i].questions]
    near = _nearest(np.concatenate(facts), np.concatenate(queries), owners, asked, count)
    ends = np.cumsum([len(step) for step in steps]).tolist()
    order = _together(ends, near, count)
    return list(np.split(np.concatenate(steps)[order], ends[:-1]))


def _nearest(
    facts_ND: NDArray[np.float32],
    queries_ND: NDArray[np.float32],
    owners: NDArray[np.int64],
    asked: Sequence[tuple[int, ...]],
    count: int,
) -> dict[int, list[int]]:
    """Gives for each document the others whose facts are nearest to its questions, nearest first."""
    names = {ids: number for number, ids in enumerate(dict.fromkeys(asked))}
    question_N = np.array([names[ids] for ids in asked])
    found: dict[int, dict[int, float]] = {}
    reach = min(len(owners), count + FACTS_PER_DOCUMENT)
    for start in range(0, len(owners), _ROWS):
        rows = slice(start, start + _ROWS)
        scores = queries_ND[rows] @ facts_ND.T
        scores[owners[rows, None] == owners[None, :]] = -np.inf
        scores[question_N[rows, None] == question_N[None, :]] = -np.inf  # the same question is no negative
        best = np.argsort(-scores, axis=1, kind="stable")[:, :reach]
        for row, columns in enumerate(best):
            others = found.setdefault(int(owners[start + row]), {})
            for column in columns:
                if np.isfinite(score := scores[row, column]):
                    other = int(owners[column])
                    others[other] = max(others.get(other, -np.inf), float(score))
    return {owner: sorted(others, key=lambda o: (-others[o], o)) for owner, others in found.items()}


def _together(ends: Sequence[int], near: dict[int, list[int]], count: int) -> list[int]:
    """Orders documents so that each is followed by those near it, while its step has room; steps end at `ends`."""
    placed: dict[int, None] = {}
    for document in range(ends[-1]):
        if document not in placed:
            placed[document] = None
            room = next(end for end in ends if end >= len(placed)) - len(placed)
            free = [other for other in near.get(document, ()) if other not in placed]
            placed.update(dict.fromkeys(free[: min(count, room)]))
    return list(placed)
