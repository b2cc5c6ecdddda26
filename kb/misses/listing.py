"""Stores misses, and lists their groups with their questions. The session is the first parameter.

A miss names the lookup. What was asked stays with the output alone, from which it is read, so redacting and withholding
need not know of it.

Questions of a group are asked again to see whether they find the fact that is said to solve it. One that was read, for
an answer or for a decoder, is asked as an answer is. What a decoder looked up by key or words is looked up again by the
query that was kept. What was asked for without proposed facts is asked again so.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, NamedTuple, Protocol, Unpack

import numpy as np
from sqlalchemy import ColumnElement, Select, and_, delete, exists, func, insert, select, text, true, tuple_
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.orm import Session, aliased

from colmlm.kb.errors import IndexBehind, InvalidQuery, KeysetMismatch, NoActiveKeyset, refusals
from colmlm.kb.facts import reading, suppression
from colmlm.kb.facts.edits import IS_LIVE
from colmlm.kb.facts.records import FactRecord
from colmlm.kb.keys.keysets import STORED
from colmlm.kb.log import audit
from colmlm.kb.log.records import ChangeRecord
from colmlm.kb.lookup.options import READER, FilterOptions, LookupOptions, filter_of
from colmlm.kb.lookup.records import Hit
from colmlm.kb.lookup.searchable import SearchableStore, SentenceFound
from colmlm.kb.misses.records import (
    WHOLE,
    AskedAgain,
    MissedQuestion,
    MissGroup,
    MissSort,
    MissState,
    NearFact,
)
from colmlm.kb.tables import (
    AttributionRow,
    ChangeRow,
    FactRow,
    FactVersionRow,
    FeedbackRow,
    GenerationRow,
    MissGroupRow,
    MissRow,
    copy_columns,
)
from colmlm.kb.texts.asked import question_of_lookup

READ = 500  # of a group's last misses, among which its different questions are
MAX_ID = 2**63 - 1


def list_groups(
    session: Session, state: MissState, sort: MissSort, after: int, limit: int, show: ShowTexts | None
) -> list[MissGroup]:
    """List groups of this state past the group `after`, or from the first on where that is gone."""
    by = MissGroupRow.asked if sort == "asked" else MissGroupRow.last_at
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
        copy_columns(
            MissGroup,
            row,
            group_id=row.id,
            question=asked.get(places[row.id], ""),
            generation_id=places[row.id].generation_id,
            ordinal=places[row.id].ordinal,
            decision=decisions.get(row.seq) if row.seq is not None else None,
        )
        for row in rows
    ]


def _last_of(session: Session, group_ids: Sequence[int]) -> dict[int, MissPlace]:
    """Give the place of the last miss of each group, each by one step in an index."""
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
    return {change.seq: audit.change_record(change) for change in found}


def questions_in_group(session: Session, group_id: int, show: ShowTexts | None) -> tuple[MissedQuestion, ...]:
    """List the different questions among the last misses of a group, newest first."""
    rows = session.execute(_newest(group_id)).all()
    asked = group_questions(session, [MissPlace(row.generation_id, row.ordinal) for row in rows], show)
    found: dict[tuple[str, bool, tuple[str, ...]], list[Any]] = {}
    for row in rows:
        question = asked.get(MissPlace(row.generation_id, row.ordinal), "")
        found.setdefault((question, row.accepted_only, tuple(row.corpora)), []).append(row)
    proposed = _proposed_values(session, [row.generation_id for row in rows]) if show is None else {}
    return tuple(
        MissedQuestion(
            question,
            len(same),
            same[0].at,
            same[0].generation_id,
            same[0].ordinal,
            _first_proposal(same, proposed),
            accepted_only,
            corpora,
        )
        for (question, accepted_only, corpora), same in found.items()
    )


def _newest(group_id: int) -> Select[*tuple[Any, ...]]:
    return (
        select(
            MissRow.generation_id,
            MissRow.ordinal,
            GenerationRow.at,
            GenerationRow.accepted_only,
            GenerationRow.corpora,
        )
        .join(GenerationRow, GenerationRow.id == MissRow.generation_id)
        .where(MissRow.group_id == group_id)
        .order_by(MissRow.generation_id.desc(), MissRow.ordinal)
        .limit(READ)
    )


def _proposed_values(session: Session, generation_ids: Sequence[int]) -> dict[int, str]:
    """Give the value that was proposed last for each of these outputs."""
    said = select(FeedbackRow.generation_id, FeedbackRow.value).where(
        FeedbackRow.generation_id == func.any(list(generation_ids)), FeedbackRow.value.is_not(None)
    )
    return {row.generation_id: row.value for row in session.execute(said.order_by(FeedbackRow.at))}


def _first_proposal(rows: Iterable[Any], proposed: dict[int, str]) -> str | None:
    return next((proposed[row.generation_id] for row in rows if row.generation_id in proposed), None)


# Near facts: finds the live facts nearest to what was missed, as the base is now.
#
# A query that was kept is looked up by key, in the keyset of its checkpoint, if that is active; else the
# words of the question find sentences, and the facts in them are near.

Query = tuple[str, bytes]  # the checkpoint, and the vector as it is stored


def add_near_facts(store: SearchableStore, groups: Sequence[MissGroup], k: int) -> list[MissGroup]:
    """Give the groups with the k live facts nearest to the last question of each."""
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
                nearest=tuple(_near_fact(hit, known[hit.fact_id]) for hit in by_key.get(one.group_id, ()))
                or tuple(islice(_by_words(store, session, one.question, k), k)),
            )
            for one in groups
        ]


def _near_fact(hit: Hit, fact: FactRecord) -> NearFact:
    document_id = fact.source.document_id if fact.source else None
    return NearFact(hit.fact_id, hit.value, fact.question, hit.score, document_id)


def stored_queries(session: Session, places: Sequence[MissPlace]) -> dict[MissPlace, Query]:
    """Give the stored query of each lookup that has one; for an output as a whole, that of its first lookup."""
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
    """Give the hits of each group's query, by group id. Queries that the active keyset does not answer are left out."""
    found: dict[int, tuple[Hit, ...]] = {}
    for checkpoint_id in {checkpoint_id for checkpoint_id, _ in asked.values()}:
        of = {one: query for one, (space, query) in asked.items() if space == checkpoint_id}
        hits = look_up_queries(store, checkpoint_id, list(of.values()), k=k, threshold=-1.0)
        found |= dict(zip(of, hits, strict=True)) if hits else {}
    return found


def look_up_queries(
    store: SearchableStore, checkpoint_id: str, queries: Sequence[bytes], **options: Unpack[LookupOptions]
) -> list[tuple[Hit, ...]] | None:
    """Give the hits of each stored query; None if no keyset of this checkpoint is active and can answer."""
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
            .where(_said_in_sentence(sentence))
        )
        for row in session.execute(statement.order_by(FactRow.span_start, FactRow.id).limit(k)):
            yield NearFact(row.id, row.value, row.question, None, sentence.document_id)


def _said_in_sentence(sentence: SentenceFound) -> ColumnElement[bool]:
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
    """A lookup of an output by its ordinal, or with the ordinal -1 the output as a whole."""

    generation_id: int
    ordinal: int


def group_questions(
    session: Session, places: Collection[MissPlace], show: ShowTexts | None = None
) -> dict[MissPlace, str]:
    """Give the question of each miss, by its place; `show` withholds what is past from prompts and outputs."""
    ids = {place.generation_id for place in places}
    stored = session.execute(_STORED.where(GenerationRow.id == func.any(list(ids)))).all()
    modes = {row.id: row.mode for row in stored}
    said: Mapping[int, Texts] = {row.id: (row.prompt, row.output) for row in stored}
    said = show(session, said) if show else said
    starts = _output_starts(session, [place for place in places if place.ordinal != WHOLE])
    return {
        place: question_of_lookup(modes[place.generation_id], prompt, output[:start], asks_reader=asks_reader)
        for place in places
        if place.generation_id in said
        for prompt, output in (said[place.generation_id],)
        for start, asks_reader in (starts.get(place, (0, False)),)
    }


_STORED = select(GenerationRow.id, GenerationRow.mode, GenerationRow.prompt, GenerationRow.output)


def read_question_condition() -> ColumnElement[bool]:
    """Build a condition (SQL): a lookup asked the reader the prompt's own question, as no earlier one was a hit."""
    earlier = aliased(AttributionRow)
    found = exists().where(
        earlier.generation_id == AttributionRow.generation_id,
        earlier.ordinal < AttributionRow.ordinal,
        earlier.outcome == "hit",
    )
    return (GenerationRow.ranking == READER) & ~found


def _output_starts(session: Session, places: Collection[MissPlace]) -> dict[MissPlace, tuple[int, bool]]:
    if not places:
        return {}
    place = (AttributionRow.generation_id, AttributionRow.ordinal)
    statement = (
        select(*place, AttributionRow.output_start, read_question_condition())
        .join(GenerationRow, GenerationRow.id == AttributionRow.generation_id)
        .where(tuple_(*place).in_(places))
    )
    return {MissPlace(*row[:2]): (row[2], row[3]) for row in session.execute(statement)}


GROUPS_LOCK = 0x636F6C6D0B

AT_ONCE = 10_000  # misses that are pruned in a transaction


def lock_groups(session: Session) -> None:
    """Keep others from writing groups until this transaction ends; to be called before the change log is locked."""
    session.execute(select(func.pg_advisory_xact_lock(GROUPS_LOCK)))


def note_miss(session: Session, generation_id: int, ordinals: Iterable[int]) -> None:
    """Store a miss for each of these lookups of an output."""
    if rows := [{"generation_id": generation_id, "ordinal": ordinal} for ordinal in ordinals]:
        session.execute(insert(MissRow), rows)


def groups_of(session: Session, generation_id: int) -> tuple[int, ...]:
    """Give the groups that the misses of an output are in."""
    of_output = select(MissRow.group_id).where(
        MissRow.generation_id == generation_id, MissRow.group_id.is_not(None)
    )
    return tuple(sorted({group_id for group_id in session.scalars(of_output) if group_id is not None}))


def note_wrong(session: Session, generation_id: int) -> None:
    """Store a miss for an output that somebody called wrong, unless its lookups have misses already."""
    missed = select(MissRow.ordinal).where(MissRow.generation_id == generation_id, MissRow.ordinal != WHOLE)
    if session.scalars(missed.limit(1)).first() is None:
        row = upsert(MissRow).values(generation_id=generation_id, ordinal=WHOLE)
        session.execute(row.on_conflict_do_nothing())


def forget_wrong(session: Session, generation_id: int) -> None:
    """Delete the miss that `note_wrong` stored, where nobody calls the output wrong any more. Groups must be locked."""
    gone = delete(MissRow).where(MissRow.generation_id == generation_id, MissRow.ordinal == WHOLE)
    _recount(session, session.scalars(gone.returning(MissRow.group_id)).all())


def prune_misses(session: Session, older_than: timedelta) -> int:
    """Remove up to 10,000 misses older than `older_than`, with their outputs that have no text, and count them.

    Outputs with a text stay. Groups without any miss go.
    """
    suppression.hold_off_erasure(session)
    lock_groups(session)
    before: datetime = session.scalars(select(func.clock_timestamp() - older_than)).one()
    old = select(MissRow.generation_id, MissRow.ordinal, MissRow.group_id).where(MissRow.at < before)
    rows = session.execute(old.order_by(MissRow.at).limit(AT_ONCE)).all()
    ids = [row.generation_id for row in rows]
    silent = select(GenerationRow.id).where(GenerationRow.id == func.any(ids), GenerationRow.output == "")
    gone = list(session.scalars(silent))
    touched = set(session.scalars(select(MissRow.group_id).where(MissRow.generation_id == func.any(gone))))
    session.execute(delete(MissRow).where(MissRow.generation_id == func.any(ids), MissRow.at < before))
    session.execute(delete(GenerationRow).where(GenerationRow.id == func.any(gone)))
    _recount(session, touched | {row.group_id for row in rows})
    return len(rows)


# The oldest miss that is left leads the group, as long as its leader is not there.
_RECOUNT = text("""
UPDATE miss_group g SET asked = n.asked, wrong = n.wrong, last_at = coalesce(n.last_at, g.last_at),
    generation_id = coalesce(n.generation_id, g.generation_id), ordinal = coalesce(n.ordinal, g.ordinal)
FROM (
    SELECT of.id, count(m.generation_id) AS asked, count(*) FILTER (WHERE m.ordinal = :whole) AS wrong,
        max(o.at) AS last_at,
        (array_agg(m.generation_id ORDER BY m.generation_id, m.ordinal))[1] AS generation_id,
        (array_agg(m.ordinal ORDER BY m.generation_id, m.ordinal))[1] AS ordinal
    FROM miss_group of LEFT JOIN miss m ON m.group_id = of.id LEFT JOIN generation o ON o.id = m.generation_id
    WHERE of.id = ANY(CAST(:ids AS bigint[])) GROUP BY of.id
) AS n
WHERE g.id = n.id
""")

_DROP_EMPTY = text("DELETE FROM miss_group WHERE id = ANY(CAST(:ids AS bigint[])) AND asked = 0")


def _recount(session: Session, group_ids: Collection[int | None]) -> None:
    """Count the misses of these groups anew, and drop those that have none."""
    if ids := sorted({group_id for group_id in group_ids if group_id is not None}):
        session.execute(_RECOUNT, {"ids": ids, "whole": WHOLE})
        session.execute(_DROP_EMPTY, {"ids": ids})


class Asks(Protocol):
    """Answers a question, and gives the ids of the facts in the answer."""

    def __call__(self, question: str, **only: Unpack[FilterOptions]) -> Collection[int]: ...


FROM_TEXTS = "read"  # the mode of outputs whose question was answered from texts
MOST_ASKED = 5  # different questions of a group, the newest


class _Kept(NamedTuple):
    was_read: bool
    query: Query | None


def ask_again(
    store: SearchableStore, asks: Asks | None, questions: Sequence[MissedQuestion], fact_id: int
) -> tuple[AskedAgain, ...]:
    """Ask the newest five questions again, and say which find the fact. A lookup without a stored query finds none."""
    asked = questions[:MOST_ASKED]
    kept = _stored_misses(store, asked)
    return tuple(
        AskedAgain(one.question, one.generation_id, fact_id in _fact_ids(store, asks, one, kept[place]))
        for one in asked
        if (place := MissPlace(one.generation_id, one.ordinal)) in kept
    )


def _stored_misses(store: SearchableStore, asked: Sequence[MissedQuestion]) -> dict[MissPlace, _Kept]:
    places = [MissPlace(one.generation_id, one.ordinal) for one in asked]
    with store.sessions() as session:
        queries = stored_queries(session, places)
        rows = session.execute(
            select(GenerationRow.id, GenerationRow.mode, GenerationRow.ranking).where(
                GenerationRow.id == func.any([place.generation_id for place in places])
            )
        )
        was_read = {row.id: row.ranking == READER or row.mode == FROM_TEXTS for row in rows}
    return {
        place: _Kept(was_read[place.generation_id], queries.get(place))
        for place in places
        if place.generation_id in was_read
    }


def _fact_ids(store: SearchableStore, asks: Asks | None, one: MissedQuestion, kept: _Kept) -> Collection[int]:
    if kept.was_read and asks is not None:
        return asks(one.question, **filter_of(one))
    if kept.query is None:
        return ()
    checkpoint_id, query = kept.query
    hits = look_up_queries(store, checkpoint_id, [query], k=1, threshold=None, **filter_of(one))
    return [hit.fact_id for hit in hits[0]] if hits else ()
