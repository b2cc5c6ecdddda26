"""Comparisons: lists contradictions, duplicates and stale facts, and notes that both facts of a pair are right.

The lists are read from the pairs that edits and the job "compare" store. Listing compares no facts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Unpack

from sqlalchemy import Select, column, func, literal, or_, select, table, text
from sqlalchemy.orm import Session

from colmlm.kb.facts import reading, versions
from colmlm.kb.facts.edits import storable_ids
from colmlm.kb.facts.records import (
    COUNTED,
    FACTS_LISTED,
    AlsoSaid,
    ComparedCounts,
    ComparedPart,
    Edit,
    FactPair,
    FactRecord,
    Kind,
    PairPage,
    PairsSought,
    StaleFact,
    StalePage,
)
from colmlm.kb.log.records import OnRecord, require_options
from colmlm.kb.principal import is_in_scope
from colmlm.kb.store.engines import check_limit
from colmlm.kb.store.store import Store
from colmlm.kb.store.waits import retry_on_contention

_PAIRS = table(
    "standing_pair",
    *map(column, ("id", "fact_id", "other_id", "same_value", "score", "held_seq", "corpus", "other_corpus")),
).alias("p")
_YIELDS = table("fact_yield", column("fact_id"), column("version"), column("to_id"))
# Arrays, since the server would compute what `exists` asks for of all facts and not of those of a page.
_YIELDS_TO, _OTHER_YIELDS_TO = (
    func.array(select(_YIELDS.c.to_id).where(_YIELDS.c.fact_id == fact_id).scalar_subquery())
    for fact_id in (_PAIRS.c.fact_id, _PAIRS.c.other_id)
)

_STALE = text("""
SELECT f.id, d.replaced_seq IS NOT NULL AS replaced
FROM (SELECT DISTINCT fact_id FROM fact_version WHERE to_seq IS NOT NULL AND fact_id > :after) AS edited
JOIN fact f ON f.id = edited.fact_id AND f.deleted_seq IS NULL
JOIN fact_version v ON v.fact_id = f.id AND v.to_seq IS NULL
JOIN document d ON d.id = f.document_id
WHERE (d.replaced_seq IS NOT NULL OR v.version <> f.said_version AND EXISTS (
    SELECT FROM document o
    WHERE o.corpus = d.corpus AND o.external_id = d.external_id AND o.replaced_seq > v.from_seq
)) AND (CAST(:corpus AS text) IS NULL OR d.corpus = :corpus)
ORDER BY f.id LIMIT :limit
""")
_ALSO_SAID = text("""
SELECT fact_id, other_id, corpus, other_corpus FROM standing_pair WHERE same_value AND fact_id = ANY(:ids)
UNION SELECT fact_id, other_id, corpus, other_corpus FROM standing_pair WHERE same_value AND other_id = ANY(:ids)
""")


@dataclass(frozen=True, slots=True)
class Comparisons:
    """The comparisons of the facts of a store."""

    store: Store

    def pairs(self, kind: Kind, **sought: Unpack[PairsSought]) -> PairPage:
        """List pairs of live facts by pair id: contradictions or duplicates, by `kind`. Raises `CorpusNotFound`."""
        require_options(PairsSought, sought)
        after, limit = sought.get("after", 0), sought.get("limit", FACTS_LISTED)
        corpus = sought.get("corpus")
        check_limit(limit)
        found = _select_pairs(kind, corpus, noted=sought.get("noted", False))
        page = found.where(_PAIRS.c.id > after).order_by(_PAIRS.c.id).limit(limit + 1)
        with self.store.sessions() as session:
            if corpus is not None:
                reading.require_corpus(session, corpus)
            total = _num_pairs(session, found)
            rows = session.execute(page).all()
            records = reading.fact_records(session, [n for row in rows for n in (row.fact_id, row.other_id)])
        pairs = tuple(_pair(row, records) for row in rows[:limit])
        end = pairs[-1].pair_id if len(rows) > limit else None
        return PairPage(pairs, min(total, COUNTED), total <= COUNTED, end)

    def stale(self, **part: Unpack[ComparedPart]) -> StalePage:
        """List stale facts: live facts restored after their document got a newer text, or corrected before.

        Raises `CorpusNotFound`.
        """
        require_options(ComparedPart, part)
        corpus, limit = part.get("corpus"), part.get("limit", FACTS_LISTED)
        check_limit(limit)
        named = {"corpus": corpus, "after": part.get("after", 0), "limit": limit + 1}
        with self.store.sessions() as session:
            if corpus is not None:
                reading.require_corpus(session, corpus)
            total = _num_stale(session, corpus)
            rows = session.execute(_STALE, named).all()
            records = reading.fact_records(session, [row.id for row in rows])
        facts = tuple(_stale(records[row.id], replaced=row.replaced) for row in rows[:limit])
        end = facts[-1].fact_id if len(rows) > limit else None
        return StalePage(facts, min(total, COUNTED), total <= COUNTED, end)

    def counts(self) -> ComparedCounts:
        """Count the contradictions, the duplicates and the stale facts, each up to `COUNTED`."""
        with self.store.sessions() as session:
            against, alike = (
                _num_pairs(session, _select_pairs(kind)) for kind in ("contradictions", "duplicates")
            )
            stale = _num_stale(session)
        return ComparedCounts(*(min(COUNTED, number) for number in (against, alike, stale)))

    def also_said(self, fact_ids: Sequence[int]) -> list[AlsoSaid]:
        """List, by fact id, the duplicates of each fact outside `fact_ids` that the caller may see, if it has any."""
        ids = set(storable_ids(fact_ids))
        with self.store.sessions() as session:
            rows = session.execute(_ALSO_SAID, {"ids": sorted(ids)}).all()
        said: dict[int, set[int]] = {}
        for row in (row for row in rows if is_in_scope(row.corpus, row.other_corpus)):
            for one, other in ((row.fact_id, row.other_id), (row.other_id, row.fact_id)):
                if one in ids and other not in ids:
                    said.setdefault(one, set()).add(other)
        return [AlsoSaid(fact_id, tuple(sorted(by))) for fact_id, by in sorted(said.items())]

    @retry_on_contention
    def note_both_right(
        self, fact_id: int, other_id: int, *, both_right: bool = True, **who: Unpack[OnRecord]
    ) -> Edit:
        """Note that two contradicting facts are both right, until one of them gets another value or question.

        Without `both_right` it removes the note. Raises `PairNotFound`, also if the pair is in that state already.
        """
        with self.store.sessions.begin() as session:
            pair = (fact_id, other_id)
            return versions.note_both_right(session, pair, who["actor"], who["reason"], holds=both_right)


def _select_pairs(kind: str, corpus: str | None = None, *, noted: bool = False) -> Select[*tuple[Any, ...]]:
    """Build a statement (SQL) for the pairs of a kind, and for each of their facts the ids that answer in its place."""
    named = (_PAIRS.c.id, _PAIRS.c.fact_id, _PAIRS.c.other_id, _PAIRS.c.score, _PAIRS.c.held_seq)
    found = select(*named, _YIELDS_TO.label("yields_to"), _OTHER_YIELDS_TO.label("other_yields_to")).where(
        _PAIRS.c.same_value == literal(kind == "duplicates"),
        _PAIRS.c.held_seq.is_not(None) if noted else _PAIRS.c.held_seq.is_(None),
    )
    if corpus is None:
        return found
    return found.where(or_(_PAIRS.c.corpus == corpus, _PAIRS.c.other_corpus == corpus))


def _num_pairs(session: Session, found: Select[*tuple[Any, ...]]) -> int:
    """Count the pairs that the statement `found` selects, up to `COUNTED` + 1."""
    bounded = found.with_only_columns(_PAIRS.c.id).limit(COUNTED + 1).subquery()
    return session.scalar(select(func.count()).select_from(bounded)) or 0


def _num_stale(session: Session, corpus: str | None = None) -> int:
    return len(session.execute(_STALE, {"corpus": corpus, "after": 0, "limit": COUNTED + 1}).all())


def _pair(row: Any, records: Mapping[int, FactRecord]) -> FactPair:
    fact, other = records[row.fact_id], records[row.other_id]
    first, second = row.fact_id in row.other_yields_to, row.other_id in row.yields_to
    answering = row.fact_id if first else row.other_id if second else None
    return FactPair(row.id, fact, other, row.score, answering, row.held_seq)


def _stale(record: FactRecord, *, replaced: bool) -> StaleFact:
    of_record = {field.name: getattr(record, field.name) for field in fields(FactRecord)}
    return StaleFact(**of_record, why="replaced" if replaced else "corrected-before")
