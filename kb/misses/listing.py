"""Lists groups of misses with their questions, which are read from the outputs that asked them. Session first."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple, Unpack

import numpy as np
from sqlalchemy import ColumnElement, Select, and_, exists, func, select, true, tuple_
from sqlalchemy.orm import Session, aliased

from colmlm.kb.errors import IndexBehind, InvalidQuery, KeysetMismatch, NoActiveKeyset, refusals
from colmlm.kb.facts import reading
from colmlm.kb.facts.edits import IS_LIVE
from colmlm.kb.facts.records import FactRecord
from colmlm.kb.keys.keysets import STORED
from colmlm.kb.log import audit
from colmlm.kb.log.records import ChangeRecord
from colmlm.kb.lookup.options import READER, LookupOptions
from colmlm.kb.lookup.records import Hit
from colmlm.kb.lookup.searchable import SearchableStore
from colmlm.kb.lookup.words import SentenceFound
from colmlm.kb.misses.records import WHOLE, MissedQuestion, MissGroup, MissOrder, MissState, NearFact
from colmlm.kb.tables import (
    AttributionRow,
    ChangeRow,
    FactRow,
    FactVersionRow,
    FeedbackRow,
    GenerationRow,
    MissGroupRow,
    MissRow,
)
from colmlm.kb.texts.asked import question_of

READ = 500  # of a group's last misses, among which its different questions are
MAX_ID = 2**63 - 1


def groups(
    session: Session, state: MissState, order: MissOrder, after: int, limit: int, show: ShowTexts | None
) -> list[MissGroup]:
    """Give groups of this state past the group `after`, or where that is not there any more from the first on."""
    by = MissGroupRow.asked if order == "asked" else MissGroupRow.last_at
    statement = select(MissGroupRow).where(MissGroupRow.state == state)
    last = session.get(MissGroupRow, after) if 0 < after <= MAX_ID else None
    if last is not None:
        statement = statement.where(tuple_(by, MissGroupRow.id) < (getattr(last, by.key), last.id))
    rows = session.scalars(statement.order_by(by.desc(), MissGroupRow.id.desc()).limit(limit))
    return _records(session, rows.all(), show)


def count_misses(session: Session, state: MissState) -> int:
    of_state = select(func.count()).select_from(MissGroupRow).where(MissGroupRow.state == state)
    return session.scalar(of_state) or 0


def get_group(session: Session, group_id: int, show: ShowTexts | None) -> MissGroup:
    """Give one group. Raises `MissGroupNotFound`."""
    found = session.get(MissGroupRow, group_id) if 0 < group_id <= MAX_ID else None
    if found is None:
        raise refusals.miss_group_not_found([group_id])
    (record,) = _records(session, [found], show)
    return record


def _records(session: Session, rows: Sequence[MissGroupRow], show: ShowTexts | None) -> list[MissGroup]:
    last = _last_of(session, [row.id for row in rows])
    places = {row.id: last.get(row.id, MissPlace(row.generation_id, row.ordinal)) for row in rows}
    asked = group_questions(session, list(places.values()), show)
    decisions = _decisions(session, [row.seq for row in rows if row.seq is not None])
    return [
        MissGroup(
            group_id=row.id,
            state=row.state,
            question=asked.get(places[row.id], ""),
            asked=row.asked,
            wrong=row.wrong,
            last_at=row.last_at,
            generation_id=places[row.id].generation_id,
            ordinal=places[row.id].ordinal,
            fact_id=row.fact_id,
            decision=decisions.get(row.seq) if row.seq is not None else None,
        )
        for row in rows
    ]


def _last_of(session: Session, group_ids: Sequence[int]) -> dict[int, MissPlace]:
    """Give the last miss of each group, each by one step in an index."""
    newest = (
        select(MissRow.generation_id, MissRow.ordinal)
        .where(MissRow.group_id == MissGroupRow.id)
        .order_by(MissRow.generation_id.desc())
        .limit(1)
        .lateral("newest")
    )
    of_groups = select(MissGroupRow.id, newest.c.generation_id, newest.c.ordinal).join(newest, true())
    rows = session.execute(of_groups.where(MissGroupRow.id == func.any(list(group_ids))))
    return {row.id: MissPlace(row.generation_id, row.ordinal) for row in rows}


def _decisions(session: Session, seqs: Sequence[int]) -> dict[int, ChangeRecord]:
    found = session.scalars(select(ChangeRow).where(ChangeRow.seq == func.any(list(seqs))))
    return {change.seq: audit.as_record(change) for change in found}


def asked_in(session: Session, group_id: int, show: ShowTexts | None) -> tuple[MissedQuestion, ...]:
    """Give the different questions among the last misses of a group, newest first."""
    rows = session.execute(_newest(group_id)).all()
    asked = group_questions(session, [MissPlace(row.generation_id, row.ordinal) for row in rows], show)
    found: dict[tuple[str, bool], list[Any]] = {}
    for row in rows:
        question = asked.get(MissPlace(row.generation_id, row.ordinal), "")
        found.setdefault((question, row.accepted_only), []).append(row)
    proposed = _proposed(session, [row.generation_id for row in rows]) if show is None else {}
    return tuple(
        MissedQuestion(
            question,
            len(same),
            same[0].at,
            same[0].generation_id,
            same[0].ordinal,
            _first(same, proposed),
            accepted_only,
        )
        for (question, accepted_only), same in found.items()
    )


def _newest(group_id: int) -> Select[*tuple[Any, ...]]:
    return (
        select(MissRow.generation_id, MissRow.ordinal, GenerationRow.at, GenerationRow.accepted_only)
        .join(GenerationRow, GenerationRow.id == MissRow.generation_id)
        .where(MissRow.group_id == group_id)
        .order_by(MissRow.generation_id.desc(), MissRow.ordinal)
        .limit(READ)
    )


def _proposed(session: Session, generation_ids: Sequence[int]) -> dict[int, str]:
    """Give the value that was proposed last for each of these outputs."""
    said = select(FeedbackRow.generation_id, FeedbackRow.value).where(
        FeedbackRow.generation_id == func.any(list(generation_ids)), FeedbackRow.value.is_not(None)
    )
    return {row.generation_id: row.value for row in session.execute(said.order_by(FeedbackRow.at))}


def _first(rows: Iterable[Any], proposed: dict[int, str]) -> str | None:
    return next((proposed[row.generation_id] for row in rows if row.generation_id in proposed), None)


# Near facts: finds the live facts nearest to what was missed, as the base is now.
#
# A query that was kept is looked up by key, in the keyset of its checkpoint, if that is active; else the
# words of the question find sentences, and the facts in them are near.

Query = tuple[str, bytes]  # the checkpoint, and the vector as it is stored


def with_near(store: SearchableStore, groups: Sequence[MissGroup], k: int) -> list[MissGroup]:
    """Give the groups with the k live facts that are nearest to what each was asked last."""
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
    """Give the queries that were kept of these lookups; of an output as a whole, that of its first."""
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
    """Look up the queries of each checkpoint at once; those that the active keyset does not answer are left out."""
    found: dict[int, tuple[Hit, ...]] = {}
    for checkpoint_id in {checkpoint_id for checkpoint_id, _ in asked.values()}:
        of = {one: query for one, (space, query) in asked.items() if space == checkpoint_id}
        hits = looked_up(store, checkpoint_id, list(of.values()), k=k, threshold=-1.0)
        found |= dict(zip(of, hits, strict=True)) if hits else {}
    return found


def looked_up(
    store: SearchableStore, checkpoint_id: str, queries: Sequence[bytes], **options: Unpack[LookupOptions]
) -> list[tuple[Hit, ...]] | None:
    """Give the hits of each query; None where the active keyset is of another checkpoint, or there is none."""
    queries_BD = np.frombuffer(b"".join(queries), dtype=STORED).reshape(len(queries), -1).astype(np.float32)
    try:
        lookups = store.lookups.find(queries_BD, checkpoint_id=checkpoint_id, **options)
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


# The questions of misses: read from the outputs that asked them, since no miss holds a text. Session first.

Texts = tuple[str, str]  # a prompt and its output
ShowTexts = Callable[[Session, Mapping[int, Texts]], Mapping[int, Texts]]


class MissPlace(NamedTuple):
    """A lookup of an output, or with the ordinal -1 the output as a whole."""

    generation_id: int
    ordinal: int


def group_questions(
    session: Session, places: Collection[MissPlace], show: ShowTexts | None = None
) -> dict[MissPlace, str]:
    """Give what was asked at these places; `show` withholds from prompts and outputs, by output, what is past."""
    ids = {place.generation_id for place in places}
    stored = session.execute(_STORED.where(GenerationRow.id == func.any(list(ids)))).all()
    modes = {row.id: row.mode for row in stored}
    said: Mapping[int, Texts] = {row.id: (row.prompt, row.output) for row in stored}
    said = show(session, said) if show else said
    starts = _starts(session, [place for place in places if place.ordinal != WHOLE])
    return {
        place: question_of(modes[place.generation_id], prompt, output[:start], is_read=is_read)
        for place in places
        if place.generation_id in said
        for prompt, output in (said[place.generation_id],)
        for start, is_read in (starts.get(place, (0, False)),)
    }


_STORED = select(GenerationRow.id, GenerationRow.mode, GenerationRow.prompt, GenerationRow.output)


def was_read() -> ColumnElement[bool]:
    """Select whether the reader was asked the prompt's question: no lookup before this one had found a fact."""
    earlier = aliased(AttributionRow)
    found = exists().where(
        earlier.generation_id == AttributionRow.generation_id,
        earlier.ordinal < AttributionRow.ordinal,
        earlier.outcome == "hit",
    )
    return (GenerationRow.ranking == READER) & ~found


def _starts(session: Session, places: Collection[MissPlace]) -> dict[MissPlace, tuple[int, bool]]:
    if not places:
        return {}
    place = (AttributionRow.generation_id, AttributionRow.ordinal)
    statement = (
        select(*place, AttributionRow.output_start, was_read())
        .join(GenerationRow, GenerationRow.id == AttributionRow.generation_id)
        .where(tuple_(*place).in_(places))
    )
    return {MissPlace(*row[:2]): (row[2], row[3]) for row in session.execute(statement)}
