"""Searches facts: by the words of a text, by how near they are to a question, or by nothing but filters.

A text is sought by the words of values, of questions, and of sentences, of documents and of facts without one, each by
its index. Each gives up to 2,001 facts, so that a word that many have costs no more than that.
The session comes first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Unpack

from sqlalchemy import (
    ARRAY,
    CTE,
    BigInteger,
    ColumnElement,
    FromClause,
    case,
    column,
    func,
    literal,
    select,
    true,
    tuple_,
    union_all,
)
from sqlalchemy import text as text_of
from sqlalchemy.orm import Session

from colmlm.kb.facts import reading
from colmlm.kb.facts.filters import STANDS_IN, Ranked, chosen, conditions, left_by, says_the_past
from colmlm.kb.facts.places import places
from colmlm.kb.facts.records import (
    COUNTED,
    FACTS_LISTED,
    RANKED,
    FactFilters,
    FactFound,
    FactPage,
    FactRecord,
    FoundIn,
    Order,
)
from colmlm.kb.facts.sought import SoughtText
from colmlm.kb.facts.stretches import Stretches, lies_in, stretches_of
from colmlm.kb.log import audit
from colmlm.kb.store.bad_values import check_limit
from colmlm.kb.tables import FactRow, FactVersionRow, SentenceRow

_RANK = 1 << 56  # a place in a list is rank * _RANK + id, so that it is one number as every `after` is
# Limits make the server read tables where it should read indexes, and workers cost more than so little work.
_BY_INDEX = text_of("""
SELECT set_config('enable_seqscan', 'off', true), set_config('max_parallel_workers_per_gather', '0', true),
    set_config('plan_cache_mode', 'force_custom_plan', true)
""")
FAR = 20_000  # ids between the place where a page begins and the facts that it may find
_IS, _VALUE, _QUESTION, _WORDS, _SENTENCE = range(5)


def search(
    session: Session,
    *,
    text: str | None = None,
    literally: bool = False,
    nearest: Sequence[int] | None = None,
    order: Order = "best",
    after: int = 0,
    limit: int = FACTS_LISTED,
    past: bool = True,
    **filters: Unpack[FactFilters],
) -> FactPage:
    """Gives the facts that `FactSearch` describes; of `nearest`, ids in the order to give, those that fit.

    Raises `CorpusNotFound`, and `InvalidQuery` where the text cannot be in any.
    """
    check_limit(limit)
    audit.check_text("text", (text or "").replace("\x00", ""), limit=10**9)  # with a NUL it is in no text
    if (corpus := filters.get("corpus")) is not None:
        reading.require_corpus(session, corpus)
    sought = SoughtText.read(session, text, literally=literally) if text else None
    which = list(conditions(**filters))
    if nearest is not None:
        ranked: FromClause = _near(nearest, which)
    elif sought is not None:
        is_live = filters.get("state", "live") == "live"
        last = reading.IS_LIVE_VERSION if is_live else reading.IS_LAST_VERSION
        lies = [] if corpus is None else [stretches_of(session, corpus)]
        ranked = _saying(session, sought, which, last, lies, past=past)
    else:
        ranked = _fitting(session, after, filters)
    by_rank = (sought is not None or nearest is not None) and order == "best"
    most = COUNTED if sought is None else RANKED
    by = order if by_rank or order != "best" else "id"
    ids, total, more = _page(session, ranked, by, after, limit, most)
    records = reading.fact_records(session, [fact_id for fact_id, _ in ids])
    found = [records[fact_id] for fact_id, _ in ids]
    said = places(session, found, sought, past=past) if sought else {}
    end = ids[-1] if more else None
    return FactPage(
        facts=tuple(as_found(record, said.get(record.fact_id, ())) for record in found),
        total=min(total, most),
        is_exact=total <= most,
        next_after=None if end is None else end[1] * _RANK * by_rank + end[0],
    )


def as_found(record: FactRecord, found: tuple[FoundIn, ...] = ()) -> FactFound:
    return FactFound(**{field.name: getattr(record, field.name) for field in fields(FactRecord)}, found=found)


def _fitting(session: Session, after: int, filters: FactFilters) -> FromClause:
    """Gives the facts that fit the filters: chosen by an index where they are few or far, else read by their ids."""
    ranked = select(FactRow.id, literal(0).label("rank"))
    if sources := chosen(ranked, **filters):
        which = list(conditions(**left_by(**filters)))
        few = _union(sources, which, COUNTED)
        some = few.subquery()
        count, first = session.execute(select(func.count(), func.min(some.c.id))).one()
        if count <= COUNTED:
            return few.cte("found")
        if len(sources) == 1 and first - after > FAR:
            return sources[0].where(*which).subquery()
    return ranked.where(*conditions(reading=True, **filters)).subquery()


def _union(sources: Sequence[Ranked], which: list[ColumnElement[bool]], most: int) -> Ranked:
    found = union_all(*(source.where(*which).limit(most + 1) for source in sources)).subquery()
    return select(found.c.id, func.min(found.c.rank).label("rank")).group_by(found.c.id)


def _near(nearest: Sequence[int], which: list[ColumnElement[bool]]) -> CTE:
    given = func.unnest(literal(list(nearest), ARRAY(BigInteger)))
    near = given.table_valued(column("id", BigInteger), with_ordinality="rank", name="near").render_derived()
    return select(FactRow.id, near.c.rank).join(near, near.c.id == FactRow.id).where(*which).cte("found")


def _saying(
    session: Session,
    sought: SoughtText,
    which: list[ColumnElement[bool]],
    last: ColumnElement[bool],
    lies: Sequence[Stretches],
    *,
    past: bool,
) -> CTE:
    """Gives the facts that say this text, each with the least rank that it was found by."""
    value, question = FactVersionRow.value, FactRow.question
    value_rank = case(
        (func.lower(value) == sought.text, _IS), (sought.as_it_stands(value), _VALUE), else_=_WORDS
    )
    question_rank = case((sought.as_it_stands(question), _QUESTION), else_=_WORDS)
    near = [lies_in(stretches, FactRow.document_id) for stretches in lies]
    session.execute(_BY_INDEX)
    sources = [
        select(FactRow.id, value_rank.label("rank"))
        .join(FactVersionRow, last)
        .where(sought.within(value), *near),
        select(FactRow.id, question_rank.label("rank")).where(sought.within(question), *near),
        *_of_sentences(sought, lies, past=past),
    ]
    return _union(sources, which, RANKED).cte("found")


def _of_sentences(sought: SoughtText, lies: Sequence[Stretches], *, past: bool) -> list[Ranked]:
    if (said := sought.of_sentences()) is None:
        return []
    ranked = select(FactRow.id, literal(_SENTENCE).label("rank")).where(said)
    near = [lies_in(stretches, SentenceRow.document_id) for stretches in lies]
    of_document = ranked.join(SentenceRow, STANDS_IN).where(*near)
    return [
        of_document if past else of_document.where(~says_the_past()),
        *([] if lies else [ranked.join(SentenceRow, SentenceRow.fact_id == FactRow.id)]),
    ]


def _page(
    session: Session, found: FromClause, order: Order, after: int, limit: int, most: int
) -> tuple[list[tuple[int, int]], int, bool]:
    """Gives ids and ranks of a part of what was found, how many there are in all, and whether more follow."""
    fact_id, rank = found.c.id, found.c.rank
    by: tuple[ColumnElement[Any], ...]
    if order == "best":
        by, follows = (rank, fact_id), tuple_(rank, fact_id) > divmod(after, _RANK)
    elif order == "newest":
        by, follows = (fact_id.desc(),), fact_id < after if after else true()
    else:
        by, follows = (fact_id,), fact_id > after
    bounded = select(fact_id).limit(most + 1).subquery("bounded")
    counted = select(func.count().label("total")).select_from(bounded).subquery("counted")
    numbered = func.row_number().over(order_by=by).label("at")
    page = select(fact_id, rank, numbered).where(follows).order_by(*by).limit(limit + 1).subquery("page")
    rows = session.execute(
        select(counted.c.total, page.c.id, page.c.rank)
        .select_from(counted.outerjoin(page, true()))
        .order_by(page.c.at)
    ).all()
    ids = [(row.id, row.rank) for row in rows if row.id is not None]
    return ids[:limit], rows[0].total, len(ids) > limit
