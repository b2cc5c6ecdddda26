"""The inbox: proposed facts, those first where most is at stake. Session first.

Facts that are neither cited nor contradict are read in the order of an index, doubted ones and then the others, each
by document and id. So a part of a corpus costs the same as one of all.
"""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import BigInteger, ColumnElement, func, literal, literal_column, select, tuple_
from sqlalchemy.orm import Session

from colmlm.kb.facts import reading
from colmlm.kb.facts.edits import MAX_ID
from colmlm.kb.facts.reading import IS_PROPOSED
from colmlm.kb.facts.records import COUNTED
from colmlm.kb.review.neighbours import neighbours
from colmlm.kb.review.part import Part
from colmlm.kb.review.records import IN_INBOX, Inbox, InboxItem, Kind, ReviewProgress
from colmlm.kb.review.stakes import CONTRADICTING, DOUBTED, OTHERS, PLACE, Stakes, past
from colmlm.kb.review.surroundings import surroundings
from colmlm.kb.store.bad_values import check_limit
from colmlm.kb.tables import FactRow

_HAS_NO_DOUBT = FactRow.doubt.is_(None)
_DOCUMENT = literal_column("coalesce(fact.document_id, 0)", BigInteger)  # as the index has it
_ORDER = (_HAS_NO_DOUBT, _DOCUMENT, FactRow.id)
_KNOWN: tuple[Kind, ...] = ("cited", "contradicting")  # kinds whose facts are known one by one


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
    part = Part.read(session, corpus, document_id)
    which = [IS_PROPOSED, *part.walked, *_of_kind(kind)]
    stakes = Stakes.read(session, which)
    if kind in _KNOWN:
        known = stakes.places(kind)
        places, number = past(known, after, limit + 1), len(known)
    else:
        places = _places(session, which, part, stakes, after, limit + 1)
        number = _count(session, [IS_PROPOSED, *part.counted, *_of_kind(kind)])
    more, places = len(places) > limit, places[:limit]
    return Inbox(
        items=tuple(_items(session, [place % PLACE for place in places], stakes)),
        total=min(number, COUNTED),
        is_exact=number <= COUNTED and (kind != "contradicting" or stakes.reach),
        next_after=places[-1] if more else None,
        progress=_progress(session, part),
    )


def progress(session: Session, corpus: str | None, document_id: int | None) -> ReviewProgress:
    """Counts what is proposed and what was settled, of a corpus or document or of all. Raises `CorpusNotFound`."""
    return _progress(session, Part.read(session, corpus, document_id))


def _of_kind(kind: Kind) -> Iterator[ColumnElement[bool]]:
    if kind == "doubted":
        yield FactRow.doubt.is_not(None)
    if kind == "unasked":
        yield FactRow.question.is_(None)


def _places(
    session: Session, which: list[ColumnElement[bool]], part: Part, stakes: Stakes, after: int, limit: int
) -> list[int]:
    """Gives the places of facts past `after`: cited ones, doubted ones, those that contradict, and the others."""
    found = past(stakes.places(), after, limit)
    others = [*which, FactRow.id != func.all([*stakes.uses, *stakes.against])]
    doubted = [*which, FactRow.id != func.all(list(stakes.uses))]
    if len(found) < limit and after < CONTRADICTING * PLACE:
        found += _by_index(session, doubted, part, DOUBTED, after, limit - len(found))
    if len(found) < limit and after < OTHERS * PLACE:
        found += past(stakes.contradicting(), after, limit - len(found))
    if len(found) < limit:
        found += _by_index(session, others, part, OTHERS, after, limit - len(found))
    return found


def _by_index(
    session: Session, which: list[ColumnElement[bool]], part: Part, group: int, after: int, limit: int
) -> list[int]:
    """Gives places of a group past `after`, in the order of the index: doubted ones, or the others."""
    found: list[int] = []
    begin, order = _begin(session, after, group), tuple_(*_ORDER)
    for first, last in part.stretches:
        ends = max(begin, (first, 0)), (last, MAX_ID)
        above, below = (tuple_(literal(group == OTHERS), *map(literal, end)) for end in ends)
        rows = select(FactRow.id).where(*which, order > above, order <= below).order_by(*_ORDER)
        found += session.scalars(rows.limit(limit - len(found)))
        if len(found) == limit:
            break
    return [group * PLACE + fact_id for fact_id in found]


def _begin(session: Session, after: int, group: int) -> tuple[int, int]:
    """Gives the document and id of the fact at `after`, past which a group goes on; zeros where it begins."""
    last = after - group * PLACE
    if last <= 0:
        return 0, 0
    return session.scalar(select(_DOCUMENT).select_from(FactRow).where(FactRow.id == last)) or 0, last


def _items(session: Session, fact_ids: list[int], stakes: Stakes) -> Iterator[InboxItem]:
    facts = reading.fact_records(session, fact_ids)
    asked = select(FactRow.id, FactRow.doubt).where(FactRow.id == func.any(fact_ids))
    doubts = {row.id: row.doubt for row in session.execute(asked)}
    around = surroundings(session, fact_ids)
    near = neighbours(session, [facts[fact_id] for fact_id in fact_ids])
    for fact_id in fact_ids:
        yield InboxItem(
            facts[fact_id],
            stakes.uses.get(fact_id, 0),
            doubts[fact_id],
            around.get(fact_id),
            near.get(fact_id, ()),
            fact_id in stakes.against,
        )


def _progress(session: Session, part: Part) -> ReviewProgress:
    of, settled = part.counted, FactRow.review_seq.is_not(None)
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
