"""Searches facts by the words of a text, among the facts that a lookup found, or by filters alone.

The words are looked up in values, in questions and in sentences, each by its own index. Each index gives up to 2,001
facts, so that a frequent word costs no more than that. The functions take the session first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, NamedTuple, Unpack

from sqlalchemy import (
    ARRAY,
    CTE,
    BigInteger,
    ColumnElement,
    FromClause,
    Select,
    and_,
    case,
    column,
    exists,
    false,
    func,
    literal,
    or_,
    select,
    true,
    tuple_,
    union_all,
)
from sqlalchemy import text as text_of
from sqlalchemy.dialects.postgresql import TSQUERY
from sqlalchemy.orm import InstrumentedAttribute, Session, aliased

from colmlm.kb.errors import InvalidQuery
from colmlm.kb.facts import reading
from colmlm.kb.facts.reading import Stretches, stretches_condition, stretches_of
from colmlm.kb.facts.records import (
    COUNTED,
    FACTS_LISTED,
    PLACE,
    RANKED,
    FactFilters,
    FactFound,
    FactPage,
    FactRecord,
    FactSort,
    FoundIn,
    Mark,
    Place,
    Review,
    State,
)
from colmlm.kb.log import audit
from colmlm.kb.log.audit import MAINTENANCE
from colmlm.kb.log.records import require_options
from colmlm.kb.store.database import connection_of
from colmlm.kb.store.engines import check_limit
from colmlm.kb.tables import ChangeRow, DocumentRow, FactRow, FactVersionRow, SentenceRow
from colmlm.kb.texts.searched import quote_lexeme, searched_words
from colmlm.kb.texts.wording import Span

# Limits make the server read tables where it should read indexes, and workers cost more than so little work.
_BY_INDEX = text_of("""
SELECT set_config('enable_seqscan', 'off', true), set_config('max_parallel_workers_per_gather', '0', true),
    set_config('plan_cache_mode', 'force_custom_plan', true)
""")
FAR = 20_000  # ids between the place where a page begins and the facts that it may find
_IS, _VALUE, _QUESTION, _WORDS, _SENTENCE = range(5)


def search_facts(
    session: Session,
    *,
    text: str | None = None,
    literally: bool = False,
    nearest: Sequence[int] | None = None,
    sort: FactSort = "best",
    after: int = 0,
    limit: int = FACTS_LISTED,
    past: bool = True,
    **filters: Unpack[FactFilters],
) -> FactPage:
    """Give a page of the facts that fit `FactSearch`; with `nearest`, of these ids the fitting ones, in their order.

    Raises `CorpusNotFound`, and `InvalidQuery` if the text has a NUL character.
    """
    require_options(FactFilters, filters)
    check_limit(limit)
    audit.check_text("text", (text or "").replace("\x00", ""), limit=10**9)  # with a NUL it is in no text
    if (corpus := filters.get("corpus")) is not None:
        reading.require_corpus(session, corpus)
    sought = SoughtText.from_text(session, text, literally=literally) if text else None
    which = list(search_conditions(**filters))
    if nearest is not None:
        ranked: FromClause = _facts_among_nearest(nearest, which)
    elif sought is not None:
        is_live = filters.get("state", "live") == "live"
        last = reading.IS_LIVE_VERSION if is_live else reading.IS_LAST_VERSION
        lies = [] if corpus is None else [stretches_of(session, corpus)]
        ranked = _facts_with_text(session, sought, which, last, lies, past=past)
    else:
        ranked = _facts_by_filters(session, after, filters)
    by_rank = (sought is not None or nearest is not None) and sort == "best"
    most = COUNTED if sought is None else RANKED
    by = sort if by_rank or sort != "best" else "id"
    ids, total, more = _page(session, ranked, by, after, limit, most)
    records = reading.fact_records(session, [fact_id for fact_id, _ in ids])
    found = [records[fact_id] for fact_id, _ in ids]
    said = find_places(session, found, sought, past=past) if sought else {}
    end = ids[-1] if more else None
    return FactPage(
        facts=tuple(found_fact(record, said.get(record.fact_id, ())) for record in found),
        total=min(total, most),
        is_exact=total <= most,
        next_after=None if end is None else end[1] * PLACE * by_rank + end[0],
    )


def found_fact(record: FactRecord, found: tuple[FoundIn, ...] = ()) -> FactFound:
    """Make the record of a found fact, with the places where it was found."""
    return FactFound(**{field.name: getattr(record, field.name) for field in fields(FactRecord)}, found=found)


def _facts_by_filters(session: Session, after: int, filters: FactFilters) -> FromClause:
    """Build the rows (SQL) of facts that fit the filters: by an index if few, or all far past `after`, else by ids."""
    ranked = select(FactRow.id, literal(0).label("rank"))
    if sources := statements_by_index(ranked, **filters):
        which = list(search_conditions(**remaining_filters(**filters)))
        few = _union(sources, which, COUNTED)
        some = few.subquery()
        count, first = session.execute(select(func.count(), func.min(some.c.id))).one()
        if count <= COUNTED:
            return few.cte("found")
        if len(sources) == 1 and first - after > FAR:
            return sources[0].where(*which).subquery()
    return ranked.where(*search_conditions(one_by_one=True, **filters)).subquery()


def _union(sources: Sequence[Ranked], which: list[ColumnElement[bool]], most: int) -> Ranked:
    found = union_all(*(source.where(*which).limit(most + 1) for source in sources)).subquery()
    return select(found.c.id, func.min(found.c.rank).label("rank")).group_by(found.c.id)


def _facts_among_nearest(nearest: Sequence[int], which: list[ColumnElement[bool]]) -> CTE:
    """Build the rows (SQL) of facts with ids in `nearest` that fit; the rank is the position there, from 1."""
    given = func.unnest(literal(list(nearest), ARRAY(BigInteger)))
    near = given.table_valued(column("id", BigInteger), with_ordinality="rank", name="near").render_derived()
    return select(FactRow.id, near.c.rank).join(near, near.c.id == FactRow.id).where(*which).cte("found")


def _facts_with_text(
    session: Session,
    sought: SoughtText,
    which: list[ColumnElement[bool]],
    last: ColumnElement[bool],
    lies: Sequence[Stretches],
    *,
    past: bool,
) -> CTE:
    """Build the rows (SQL) of facts with the sought text and their best rank; `lies` are the ranges of documents."""
    value, question = FactVersionRow.value, FactRow.question
    value_rank = case(
        (func.lower(value) == sought.text, _IS), (sought.as_it_stands(value), _VALUE), else_=_WORDS
    )
    question_rank = case((sought.as_it_stands(question), _QUESTION), else_=_WORDS)
    near = [stretches_condition(stretches, FactRow.document_id) for stretches in lies]
    session.execute(_BY_INDEX)
    sources = [
        select(FactRow.id, value_rank.label("rank"))
        .join(FactVersionRow, last)
        .where(sought.words_condition(value), *near),
        select(FactRow.id, question_rank.label("rank")).where(sought.words_condition(question), *near),
        *_facts_by_sentences(sought, lies, past=past),
    ]
    return _union(sources, which, RANKED).cte("found")


def _facts_by_sentences(sought: SoughtText, lies: Sequence[Stretches], *, past: bool) -> list[Ranked]:
    if (said := sought.sentence_condition()) is None:
        return []
    ranked = select(FactRow.id, literal(_SENTENCE).label("rank")).where(said)
    near = [stretches_condition(stretches, SentenceRow.document_id) for stretches in lies]
    of_document = ranked.join(SentenceRow, STANDS_IN).where(*near)
    return [
        of_document if past else of_document.where(~past_sentence_condition()),
        *([] if lies else [ranked.join(SentenceRow, SentenceRow.fact_id == FactRow.id)]),
    ]


def _page(
    session: Session, found: FromClause, sort: FactSort, after: int, limit: int, most: int
) -> tuple[list[tuple[int, int]], int, bool]:
    """Give the ids and ranks of one page of the found facts, their number up to `most` + 1, and whether more follow."""
    fact_id, rank = found.c.id, found.c.rank
    by: tuple[ColumnElement[Any], ...]
    if sort == "best":
        by, follows = (rank, fact_id), tuple_(rank, fact_id) > divmod(after, PLACE)
    elif sort == "newest":
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


# Where facts were found by a text: their values, questions, titles and sentences, with the words that were
# sought.

_TOKEN = re.compile(r"[^\W_]+")


class _Said(NamedTuple):
    fact_id: int
    place: Place
    text: str


def find_places(
    session: Session, records: Sequence[FactRecord], sought: SoughtText, *, past: bool
) -> dict[int, tuple[FoundIn, ...]]:
    """Give, by fact id, the texts with a sought word; without `past` no sentence with a deleted or corrected value."""
    texts = list(_own_texts(records))
    if sought.stems:
        texts += _document_texts(session, records, past=past)
    words = _SoughtWords.read(session, sought, [said.text for said in texts])
    found: dict[int, tuple[FoundIn, ...]] = {}
    for said in texts:
        if marks := tuple(Mark(*span) for span in words.spans(said)):
            found[said.fact_id] = (*found.get(said.fact_id, ()), FoundIn(said.place, said.text, marks))
    return found


def _own_texts(records: Sequence[FactRecord]) -> Iterator[_Said]:
    for record in records:
        yield _Said(record.fact_id, "value", record.value)
        if record.question:
            yield _Said(record.fact_id, "question", record.question)


def _document_texts(session: Session, records: Sequence[FactRecord], *, past: bool) -> Iterator[_Said]:
    for record in records:
        if record.source is not None and record.source.title:
            yield _Said(record.fact_id, "title", record.source.title)
    length = SentenceRow.span_end - SentenceRow.span_start
    sentences = (
        select(FactRow.id, func.substr(DocumentRow.text, SentenceRow.span_start + 1, length))
        .join(SentenceRow, STANDS_IN)
        .join(DocumentRow, DocumentRow.id == FactRow.document_id)
        .where(FactRow.id == func.any([record.fact_id for record in records]))
    )
    for fact_id, text in session.execute(sentences if past else sentences.where(~past_sentence_condition())):
        yield _Said(fact_id, "text", text.strip())


@dataclass(frozen=True, slots=True)
class _SoughtWords:
    """The sought words to mark in texts: a pattern (`standing`), stems, and `known`, the stems of the texts' words."""

    standing: re.Pattern[str]
    stems: frozenset[str]
    beginning: str
    known: dict[str, tuple[str, ...]]

    @classmethod
    def read(cls, session: Session, sought: SoughtText, texts: Sequence[str]) -> _SoughtWords:
        """Make the pattern of the sought words, and read from the database the stems of the words of `texts`."""
        stems = frozenset(stem for some in sought.stems for stem in some)
        known = stems_of(session, searched_words(" ".join(texts)).split(" ")) if stems else {}
        return cls(sought.pattern(), stems, sought.last, known)

    def spans(self, said: _Said) -> list[Span]:
        standing = [match.span() for match in self.standing.finditer(said.text)]
        if said.place in ("value", "question") and standing:
            return standing
        return [token.span() for token in _TOKEN.finditer(said.text) if self._has_sought_word(token.group())]

    def _has_sought_word(self, token: str) -> bool:
        return any(self._is_sought(word) for word in searched_words(token).split(" "))

    def _is_sought(self, word: str) -> bool:
        stems = self.known.get(word, ())
        return any(
            stem in self.stems or (self.beginning and stem.startswith(self.beginning)) for stem in stems
        )


# Conditions (SQL) on facts: what they are of, their state, the changes that made them, and what is past in a
# text.

Ranked = Select[*tuple[Any, ...]]  # ids of facts, and their rank
_CONDITION = ColumnElement[bool]
_ENDED = select(FactVersionRow.fact_id).where(FactVersionRow.to_seq.is_not(None))


def search_conditions(*, one_by_one: bool = False, **filters: Unpack[FactFilters]) -> Iterator[_CONDITION]:
    """Yield conditions (SQL) on `FactRow` for these filters; with `one_by_one` none joins a table to each fact."""
    yield from _state(filters.get("state", "live"))
    if (review := filters.get("review")) is not None:
        yield FactRow.review == review
    if (corpus := filters.get("corpus")) is not None:
        within = FactRow.document_id.in_(select(DocumentRow.id).where(DocumentRow.corpus == corpus))
        yield _without_join(within) if one_by_one else within
    if (document_id := filters.get("document_id")) is not None:
        yield FactRow.document_id == document_id
    if (edits := _change_condition(**filters)) is not None:
        added = FactRow.created_seq.in_(select(ChangeRow.seq).where(edits))
        yield _without_join(or_(added, FactRow.id.in_(select(func.unnest(ChangeRow.fact_ids)).where(edits))))


def statements_by_index(ranked: Ranked, **filters: Unpack[FactFilters]) -> list[Ranked]:
    """Give statements (SQL) that select facts by an index on one of the filters; empty if no filter has an index."""
    if (edits := _change_condition(**filters)) is not None:
        edited = select(func.unnest(ChangeRow.fact_ids).label("id")).where(edits).subquery("edited")
        return [  # an ingest does not list the facts that it added
            ranked.join(ChangeRow, ChangeRow.seq == FactRow.created_seq).where(edits),
            ranked.join(edited, edited.c.id == FactRow.id),
        ]
    if (review := _rare_review(**filters)) is not None:
        return [ranked.where(FactRow.review == review, FactRow.review_seq.is_not(None))]
    if (corpus := filters.get("corpus")) is not None:
        of_corpus = select(DocumentRow.id).where(DocumentRow.corpus == corpus).scalar_subquery()
        return [ranked.where(FactRow.document_id == func.any(func.array(of_corpus)))]
    return []


def remaining_filters(**filters: Unpack[FactFilters]) -> FactFilters:
    """Give these filters, but None for the ones that the statements of `statements_by_index` apply already."""
    if _change_condition(**filters) is None:
        return {**filters, "corpus": None} if _rare_review(**filters) is None else {**filters, "review": None}
    return {**filters, "actor": None, "kind": None, "since": None, "until": None}


def _rare_review(review: Review | None = None, **others: Any) -> Review | None:
    """Give the `review` of the filters if it is rare enough for an index, so not "accepted"; else None."""
    return None if review == "accepted" else review


def _without_join(condition: _CONDITION) -> _CONDITION:
    """Wrap a condition with a subquery so that the server runs the subquery once, and does not join it to each fact."""
    return case((condition, true()), else_=false())


def _state(state: State) -> Iterator[_CONDITION]:
    if state == "live":
        yield FactRow.deleted_seq.is_(None)
    elif state != "all":
        yield FactRow.id.in_(_ENDED)  # has an index, and few facts beside those that are sought
        yield FactRow.erased_seq.is_not(None) if state == "erased" else FactRow.deleted_seq.is_not(None)


def _change_condition(
    actor: str | None = None,
    kind: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    **others: Any,
) -> _CONDITION | None:
    """Build a condition (SQL) on `ChangeRow`: an edit that fits these filters; None if no filter is on changes."""
    given = [
        *([] if actor is None else [ChangeRow.actor == actor]),
        *([] if kind is None else [ChangeRow.kind == kind]),
        *([] if since is None else [ChangeRow.at >= since]),
        *([] if until is None else [ChangeRow.at <= until]),
    ]
    return and_(ChangeRow.kind.not_in(MAINTENANCE), *given) if given else None


# The sentence of its document that a fact begins in.
STANDS_IN = and_(
    SentenceRow.document_id == FactRow.document_id,
    FactRow.span_start >= SentenceRow.span_start,
    FactRow.span_start < SentenceRow.span_end,
)


def past_sentence_condition() -> _CONDITION:
    """Give a condition (SQL): the sentence overlaps the span of a fact that was deleted or corrected."""
    other = aliased(FactRow)
    return exists().where(
        other.document_id == SentenceRow.document_id,
        other.span_start < SentenceRow.span_end,
        other.span_end > SentenceRow.span_start,
        FactVersionRow.fact_id == other.id,
        FactVersionRow.to_seq.is_not(None),
    )


# A text that facts are searched for: its words as the database reads them, and conditions (SQL) that find
# them.

MOST_WORDS = 100
BEGINNING = 3  # characters from which on a word is also sought as the beginning of longer ones

_WORDS_SOUGHT = b"SELECT lower(%s), tsvector_to_array(words_of(%s))"
_STEMS = b"SELECT word, tsvector_to_array(to_tsvector('pg_catalog.english', word)) FROM unnest(%s::text[]) AS w (word)"


@dataclass(frozen=True, slots=True)
class SoughtText:
    """A sought text in lower case, with words to compare with values and questions, and `stems` with sentences.

    Without words it is sought literally, in values and questions. `last` is the last word if it may begin a longer one.
    """

    text: str
    words: tuple[str, ...] = ()
    stems: tuple[tuple[str, ...], ...] = ()
    last: str = ""

    @classmethod
    def from_text(cls, session: Session, said: str, *, literally: bool = False) -> SoughtText:
        """Read the words of a sought text. Raises `InvalidQuery` if it has a NUL character."""
        if "\x00" in said:
            raise InvalidQuery("the text holds a NUL character. Remove it")
        said = said if literally else said.strip()
        ((text, words),) = connection_of(session).execute(_WORDS_SOUGHT, (said, said)).fetchall()
        if literally:
            return cls(text)
        read = searched_words(said).split(" ")[:MOST_WORDS]
        stems = stems_of(session, read)
        last = read[-1] if len(read[-1]) >= BEGINNING and stems.get(read[-1]) else ""
        known = (stems.get(word) for word in dict.fromkeys(read))
        return cls(text, tuple(map(_singular, words[:MOST_WORDS])), tuple(filter(None, known)), last)

    def words_condition(self, column: InstrumentedAttribute[Any]) -> ColumnElement[bool]:
        """Give a condition (SQL): the column has every sought word, or, for a text without words, the text."""
        if not self.words:
            return self.as_it_stands(column)
        return func.words_of(column).op("@@")(_query(map(_beginning, self.words)))

    def as_it_stands(self, column: InstrumentedAttribute[Any]) -> ColumnElement[bool]:
        return column.icontains(self.text, autoescape=True)

    def sentence_condition(self) -> ColumnElement[bool] | None:
        """Give a condition (SQL): a sentence with its title has every sought word; None if all are stop words."""
        if not self.stems:
            return None
        *whole, last = (" & ".join(map(quote_lexeme, stems)) for stems in self.stems)
        return SentenceRow.words.op("@@")(_query([*whole, self._last_word_query(last)]))

    def _last_word_query(self, last: str) -> str:
        """Give the query part (tsquery) of the last word: in any of its forms, or as the beginning of another word."""
        return f"({last} | {_beginning(self.last)})" if self.last else last

    def pattern(self) -> re.Pattern[str]:
        """Give a regular expression for the words, or the literal text, that `words_condition` finds."""
        if not self.words:
            return re.compile(re.escape(self.text), re.IGNORECASE)
        words = (re.escape(word) + (r"(?![^\W_])" if len(word) < BEGINNING else "s?") for word in self.words)
        return re.compile(rf"(?<![^\W_])(?:{'|'.join(words)})", re.IGNORECASE)


def stems_of(session: Session, words: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Give the stems of each word, as sentences store them; stop words have none."""
    asked = list(dict.fromkeys(filter(None, words)))
    return {word: tuple(stems) for word, stems in connection_of(session).execute(_STEMS, (asked,))}


def _singular(word: str) -> str:
    """Give a word without a final s, so that it is also the beginning of its singular."""
    return word[:-1] if len(word) > BEGINNING and word.endswith("s") and not word.endswith("ss") else word


def _beginning(word: str) -> str:
    return quote_lexeme(word) + (":*" if len(word) >= BEGINNING else "")


def _query(parts: Iterable[str]) -> ColumnElement[Any]:
    return literal(" & ".join(parts)).cast(TSQUERY)
