"""Near facts: finds the live facts nearest to what was missed, as the base is now.

A query that was kept is looked up by key, in the keyset of its checkpoint, if that is active; else the words of the
question find sentences, and the facts in them are near.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np
from sqlalchemy import ColumnElement, and_, func, select
from sqlalchemy.orm import Session

from colmlm.kb.errors import IndexBehind, InvalidQuery, KeysetMismatch, NoActiveKeyset
from colmlm.kb.facts import reading
from colmlm.kb.facts.edits import IS_LIVE
from colmlm.kb.facts.records import FactRecord
from colmlm.kb.keys.keysets import STORED
from colmlm.kb.lookup.records import Hit
from colmlm.kb.lookup.searchable import SearchableStore
from colmlm.kb.lookup.words import SentenceFound
from colmlm.kb.misses.questions import MissPlace
from colmlm.kb.misses.records import MissGroup, NearFact
from colmlm.kb.tables import AttributionRow, FactRow, FactVersionRow, GenerationRow

Query = tuple[str, bytes]  # the checkpoint, and the vector as it is stored


def with_near(store: SearchableStore, groups: Sequence[MissGroup], k: int) -> list[MissGroup]:
    """Gives the groups with the k live facts that are nearest to what each was asked last."""
    if not (groups and k):
        return list(groups)
    places = {one.group_id: MissPlace(one.generation_id, one.ordinal) for one in groups}
    with store.sessions() as session:
        kept = stored_queries(session, list(places.values()))
    by_key = _by_key(store, {one: kept[place] for one, place in places.items() if place in kept}, k)
    with store.sessions() as session:
        known = reading.fact_records(session, [hit.fact_id for hits in by_key.values() for hit in hits])
        return [
            replace(
                one,
                nearest=tuple(_near(hit, known[hit.fact_id]) for hit in by_key.get(one.group_id, ()))
                or tuple(islice(_by_words(store, session, one.question, k), k)),
            )
            for one in groups
        ]


def _near(hit: Hit, fact: FactRecord) -> NearFact:
    document_id = fact.source.document_id if fact.source else None
    return NearFact(hit.fact_id, hit.value, fact.question, hit.score, document_id)


def stored_queries(session: Session, places: Sequence[MissPlace]) -> dict[MissPlace, Query]:
    """Gives the queries that were kept of these lookups; of an output as a whole, that of its first."""
    wanted = {MissPlace(one.generation_id, max(one.ordinal, 0)): one for one in places}
    columns = (AttributionRow.generation_id, AttributionRow.ordinal, AttributionRow.query)
    statement = (
        select(*columns, GenerationRow.checkpoint_id)
        .join(GenerationRow, GenerationRow.id == AttributionRow.generation_id)
        .where(AttributionRow.generation_id == func.any([one.generation_id for one in places]))
        .where(AttributionRow.query.is_not(None))
    )
    return {
        wanted[place]: (row.checkpoint_id, bytes(row.query))
        for row in session.execute(statement)
        if (place := MissPlace(row.generation_id, row.ordinal)) in wanted
    }


def _by_key(store: SearchableStore, asked: Mapping[int, Query], k: int) -> dict[int, tuple[Hit, ...]]:
    """Looks up the queries of each checkpoint at once; those that the active keyset does not answer are left out."""
    found: dict[int, tuple[Hit, ...]] = {}
    for checkpoint_id in {checkpoint_id for checkpoint_id, _ in asked.values()}:
        of = {one: query for one, (space, query) in asked.items() if space == checkpoint_id}
        hits = looked_up(store, checkpoint_id, list(of.values()), k=k, threshold=-1.0)
        found |= dict(zip(of, hits, strict=True)) if hits else {}
    return found


def looked_up(
    store: SearchableStore,
    checkpoint_id: str,
    queries: Sequence[bytes],
    *,
    k: int,
    threshold: float | None,
    accepted_only: bool = False,
) -> list[tuple[Hit, ...]] | None:
    """Gives the hits of each query; None where the active keyset is of another checkpoint, or there is none."""
    queries_BD = np.frombuffer(b"".join(queries), dtype=STORED).reshape(len(queries), -1).astype(np.float32)
    try:
        lookups = store.lookups.find(
            queries_BD,
            checkpoint_id=checkpoint_id,
            k=k,
            threshold=threshold,
            accepted_only=accepted_only,
        )
    except (KeysetMismatch, NoActiveKeyset, InvalidQuery, IndexBehind):
        return None
    return [one.hits for one in lookups]


def _by_words(store: SearchableStore, session: Session, question: str, k: int) -> Iterator[NearFact]:
    for sentence in store.words.find(session, question, k):
        statement = (
            select(FactRow.id, FactVersionRow.value, FactRow.question)
            .join(FactVersionRow, and_(FactVersionRow.fact_id == FactRow.id, IS_LIVE))
            .where(_said_in(sentence))
        )
        for row in session.execute(statement.order_by(FactRow.span_start, FactRow.id).limit(k)):
            yield NearFact(row.id, row.value, row.question, None, sentence.document_id)


def _said_in(sentence: SentenceFound) -> ColumnElement[bool]:
    if sentence.fact_id is not None:
        return FactRow.id == sentence.fact_id
    return and_(
        FactRow.document_id == sentence.document_id,
        FactRow.span_start < sentence.end,
        FactRow.span_end > sentence.start,
    )
