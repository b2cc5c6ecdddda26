"""Pairs of live facts that ask the same: found by the words of their questions, and kept in the edit that makes them.

Two facts ask the same where their questions have the same words, whatever their case, blanks and punctuation
(`asked_as`, a function of the database that has an index). They have the same value where one value says the other in
some wording (`kb.texts.alike`), and else they contradict. A fact is paired with ten others at most, the oldest.

Every edit holds the log's lock when it calls `keep`, so of two at once the second sees what the first has added.
The functions take the session first and never commit.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session

from colmlm.kb.errors import AnsweredAlready
from colmlm.kb.texts.alike import wording

_FIND = """
SELECT f.id AS fact_id, o.id AS other_id, v.version, w.version AS other_version, v.value, w.value AS other_value,
       (SELECT seq FROM value_given WHERE fact_id = f.id) AS given_seq,
       (SELECT seq FROM value_given WHERE fact_id = o.id) AS other_given_seq,
       (SELECT d.corpus FROM document d WHERE d.id = f.document_id) AS corpus,
       (SELECT d.corpus FROM document d WHERE d.id = o.document_id) AS other_corpus
FROM fact f
JOIN fact_version v ON v.fact_id = f.id AND v.to_seq IS NULL
CROSS JOIN LATERAL (
    SELECT p.id, p.document_id FROM fact p
    WHERE asked_as(p.question) = asked_as(f.question) AND p.question IS NOT NULL AND p.deleted_seq IS NULL
      AND p.id <> f.id
    ORDER BY p.id LIMIT 10
) AS o
JOIN fact_version w ON w.fact_id = o.id AND w.to_seq IS NULL
WHERE f.question IS NOT NULL AND f.deleted_seq IS NULL AND f.id = ANY(:ids)
"""
_OF_IDS = text(_FIND)
_OF_RANGE = text(_FIND.replace("f.id = ANY(:ids)", "f.id BETWEEN :first AND :last"))
_BY_INDEX = text("SELECT set_config('enable_seqscan', 'off', true)")

_KNOWN = text("""
SELECT p.fact_id, p.other_id, p.version, p.other_version FROM fact_pair p
JOIN unnest(CAST(:facts AS bigint[]), CAST(:others AS bigint[])) AS given (fact_id, other_id)
  ON given.fact_id = p.fact_id AND given.other_id = p.other_id
WHERE NOT p.same_value AND p.score IS NULL
""")
# What a slower comparison read before an edit does not replace what that edit kept, nor a score what words tell. That
# both hold is kept while both say and ask the same, also where one was deleted and restored since.
_KEEP = text("""
INSERT INTO fact_pair AS p (
    fact_id, other_id, version, other_version, given_seq, other_given_seq, corpus, other_corpus, same_value, score
)
SELECT * FROM unnest(
    CAST(:fact_id AS bigint[]), CAST(:other_id AS bigint[]), CAST(:version AS integer[]),
    CAST(:other_version AS integer[]), CAST(:given_seq AS bigint[]), CAST(:other_given_seq AS bigint[]),
    CAST(:corpus AS text[]), CAST(:other_corpus AS text[]), CAST(:same_value AS boolean[]), CAST(:score AS real[])
)
ON CONFLICT (fact_id, other_id) DO UPDATE SET
    version = excluded.version, other_version = excluded.other_version, given_seq = excluded.given_seq,
    other_given_seq = excluded.other_given_seq, same_value = excluded.same_value, score = excluded.score,
    found_at = clock_timestamp(),
    held_seq = CASE WHEN (p.given_seq, p.other_given_seq) = (excluded.given_seq, excluded.other_given_seq)
        AND NOT EXISTS (
            SELECT FROM fact_past was JOIN fact f ON f.id = was.fact_id
            WHERE was.question IS DISTINCT FROM f.question
              AND (was.fact_id = p.fact_id AND was.version >= p.version
                   OR was.fact_id = p.other_id AND was.version >= p.other_version)
        ) THEN p.held_seq END
WHERE excluded.version >= p.version AND excluded.other_version >= p.other_version
  AND (excluded.score IS NULL OR p.score IS NOT NULL
       OR (p.version, p.other_version) <> (excluded.version, excluded.other_version))
""")


@dataclass(frozen=True, slots=True)
class KeptPair:
    """Two live facts that ask the same, the older first, each with its version and the change that gave its value."""

    fact_id: int
    other_id: int
    version: int
    other_version: int
    given_seq: int
    other_given_seq: int
    corpus: str | None
    other_corpus: str | None
    same_value: bool
    score: float | None = None


_NAMES = [field.name for field in fields(KeptPair)]


def says_the_same(value: str, other: str) -> bool:
    """Says whether one of two values says the other in some wording, be it within a longer one."""
    return value == other or wording(value, other) is not None or wording(other, value) is not None


def keep(session: Session, fact_ids: Sequence[int], *, anyway: bool) -> tuple[int, ...]:
    """Keeps the pairs of edited facts, and gives the other facts that say what one of these says.

    Raises `AnsweredAlready` for a contradiction that was not there before the edit, unless `anyway`.
    """
    rows = session.execute(_OF_IDS, {"ids": list(fact_ids)}).all()
    pairs = list(_pairs(rows))
    if not pairs:
        return ()
    edited = set(fact_ids)
    if not anyway and (new := _new(session, pairs, edited)):
        said = {row.other_id: row.other_value for row in rows} | {row.fact_id: row.value for row in rows}
        others = sorted({n for pair in new for n in (pair.fact_id, pair.other_id)} - edited)
        raise AnsweredAlready(others, said[others[0]] if others else "")
    store(session, pairs)
    alike = {n for pair in pairs if pair.same_value for n in (pair.fact_id, pair.other_id)}
    return tuple(sorted(alike - edited))


def keep_range(session: Session, first: int, last: int) -> tuple[int, int]:
    """Keeps the pairs of the facts with these ids and those between; gives how many contradict, and how many do not."""
    session.execute(_BY_INDEX)  # tables just filled have no statistics yet
    pairs = list(_pairs(session.execute(_OF_RANGE, {"first": first, "last": last}).all()))
    store(session, pairs)
    alike = sum(pair.same_value for pair in pairs)
    return len(pairs) - alike, alike


def store(session: Session, pairs: Collection[KeptPair]) -> None:
    """Keeps these pairs, in the order of their facts, so that two that do it at once do not wait for each other."""
    if pairs:
        ordered = sorted(pairs, key=lambda pair: (pair.fact_id, pair.other_id))
        session.execute(_KEEP, {name: [getattr(pair, name) for pair in ordered] for name in _NAMES})


def _pairs(rows: Sequence[Any]) -> Iterator[KeptPair]:
    """Yields each pair once, though both of its facts may have been asked for."""
    seen: set[tuple[int, int]] = set()
    for row in rows:
        facts = (
            (row.fact_id, row.version, row.given_seq, row.corpus),
            (row.other_id, row.other_version, row.other_given_seq, row.other_corpus),
        )
        one, other = sorted(facts, key=lambda fact: fact[0])
        if (one[0], other[0]) not in seen:
            seen.add((one[0], other[0]))
            yield KeptPair(
                one[0], other[0], one[1], other[1], one[2], other[2], one[3], other[3],
                says_the_same(row.value, row.other_value),
            )  # fmt: skip


def _new(session: Session, pairs: Sequence[KeptPair], edited: Collection[int]) -> list[KeptPair]:
    """Gives those pairs that contradict and did not before these facts were edited."""
    against = [pair for pair in pairs if not pair.same_value]
    sought = {"facts": [pair.fact_id for pair in against], "others": [pair.other_id for pair in against]}
    known = {tuple(row) for row in session.execute(_KNOWN, sought)} if against else set()
    return [
        pair
        for pair in against
        if (
            pair.fact_id,
            pair.other_id,
            pair.version - (pair.fact_id in edited),
            pair.other_version - (pair.other_id in edited),
        )
        not in known
    ]
