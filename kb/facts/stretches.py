"""Stretches: where the ids of a corpus's documents lie. Session first.

A corpus comes in few ingests, so its documents lie close together, and so do their sentences and facts. Told between
which ids, the server leaves out by an index what other corpora say with a word, where it would read all of that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, or_, text
from sqlalchemy.orm import InstrumentedAttribute, Session

Stretches = Sequence[tuple[int, int]]  # of ids, each with the first and the last

_FAR = 1_000  # ids between documents from which on a stretch ends
_MOST = 8
_EDGES = text("""
WITH stood AS (SELECT id, lag(id) OVER (ORDER BY id) AS before FROM document WHERE corpus = :corpus)
SELECT before, id FROM stood WHERE id - before > :far OR before IS NULL ORDER BY id - before DESC LIMIT :most
""")
_LAST = text("SELECT max(id) FROM document WHERE corpus = :corpus")


def stretches_of(session: Session, corpus: str) -> Stretches:
    """Give up to eight stretches, in order, that hold the ids of a corpus's documents, and of others between them."""
    edges = sorted(
        (row.id, row.before)
        for row in session.execute(_EDGES, {"corpus": corpus, "far": _FAR, "most": _MOST})
    )
    if not edges:
        return [(0, 0)]  # no document has this id
    ends = [before for _, before in edges[1:]] + [session.scalar(_LAST, {"corpus": corpus})]
    return [(first, last) for (first, _), last in zip(edges, ends, strict=True)]


def lies_in(stretches: Stretches, column: InstrumentedAttribute[Any]) -> ColumnElement[bool]:
    """Give whether an id of a document lies in one of the stretches."""
    return or_(*(column.between(first, last) for first, last in stretches))
