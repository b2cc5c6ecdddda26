"""SearchableStore: a store that answers lookups by the index of this process, and searches sentences by words.

Reading and editing facts needs no lookup, so Faiss and NumPy are imported with the first lookup.

BM25 ranks the sentences that share words with a question, from the database alone. The rarest words of the question
choose the candidates, by the index on `sentence.words`, and all words score them. So a search reads a bounded number of
rows, however many sentences there are. Words in very many sentences choose candidates only together with others, or
where the question has no rarer ones. Word frequencies need not be exact, so they are read once a minute. The sentences
are read by each search.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple

import psycopg
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from colmlm.kb.store import database
from colmlm.kb.store.database import connection_of
from colmlm.kb.store.settings import Settings
from colmlm.kb.store.store import Store
from colmlm.kb.store.waits import Waits
from colmlm.kb.texts.searched import quote_lexeme, searched_words

if TYPE_CHECKING:
    from colmlm.kb.lookup.lookups import Lookups
    from colmlm.kb.lookup.searcher import Searcher


K1, B = 1.2, 0.75
MOST_ASKED = 100  # words of a question that are searched for
MOST_CANDIDATES = 1_000
LEADING, PAIRED = 2, 8  # of the words in very many sentences: how many are paired, with how many
COUNTED = 5_000  # sentences with a word, up to which they are counted
KEPT_SECONDS = 60.0

_LEXEMES = b"SELECT tsvector_to_array(to_tsvector('pg_catalog.english', %s))"
_COLLECTION = b"""
SELECT greatest(seen.number, (SELECT reltuples FROM pg_class WHERE oid = 'sentence'::regclass)), seen.mean,
       common.most_common_elems::text::text[], common.most_common_elem_freqs
FROM (
    SELECT count(*) AS number, avg(length(words)) AS mean FROM (SELECT words FROM sentence LIMIT 10000) AS few
) AS seen
LEFT JOIN pg_stats common ON common.schemaname = current_schema() AND common.tablename = 'sentence'
    AND common.attname = 'words'
"""
_COUNT = b"""
SELECT asked.lexeme, (SELECT count(*) FROM (SELECT FROM sentence WHERE words @@ asked.query LIMIT %s) AS counted)
FROM unnest(%s::text[], %s::tsquery[]) AS asked (lexeme, query)
"""
# The candidates are chosen without a limit in sight, with which the planner might read the table instead of the index.
# ts_rank_cd of a query of one lexeme, with weights of 1, is how often the lexeme is there.
_SEARCH = b"""
WITH chosen AS MATERIALIZED (
    SELECT id, document_id, fact_id, span_start, span_end, words,
           %(k1)s * (1 - %(b)s + %(b)s * length(words) / %(mean)s) AS norm
    FROM sentence WHERE words @@ %(chosen)s::tsquery AND (%(corpora)s::text[] IS NULL OR EXISTS (
        SELECT FROM document d WHERE d.id = sentence.document_id AND d.corpus = ANY(%(corpora)s::text[])
    ))
)
SELECT id, document_id, fact_id, span_start, span_end, score
FROM (
    (SELECT * FROM chosen LIMIT %(most)s)
    UNION
    SELECT id, document_id, fact_id, span_start, span_end, words,
           %(k1)s * (1 - %(b)s + %(b)s * length(words) / %(mean)s)
    FROM sentence WHERE id = ANY(%(also)s::bigint[])
) AS found CROSS JOIN LATERAL (
    SELECT coalesce(sum(weight * tf / (tf + norm)), 0) AS score FROM (
        SELECT asked.weight, ts_rank_cd('{1,1,1,1}', found.words, asked.query) AS tf
        FROM unnest(%(weights)s::float8[], %(queries)s::tsquery[]) AS asked (weight, query)
        WHERE found.words @@ asked.query OFFSET 0
    ) AS counted
) AS scored
ORDER BY score DESC, id LIMIT %(limit)s
"""


class SentenceFound(NamedTuple):
    """The place of a sentence, in a document or in question and value of a fact without one, with its BM25 score."""

    sentence_id: int
    document_id: int | None
    fact_id: int | None
    start: int
    end: int
    score: float


@dataclass(frozen=True, slots=True)
class _SentenceStatistics:
    """The `number` of sentences, their `mean` number of different words, and in how many each `common` word is."""

    number: float
    mean: float
    common: Mapping[str, float]

    def weight(self, frequency: float) -> float:
        """Give the BM25 weight (IDF) of a word that is in `frequency` sentences."""
        return math.log(1 + (max(self.number, frequency) - frequency + 0.5) / (frequency + 0.5))


@dataclass(slots=True)
class WordSearch:
    """Searches the sentences of one database by words. Threads may share it."""

    _read_at: float = -math.inf
    _collection: _SentenceStatistics = field(default_factory=lambda: _SentenceStatistics(0.0, 1.0, {}))
    _counted: dict[str, float] = field(default_factory=dict)

    def find(
        self,
        session: Session,
        question: str,
        limit: int,
        also: Collection[int] = (),
        corpora: Sequence[str] = (),
    ) -> list[SentenceFound]:
        """Find up to `limit` sentences that share words with the question, best BM25 score first, then by id.

        Where `corpora` are named, the words find only sentences of their documents. The sentences with the ids `also`
        are scored even if they share no word, and may come in addition. A question of stop words alone finds none.
        """
        connection = connection_of(session)
        asked = " ".join(searched_words(question).split(" ")[:MOST_ASKED])
        lexemes: list[str] = connection.execute(_LEXEMES, (asked,)).fetchall()[0][0]
        if not lexemes:
            return []
        collection, frequencies = self._frequencies(connection, lexemes)
        rarest_first = sorted(lexemes, key=lambda lexeme: (frequencies[lexeme], lexeme))
        values = {
            "most": 2 * MOST_CANDIDATES,
            "weights": [(K1 + 1) * collection.weight(frequencies[lexeme]) for lexeme in rarest_first],
            "queries": [quote_lexeme(lexeme) for lexeme in rarest_first],
            "mean": collection.mean,
            "k1": K1,
            "b": B,
            "limit": limit + len(also),
            "also": list(also),
            "corpora": list(corpora) or None,
        }
        found: list[SentenceFound] = []
        for chosen in _tsqueries(rarest_first, frequencies, collection.number):
            rows = connection.execute(_SEARCH, values | {"chosen": chosen})
            found = [SentenceFound(*row) for row in rows]
            if len(found) >= limit + len(also):
                break
        return found

    def _frequencies(
        self, connection: psycopg.Connection, lexemes: Sequence[str]
    ) -> tuple[_SentenceStatistics, dict[str, float]]:
        """Give the statistics of all sentences, and in how many each lexeme is, as of a minute ago at most."""
        if time.monotonic() - self._read_at > KEPT_SECONDS:
            self._collection, self._counted = _read_statistics(connection), {}
            self._read_at = time.monotonic()
        collection, counted = self._collection, self._counted
        unknown = [lexeme for lexeme in lexemes if lexeme not in counted and lexeme not in collection.common]
        if unknown:
            queries = [quote_lexeme(lexeme) for lexeme in unknown]
            counted |= dict(connection.execute(_COUNT, (COUNTED, unknown, queries)).fetchall())
        return collection, {
            lexeme: collection.common[lexeme] if lexeme in collection.common else counted[lexeme]
            for lexeme in lexemes
        }


def _read_statistics(connection: psycopg.Connection) -> _SentenceStatistics:
    number, mean, lexemes, shares = connection.execute(_COLLECTION).fetchall()[0]
    # The shares end with the least, the greatest and that of NULL.
    common = {lexeme: share * number for lexeme, share in zip(lexemes or (), shares or (), strict=False)}
    return _SentenceStatistics(number, max(float(mean or 1), 1.0), common)


def _tsqueries(rarest_first: Sequence[str], frequencies: Mapping[str, float], number: float) -> Iterator[str]:
    """Yield text queries (tsquery) that choose candidates. The next is tried where the one before found too few.

    Where a lexeme or a pair of lexemes is rare enough, there is one query. Otherwise the first query demands several
    lexemes together, and the last the rarest lexeme alone.
    """
    if chosen := list(_rare_queries(rarest_first, frequencies, number)):
        yield " | ".join(chosen)
        return
    together, many = [rarest_first[0]], frequencies[rarest_first[0]]
    for lexeme in rarest_first[1:]:
        if many > MOST_CANDIDATES:
            together.append(lexeme)
            many *= frequencies[lexeme] / max(number, 1.0)
    if len(together) > 1:
        yield " & ".join(map(quote_lexeme, together))
    yield quote_lexeme(rarest_first[0])


def _rare_queries(
    rarest_first: Sequence[str], frequencies: Mapping[str, float], number: float
) -> Iterator[str]:
    """Yield text queries of single lexemes, then of pairs, while their sentences together are few enough."""
    rare, room = 0, float(MOST_CANDIDATES)
    for lexeme in rarest_first:
        if frequencies[lexeme] > room:
            break
        rare, room = rare + 1, room - frequencies[lexeme]
        yield quote_lexeme(lexeme)
    common = rarest_first[rare : rare + PAIRED]
    for one, other in combinations(common, 2):
        both = frequencies[one] * frequencies[other] / max(number, 1.0)
        if one in common[:LEADING] and both <= room:
            room -= both
            yield f"({quote_lexeme(one)} & {quote_lexeme(other)})"


class SearchableStore(Store):
    """A store that answers lookups, with one index for each process."""

    def __init__(self, settings: Settings, engine: Engine) -> None:
        super().__init__(settings, engine)
        self.reader = database.reading_engine(engine, Waits.of(settings))
        self.words = WordSearch()
        self._searcher: Searcher | None = None
        self._making = threading.Lock()

    @property
    def searcher(self) -> Searcher:
        """The searcher of this process. It opens its index with the first search."""
        with self._making:
            if self._searcher is None:
                from colmlm.kb.lookup.searcher import Searcher

                self._searcher = Searcher(
                    reader=self.reader,
                    sessions=self.sessions,
                    settings=self.settings,
                )
            return self._searcher

    @property
    def lookups(self) -> Lookups:
        from colmlm.kb.lookup.lookups import Lookups

        return Lookups(self, self.searcher)
