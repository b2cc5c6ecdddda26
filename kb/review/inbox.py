"""The inbox: proposed facts, those first where most is at stake. Session first.

What is cited is read from the newest lookups of outputs, and what contradicts from the newest contradictions, so that a
page costs the same however many there are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from sqlalchemy import ColumnElement, func, literal, select, text, tuple_
from sqlalchemy.orm import Session

from colmlm.kb.facts import reading
from colmlm.kb.facts.reading import IS_PROPOSED
from colmlm.kb.facts.records import COUNTED
from colmlm.kb.review.neighbours import neighbours
from colmlm.kb.review.records import IN_INBOX, Inbox, InboxItem, Kind, ReviewProgress
from colmlm.kb.review.surroundings import surroundings
from colmlm.kb.store.bad_values import check_limit
from colmlm.kb.tables import AttributionRow, DocumentRow, FactRow

NEWEST = 5_000  # lookups of outputs that are looked at for what is cited
NEWEST_PAIRS = 2_000  # contradictions that are looked at for what contradicts
_MOST = 100  # uses from which on facts are at stake alike
_PLACE = 1 << 56  # a place in the inbox is group * _PLACE + id, so that it is one number as every `after` is
_DOUBTED, _CONTRADICTING, _OTHERS = range(_MOST, _MOST + 3)  # groups behind those of cited facts
_HAS_NO_DOUBT = FactRow.doubt.is_(None)
_OPEN = text("""
SELECT fact_id, other_id FROM standing_pair WHERE NOT same_value AND held_seq IS NULL ORDER BY id DESC LIMIT :newest
""")


def inbox(
    session: Session,
    *,
    corpus: str | None = None,
    document_id: int | None = None,
    kind: Kind = "any",
    after: int = 0,
    limit: int = IN_INBOX,
) -> Inbox:
    """Gives a part of the inbox. Raises `CorpusNotFound`."""
    check_limit(limit)
    if corpus is not None:
        reading.require_corpus(session, corpus)
    of = list(_of(corpus, document_id))
    which = [IS_PROPOSED, *of, *_of_kind(kind)]
    uses = _cited(session, which)
    against = _contradicting(session, which)
    if kind == "cited":
        places = _past(_cited_places(uses), after, limit + 1)
    else:
        places = _places(session, which, uses, against, after, limit + 1)
    more, places = len(places) > limit, places[:limit]
    number = len(uses) if kind == "cited" else _count(session, which)
    return Inbox(
        items=tuple(_items(session, [place % _PLACE for place in places], uses, against)),
        total=min(number, COUNTED),
        is_exact=number <= COUNTED,
        next_after=places[-1] if more else None,
        progress=_progress(session, of),
    )


def progress(session: Session, corpus: str | None, document_id: int | None) -> ReviewProgress:
    """Counts what is proposed and what was settled, of a corpus or document or of all."""
    return _progress(session, list(_of(corpus, document_id)))


def _of(corpus: str | None, document_id: int | None) -> Iterator[ColumnElement[bool]]:
    if corpus is not None:
        yield FactRow.document_id.in_(select(DocumentRow.id).where(DocumentRow.corpus == corpus))
    if document_id is not None:
        yield FactRow.document_id == document_id


def _of_kind(kind: Kind) -> Iterator[ColumnElement[bool]]:
    if kind == "doubted":
        yield FactRow.doubt.is_not(None)
    if kind == "unasked":
        yield FactRow.question.is_(None)


def _cited(session: Session, which: list[ColumnElement[bool]]) -> dict[int, int]:
    """Gives how many of the newest outputs cite each fact that fits; facts that none cites are left out."""
    newest = (
        select(AttributionRow.generation_id, AttributionRow.fact_id)
        .order_by(AttributionRow.generation_id.desc(), AttributionRow.ordinal.desc())
        .limit(NEWEST)
    )
    citing: dict[int, set[int]] = {}
    for generation_id, fact_id in session.execute(newest):
        citing.setdefault(fact_id or 0, set()).add(generation_id)
    # Their ids are given one by one, since joined with them the server would read all that is proposed.
    fitting = session.scalars(select(FactRow.id).where(FactRow.id == func.any(list(citing)), *which))
    return {fact_id: len(citing[fact_id]) for fact_id in fitting}


def _contradicting(session: Session, which: list[ColumnElement[bool]]) -> frozenset[int]:
    """Gives the facts that fit and that one of the newest contradictions is of."""
    pairs = session.execute(_OPEN, {"newest": NEWEST_PAIRS})
    facts = sorted({fact_id for pair in pairs for fact_id in pair})
    return frozenset(session.scalars(select(FactRow.id).where(FactRow.id == func.any(facts), *which)))


def _cited_places(uses: Mapping[int, int]) -> list[int]:
    return sorted((_MOST - min(number, _MOST)) * _PLACE + fact_id for fact_id, number in uses.items())


def _past(places: Iterable[int], after: int, limit: int) -> list[int]:
    return [place for place in places if place > after][:limit]


def _places(
    session: Session,
    which: list[ColumnElement[bool]],
    uses: Mapping[int, int],
    against: Collection[int],
    after: int,
    limit: int,
) -> list[int]:
    """Gives the places of facts past `after`: cited ones, doubted ones, those that contradict, and the others."""
    found = _past(_cited_places(uses), after, limit)
    if len(found) < limit and after < _CONTRADICTING * _PLACE:
        doubted = _by_index(session, [*which, FactRow.id != func.all(list(uses))], _DOUBTED, after, limit)
        found += [place for place in doubted if place < _CONTRADICTING * _PLACE][: limit - len(found)]
    if len(found) < limit and after < _OTHERS * _PLACE:
        left = select(FactRow.id).where(FactRow.id == func.any(list(against)), _HAS_NO_DOUBT)
        ids = sorted(set(session.scalars(left)) - uses.keys())
        found += _past((_CONTRADICTING * _PLACE + fact_id for fact_id in ids), after, limit - len(found))
    if len(found) < limit:
        before = [*uses, *against]
        found += _by_index(
            session, [*which, FactRow.id != func.all(before)], _OTHERS, after, limit - len(found)
        )
    return found


def _by_index(
    session: Session, which: list[ColumnElement[bool]], group: int, after: int, limit: int
) -> list[int]:
    """Gives places past `after` in the order of the index, from those of a group on: doubted ones, or others."""
    last = max(after - group * _PLACE, 0)
    past = tuple_(_HAS_NO_DOUBT, FactRow.id) > tuple_(literal(group == _OTHERS), literal(last))
    rows = session.execute(
        select(_HAS_NO_DOUBT, FactRow.id).where(*which, past).order_by(_HAS_NO_DOUBT, FactRow.id).limit(limit)
    )
    return [(_OTHERS if undoubted else _DOUBTED) * _PLACE + fact_id for undoubted, fact_id in rows]


def _items(
    session: Session, fact_ids: list[int], uses: Mapping[int, int], against: Collection[int]
) -> Iterator[InboxItem]:
    facts = reading.fact_records(session, fact_ids)
    asked = select(FactRow.id, FactRow.doubt).where(FactRow.id == func.any(fact_ids))
    doubts = {row.id: row.doubt for row in session.execute(asked)}
    around = surroundings(session, fact_ids)
    near = neighbours(session, [facts[fact_id] for fact_id in fact_ids])
    for fact_id in fact_ids:
        yield InboxItem(
            facts[fact_id],
            uses.get(fact_id, 0),
            doubts[fact_id],
            around.get(fact_id),
            near.get(fact_id, ()),
            fact_id in against,
        )


def _progress(session: Session, of: list[ColumnElement[bool]]) -> ReviewProgress:
    settled = FactRow.review_seq.is_not(None)
    proposed = _count(session, [IS_PROPOSED, *of])
    accepted = _count(session, [FactRow.review == "accepted", settled, *of])
    rejected = _count(session, [FactRow.review == "rejected", settled, *of])
    most = max(proposed, accepted, rejected)
    return ReviewProgress(
        proposed=min(proposed, COUNTED),
        accepted=min(accepted, COUNTED),
        rejected=min(rejected, COUNTED),
        is_exact=most <= COUNTED,
    )


def _count(session: Session, which: list[ColumnElement[bool]]) -> int:
    some = select(FactRow.id).where(*which).limit(COUNTED + 1).subquery()
    return session.scalar(select(func.count()).select_from(some)) or 0
