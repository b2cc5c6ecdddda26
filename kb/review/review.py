"""Review: proposed facts are listed and judged; a corpus or a keyset may let only accepted ones answer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Unpack

from sqlalchemy import BigInteger, ColumnElement, func, literal, literal_column, select, text, tuple_, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from colmlm.kb.errors import InvalidValue, refusals
from colmlm.kb.facts import edits, reading
from colmlm.kb.facts.edits import MAX_ID, settle_review
from colmlm.kb.facts.reading import IS_PROPOSED, Stretches, stretches_condition, stretches_of
from colmlm.kb.facts.records import COUNTED, PLACE, Edit, FactRecord, ReviewResult, ReviewVerdict
from colmlm.kb.log import audit
from colmlm.kb.log.records import OnRecord
from colmlm.kb.review.records import (
    IN_INBOX,
    Inbox,
    InboxItem,
    InboxSought,
    Kind,
    Neighbour,
    ReviewProgress,
    Surroundings,
)
from colmlm.kb.store.engines import check_limit
from colmlm.kb.store.store import Store
from colmlm.kb.store.waits import retry_on_contention
from colmlm.kb.tables import AttributionRow, CorpusReviewRow, DocumentRow, FactRow, KeysetRow


@dataclass(frozen=True, slots=True)
class FactReview:
    """The review of the facts of a store."""

    store: Store

    def inbox(self, **sought: Unpack[InboxSought]) -> Inbox:
        """Give a part of the inbox: cited facts first, then doubted and contradicting ones. Raises `CorpusNotFound`."""
        with self.store.sessions() as session:
            return review_inbox(session, **sought)

    def progress(self, *, corpus: str | None = None, document_id: int | None = None) -> ReviewProgress:
        """Count the proposed and the settled facts of a corpus, of a document or of all. Raises `CorpusNotFound`."""
        with self.store.sessions() as session:
            return _progress(session, InboxConditions.read(session, corpus, document_id))

    @retry_on_contention
    def settle(self, judged: Sequence[ReviewVerdict], *, actor: str, reason: str) -> ReviewResult:
        """Carry out verdicts, in one change for each kind; the result names those that no longer fit their facts.

        Raises `FactNotFound`, or `InvalidValue` if there is no verdict or a fact has two.
        """
        with self.store.group_commit.begin() as session:
            return settle_review(session, judged, actor, reason)

    @retry_on_contention
    def limit(
        self,
        *,
        accepted_only: bool,
        corpus: str | None = None,
        keyset_id: int | None = None,
        **who: Unpack[OnRecord],
    ) -> Edit:
        """Let only accepted facts of a corpus, or in a keyset, answer from this commit on, or let proposed ones, too.

        Raises `CorpusNotFound`, `KeysetNotFound` or `InvalidValue`.
        """
        with self.store.sessions.begin() as session:
            return limit_to_accepted(
                session, corpus, keyset_id, who["actor"], who["reason"], accepted_only=accepted_only
            )


# The inbox: proposed facts, those first where most is at stake. Session first.
#
# Facts that are neither cited nor contradict are read in the order of an index, doubted ones and then the
# others, each by document and id. So a part of a corpus costs the same as one of all.

_HAS_NO_DOUBT = FactRow.doubt.is_(None)
_DOCUMENT = literal_column("coalesce(fact.document_id, 0)", BigInteger)  # as the index has it
_ORDER = (_HAS_NO_DOUBT, _DOCUMENT, FactRow.id)
_KNOWN: tuple[Kind, ...] = ("cited", "contradicting")  # kinds whose facts are known one by one


def review_inbox(
    session: Session,
    *,
    corpus: str | None = None,
    document_id: int | None = None,
    kind: Kind = "any",
    after: int = 0,
    limit: int = IN_INBOX,
) -> Inbox:
    """Give at most `limit` items of the inbox past `after`, an earlier part's `next_after`. Raises `CorpusNotFound`."""
    check_limit(limit)
    part = InboxConditions.read(session, corpus, document_id)
    which = [IS_PROPOSED, *part.walked, *_conditions_of_kind(kind)]
    stakes = Stakes.read(session, which)
    if kind in _KNOWN:
        known = stakes.places(kind)
        places, number = page_of_places(known, after, limit + 1), len(known)
    else:
        places = _places(session, which, part, stakes, after, limit + 1)
        number = _count(session, [IS_PROPOSED, *part.counted, *_conditions_of_kind(kind)])
    more, places = len(places) > limit, places[:limit]
    return Inbox(
        items=tuple(_items(session, [place % PLACE for place in places], stakes)),
        total=min(number, COUNTED),
        is_exact=number <= COUNTED and (kind != "contradicting" or stakes.reach),
        next_after=places[-1] if more else None,
        progress=_progress(session, part),
    )


def _conditions_of_kind(kind: Kind) -> Iterator[ColumnElement[bool]]:
    if kind == "doubted":
        yield FactRow.doubt.is_not(None)
    if kind == "unasked":
        yield FactRow.question.is_(None)


def _places(
    session: Session,
    which: list[ColumnElement[bool]],
    part: InboxConditions,
    stakes: Stakes,
    after: int,
    limit: int,
) -> list[int]:
    """Give places (group and id in one number) past `after`: cited, doubted, contradicting and other facts."""
    found = page_of_places(stakes.places(), after, limit)
    others = [*which, FactRow.id != func.all([*stakes.uses, *stakes.against])]
    doubted = [*which, FactRow.id != func.all(list(stakes.uses))]
    if len(found) < limit and after < CONTRADICTING * PLACE:
        found += _by_index(session, doubted, part, DOUBTED, after, limit - len(found))
    if len(found) < limit and after < OTHERS * PLACE:
        found += page_of_places(stakes.contradicting(), after, limit - len(found))
    if len(found) < limit:
        found += _by_index(session, others, part, OTHERS, after, limit - len(found))
    return found


def _by_index(
    session: Session,
    which: list[ColumnElement[bool]],
    part: InboxConditions,
    group: int,
    after: int,
    limit: int,
) -> list[int]:
    """Give the places past `after` in the group of doubted facts or in that of the others, in index order."""
    found: list[int] = []
    begin, order = _start_in_index(session, after, group), tuple_(*_ORDER)
    for first, last in part.stretches:
        ends = max(begin, (first, 0)), (last, MAX_ID)
        above, below = (tuple_(literal(group == OTHERS), *map(literal, end)) for end in ends)
        rows = select(FactRow.id).where(*which, order > above, order <= below).order_by(*_ORDER)
        found += session.scalars(rows.limit(limit - len(found)))
        if len(found) == limit:
            break
    return [group * PLACE + fact_id for fact_id in found]


def _start_in_index(session: Session, after: int, group: int) -> tuple[int, int]:
    """Give the document and id of the fact at `after`, past which a group goes on; zeros where it begins."""
    last = after - group * PLACE
    if last <= 0:
        return 0, 0
    return session.scalar(select(_DOCUMENT).select_from(FactRow).where(FactRow.id == last)) or 0, last


def _items(session: Session, fact_ids: list[int], stakes: Stakes) -> Iterator[InboxItem]:
    facts = reading.fact_records(session, fact_ids)
    asked = select(FactRow.id, FactRow.doubt).where(FactRow.id == func.any(fact_ids))
    doubts = {row.id: row.doubt for row in session.execute(asked)}
    around = text_around(session, fact_ids)
    near = neighbouring_facts(session, [facts[fact_id] for fact_id in fact_ids])
    for fact_id in fact_ids:
        yield InboxItem(
            facts[fact_id],
            stakes.uses.get(fact_id, 0),
            doubts[fact_id],
            around.get(fact_id),
            near.get(fact_id, ()),
            fact_id in stakes.against,
        )


def _progress(session: Session, part: InboxConditions) -> ReviewProgress:
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


# Surroundings: what documents say around facts, in whole sentences. Session first.

# Sentences that begin or end so near to a fact are read with its own, as far as so many characters.
_AROUND = text("""
SELECT f.id, f.document_id, f.span_start, f.span_end, around.first,
       substr(d.text, around.first + 1, around.last - around.first) AS said
FROM fact f
JOIN document d ON d.id = f.document_id
CROSS JOIN LATERAL (
    SELECT greatest(least(coalesce(min(s.span_start), 0), f.span_start), f.span_start - 600, 0) AS first,
           least(greatest(coalesce(max(s.span_end), f.span_end + 600), f.span_end), f.span_end + 600) AS last
    FROM sentence s
    WHERE s.document_id = f.document_id AND s.span_start < f.span_end + 80 AND s.span_end > f.span_start - 80
) AS around
WHERE f.id = ANY(:ids)
""")


def text_around(session: Session, fact_ids: Sequence[int]) -> dict[int, Surroundings]:
    """Give, by fact, what its document says around it; facts without a document are left out."""
    return {
        row.id: Surroundings(
            row.document_id, row.first, row.said, row.span_start - row.first, row.span_end - row.first
        )
        for row in session.execute(_AROUND, {"ids": list(fact_ids)})
    }


# Neighbours: the live facts that a reviewer has to see beside one: those that ask the same, in the same
# words.
#
# Facts that contradict or say the same are found so too (`kb.facts.pairs`). Session first.

SHOWN = 5

_ASK_THE_SAME = text("""
SELECT asked.id AS of_id, found.id, found.value, found.question, found.review
FROM fact asked CROSS JOIN LATERAL (
    SELECT f.id, f.question, f.review, v.value
    FROM fact f JOIN fact_version v ON v.fact_id = f.id AND v.to_seq IS NULL
    WHERE asked_as(f.question) = asked_as(asked.question) AND f.question IS NOT NULL AND f.deleted_seq IS NULL
      AND f.id <> asked.id
    ORDER BY f.id LIMIT :most
) AS found
WHERE asked.id = ANY(:ids) AND asked.question IS NOT NULL
""")


def neighbouring_facts(session: Session, facts: Sequence[FactRecord]) -> dict[int, tuple[Neighbour, ...]]:
    """Give up to five neighbours of each fact, oldest first; facts without any are left out."""
    by_id = {fact.fact_id: fact for fact in facts if fact.question}
    found: dict[int, tuple[Neighbour, ...]] = {}
    for row in session.execute(_ASK_THE_SAME, {"ids": list(by_id), "most": SHOWN}):
        same = row.value.casefold() == by_id[row.of_id].value.casefold()
        one = Neighbour(row.id, row.value, row.question, row.review, same)
        found[row.of_id] = (*found.get(row.of_id, ()), one)
    return found


# Part: which facts an inbox is of, those of a corpus, of a document or all, and between which documents they
# lie.

_CORPUS = select(DocumentRow.corpus).where(DocumentRow.id == FactRow.document_id).scalar_subquery()


@dataclass(frozen=True, slots=True)
class InboxConditions:
    """SQL conditions for the facts of an inbox, in two forms, and the ranges of their documents' ids (0: no document).

    To read pages, `walked` conditions look up the document of each fact; to count, `counted` ones join all documents.
    """

    walked: tuple[ColumnElement[bool], ...] = ()
    counted: tuple[ColumnElement[bool], ...] = ()
    stretches: Stretches = ((0, MAX_ID),)

    @classmethod
    def read(cls, session: Session, corpus: str | None, document_id: int | None) -> InboxConditions:
        """Make the conditions for the facts of a corpus, of a document, or of all. Raises `CorpusNotFound`."""
        part = cls()
        if corpus is not None:
            reading.require_corpus(session, corpus)
            stretches = stretches_of(session, corpus)
            documents = select(DocumentRow.id).where(DocumentRow.corpus == corpus)
            joined = (FactRow.document_id.in_(documents), stretches_condition(stretches, FactRow.document_id))
            part = cls((literal(corpus) == _CORPUS,), joined, stretches)
        if document_id is not None:
            of_document = FactRow.document_id == document_id
            whole = ((document_id, document_id),)
            part = cls((*part.walked, of_document), (*part.counted, of_document), whole)
        return part


# Stakes: which proposed facts outputs cite and which contradict others, and the places that this gives them.
#
# What is cited is read from the newest lookups of outputs, and what contradicts from the newest
# contradictions, so that a page costs the same however many there are. Session first.

NEWEST = 5_000  # lookups of outputs that are looked at for what is cited
NEWEST_PAIRS = 2_000  # contradictions that are looked at for what contradicts
_MOST = 100  # uses from which on facts are at stake alike
DOUBTED, CONTRADICTING, OTHERS = range(_MOST, _MOST + 3)  # groups behind those of cited facts

_OPEN = text("""
SELECT fact_id, other_id FROM standing_pair WHERE NOT same_value AND held_seq IS NULL ORDER BY id DESC LIMIT :newest
""")


@dataclass(frozen=True, slots=True)
class Stakes:
    """Record what depends on facts to review: how many of the newest outputs cite each (`uses`), and which contradict
    others.

    `against` says of a fact that contradicts another whether the annotator's check doubts it. `reach` is false where
    there are more contradictions than were looked at.
    """

    uses: Mapping[int, int]
    against: Mapping[int, bool]
    reach: bool

    @classmethod
    def read(cls, session: Session, which: list[ColumnElement[bool]]) -> Stakes:
        """Read the citations and contradictions of the facts that fit these conditions."""
        pairs = session.execute(_OPEN, {"newest": NEWEST_PAIRS}).all()
        asked = select(FactRow.id, FactRow.doubt.is_not(None).label("doubted")).where(
            FactRow.id == func.any(sorted({fact_id for pair in pairs for fact_id in pair})), *which
        )
        against = {row.id: row.doubted for row in session.execute(asked)}
        return cls(_count_citations(session, which), against, len(pairs) < NEWEST_PAIRS)

    def places(self, kind: Kind = "any") -> list[int]:
        """Give, in order, the places (group and id in one number) of contradicting facts for that kind, else cited."""
        return sorted(map(self._place_in_review, self.against if kind == "contradicting" else self.uses))

    def contradicting(self) -> list[int]:
        """Give the places, in order, of facts that contradict, and are neither cited nor doubted."""
        places = sorted(map(self._place_in_review, self.against))
        return [place for place in places if place > CONTRADICTING * PLACE]

    def _place_in_review(self, fact_id: int) -> int:
        """Give the number that orders a fact to review: its group, which says what is at stake, then its id."""
        if uses := self.uses.get(fact_id):
            group = _MOST - min(uses, _MOST)
        else:
            group = DOUBTED if self.against[fact_id] else CONTRADICTING
        return group * PLACE + fact_id


def page_of_places(places: Iterable[int], after: int, limit: int) -> list[int]:
    """Give up to `limit` of these places past `after`, in order."""
    return [place for place in places if place > after][:limit]


def _count_citations(session: Session, which: list[ColumnElement[bool]]) -> dict[int, int]:
    """Give how many of the newest outputs cite each fact that fits; facts that none cites are left out."""
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


# Limits: where only accepted facts answer, by corpus and by keyset. Each is a change of the log. Session
# first.

KIND = "accepted-only"


def limit_to_accepted(
    session: Session,
    corpus: str | None,
    keyset_id: int | None,
    actor: str,
    reason: str,
    *,
    accepted_only: bool,
) -> Edit:
    """Let only accepted facts of a corpus or keyset answer, or proposed ones too.

    Raises `CorpusNotFound`, `KeysetNotFound`, or `InvalidValue` unless it is either a corpus or a keyset.
    """
    pending = audit.begin_change(session, actor, reason)
    if corpus is not None and keyset_id is None:
        reading.require_corpus(session, corpus)
        values = {"accepted_only": accepted_only, "seq": pending.seq}
        setting = insert(CorpusReviewRow).values(corpus=corpus, **values)
        session.execute(setting.on_conflict_do_update(index_elements=["corpus"], set_=values))
        said: dict[str, Any] = {"corpus": corpus}
    elif keyset_id is not None and corpus is None:
        _limit_keyset(session, keyset_id, accepted_only)
        said = {"keyset": keyset_id}
    else:
        raise InvalidValue("limit", "name either a corpus or a keyset")
    return edits.append_edit(session, pending, KIND, [], {**said, "accepted_only": accepted_only})


def _limit_keyset(session: Session, keyset_id: int, accepted_only: bool) -> None:
    there = keyset_id <= edits.MAX_ID
    setting = update(KeysetRow).where(KeysetRow.id == keyset_id).values(accepted_only=accepted_only)
    if not there or session.scalar(setting.returning(KeysetRow.id)) is None:
        raise refusals.keyset_not_found(keyset_id)
