"""Asks the questions of a group again, to see whether they find the fact that is said to solve it.

A question that was read, for an answer or for a decoder, is asked as an answer is. What a decoder looked up by key or
words is looked up again by the query that was kept. What was asked for without proposed facts is asked again so.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol, Unpack

from sqlalchemy import func, select

from colmlm.kb.lookup.options import READER, FilterOptions, filter_of
from colmlm.kb.lookup.searchable import SearchableStore
from colmlm.kb.misses.listing import MissPlace, Query, looked_up, stored_queries
from colmlm.kb.misses.records import AskedAgain, MissedQuestion
from colmlm.kb.tables import GenerationRow


class Asks(Protocol):
    """Gives the facts that a question is answered with."""

    def __call__(self, question: str, **only: Unpack[FilterOptions]) -> Collection[int]: ...


READ = "read"  # the mode of outputs whose question was answered from texts
MOST_ASKED = 5  # different questions of a group, the newest


class _Kept(NamedTuple):
    was_read: bool
    query: Query | None


def ask_again(
    store: SearchableStore, asks: Asks | None, questions: Sequence[MissedQuestion], fact_id: int
) -> tuple[AskedAgain, ...]:
    """Say which of the newest five questions find the fact. What nothing was kept to ask with finds none."""
    asked = questions[:MOST_ASKED]
    kept = _kept(store, asked)
    return tuple(
        AskedAgain(one.question, one.generation_id, fact_id in _found(store, asks, one, kept[place]))
        for one in asked
        if (place := MissPlace(one.generation_id, one.ordinal)) in kept
    )


def _kept(store: SearchableStore, asked: Sequence[MissedQuestion]) -> dict[MissPlace, _Kept]:
    places = [MissPlace(one.generation_id, one.ordinal) for one in asked]
    with store.sessions() as session:
        queries = stored_queries(session, places)
        rows = session.execute(
            select(GenerationRow.id, GenerationRow.mode, GenerationRow.ranking).where(
                GenerationRow.id == func.any([place.generation_id for place in places])
            )
        )
        was_read = {row.id: row.ranking == READER or row.mode == READ for row in rows}
    return {
        place: _Kept(was_read[place.generation_id], queries.get(place))
        for place in places
        if place.generation_id in was_read
    }


def _found(store: SearchableStore, asks: Asks | None, one: MissedQuestion, kept: _Kept) -> Collection[int]:
    if kept.was_read and asks is not None:
        return asks(one.question, **filter_of(one))
    if kept.query is None:
        return ()
    checkpoint_id, query = kept.query
    hits = looked_up(store, checkpoint_id, [query], k=1, threshold=None, **filter_of(one))
    return [hit.fact_id for hit in hits[0]] if hits else ()
