"""Pairs of live facts that are compared: found by their questions or sentences, and kept in the edit that makes them.

Two facts ask the same where their questions have the same words, whatever their case, blanks and punctuation
(`asked_as`, a function of the database that has an index). They have the same value where one value says the other in
some wording (`kb.texts.alike`), and else they contradict. A fact is paired with ten others at most, the oldest.

Facts whose sentences are the same apart from their values are paired, too, by their frames (`kb.texts.searched`). A
frame that more than eleven facts share pairs none, and its former pairs are deleted. A pair by frame has the score 1:
it is listed, but it refuses no edit, and neither fact yields to the other (the view `fact_yield`).

`keep_pairs` runs under the log's lock, so of two edits the second sees the pairs of the first. Nothing here commits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import combinations, groupby
from operator import attrgetter
from typing import Any, NamedTuple

from sqlalchemy import func, select, text
from sqlalchemy.orm import Session

from colmlm.kb.errors import refusals
from colmlm.kb.principal import is_in_scope
from colmlm.kb.tables import FactRow
from colmlm.kb.texts.alike import compare_wording, terms_of
from colmlm.kb.texts.searched import frame_of
from colmlm.kb.texts.sentences import sentence_ends

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
    WHERE ALIKE AND p.deleted_seq IS NULL AND p.id <> f.id
    ORDER BY p.id LIMIT MOST
) AS o
JOIN fact_version w ON w.fact_id = o.id AND w.to_seq IS NULL
WHERE COMPARED AND f.deleted_seq IS NULL AND f.id = ANY(:ids)
"""
MOST_PAIRED = 10  # others that a fact is paired with
_SAID_THEN = text("""
SELECT f.id, asked_as(f.question) AS asked, f.review = 'accepted' AS is_accepted, v.value, (
    SELECT max(seq) FROM (
        SELECT w.from_seq AS seq, w.value IS DISTINCT FROM lag(w.value) OVER (ORDER BY w.version) AS gave
        FROM fact_version w WHERE w.fact_id = f.id AND w.version <= v.version
    ) AS history WHERE gave
) AS given
FROM unnest(CAST(:ids AS bigint[]), CAST(:versions AS integer[])) AS said (fact_id, version)
JOIN fact f ON f.id = said.fact_id AND f.question IS NOT NULL
JOIN fact_version v ON v.fact_id = said.fact_id AND v.version = said.version
ORDER BY asked
""")
_BOTH_RIGHT = text("""
SELECT fact_id, other_id FROM fact_pair WHERE held_seq <= :as_of AND fact_id = ANY(:ids) AND other_id = ANY(:ids)
""")
_BY_QUESTION = (
    _FIND.replace("ALIKE", "asked_as(p.question) = asked_as(f.question) AND p.question IS NOT NULL")
    .replace("COMPARED", "f.question IS NOT NULL")
    .replace("MOST", str(MOST_PAIRED))
)
# How many live facts share the frame of `f`, one beyond those that are paired at most. The order has them read by the
# index; as a bitmap, all of its entries would be read first.
_SHARING = """
(SELECT count(*) FROM (
    SELECT FROM fact q WHERE q.frame = f.frame AND q.frame <> 0 AND q.deleted_seq IS NULL ORDER BY q.id LIMIT MOST + 2
) AS c)
"""
# Facts that both have questions ask the same or not, whatever their sentences: "It was discovered in 1817."
_BY_FRAME = (
    _FIND.replace(
        "ALIKE", "p.frame = f.frame AND p.frame <> 0 AND (p.question IS NULL OR f.question IS NULL)"
    )
    .replace("COMPARED", "f.frame <> 0 AND SHARING <= MOST + 1")
    .replace("SHARING", _SHARING)
    .replace("MOST", str(MOST_PAIRED))
)
# Pairs by sentence that hold no more, since a sentence changed or too many facts share it by now. Facts of a crowded
# frame beside the given ones have pairs only where it was not crowded before these came, and then they are few.
_DROP = """
WITH given AS (
    SELECT f.id, f.frame FROM fact f WHERE f.id = ANY(:ids)
), crowded AS (
    SELECT f.frame FROM (SELECT DISTINCT frame FROM given WHERE frame <> 0) AS f WHERE SHARING > MOST + 1
), checked AS (
    SELECT id, frame FROM given
    UNION ALL
    SELECT o.id, o.frame FROM crowded c CROSS JOIN LATERAL (
        SELECT f.id, f.frame FROM fact f
        WHERE f.frame = c.frame AND f.frame <> 0 AND f.deleted_seq IS NULL AND f.id NOT IN (SELECT id FROM given)
        ORDER BY f.id LIMIT MOST + 1
    ) AS o
), paired AS (
    SELECT c.frame, p.id, p.other_id FROM checked c JOIN fact_pair p ON p.fact_id = c.id
    UNION ALL
    SELECT c.frame, p.id, p.fact_id FROM checked c JOIN fact_pair p ON p.other_id = c.id
)
DELETE FROM fact_pair WHERE id IN (
    SELECT id FROM fact_pair WHERE score = 1 AND held_seq IS NULL AND id IN (
        SELECT p.id FROM paired p JOIN fact o ON o.id = p.other_id
        WHERE coalesce(p.frame, 0) = 0 OR o.frame IS DISTINCT FROM p.frame OR p.frame IN (SELECT frame FROM crowded)
    ) ORDER BY fact_id, other_id FOR UPDATE
)
""".replace("SHARING", _SHARING).replace("MOST", str(MOST_PAIRED))
# Rows that somebody else is changing are passed over: who changes a text or a place has the frame computed anew.
_UNFRAMED = """
SELECT f.id, f.document_id, f.span_start, f.span_end, d.title
FROM fact f JOIN document d ON d.id = f.document_id
WHERE f.frame IS NULL AND f.span_start IS NOT NULL AND f.deleted_seq IS NULL AND f.id = ANY(:ids)
ORDER BY f.document_id, f.id FOR NO KEY UPDATE OF f SKIP LOCKED FOR SHARE OF d SKIP LOCKED
"""
_TEXT = text("SELECT text FROM document WHERE id = :document_id")
_SET_FRAMES = text("""
UPDATE fact f SET frame = given.frame
FROM unnest(CAST(:ids AS bigint[]), CAST(:frames AS bigint[])) AS given (id, frame) WHERE f.id = given.id
""")
_BY_INDEX = text("SELECT set_config('enable_seqscan', 'off', true)")

_KNOWN = text("""
SELECT p.fact_id, p.other_id, p.version, p.other_version FROM fact_pair p
JOIN unnest(CAST(:facts AS bigint[]), CAST(:others AS bigint[])) AS given (fact_id, other_id)
  ON given.fact_id = p.fact_id AND given.other_id = p.other_id
WHERE NOT p.same_value AND p.score IS NULL
""")
# What a slower comparison read before an edit does not replace what that edit kept, nor a score what words tell. That
# both are right is kept while both say and ask the same, also where one was deleted and restored since.
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
    """Two live facts that are compared, the older first, each with its version and the change that gave its value."""

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
    """Say whether one of two values contains the other in some wording (`kb.texts.alike`)."""
    return (
        value == other
        or compare_wording(value, other) is not None
        or compare_wording(other, value) is not None
    )


def is_same(value: str, other: str) -> bool:
    """Say whether two values have the same terms, in any order, apart from articles and forms of numbers."""
    return value == other or (bool(terms_of(value)) and sorted(terms_of(value)) == sorted(terms_of(other)))


def yields_then(session: Session, said: Mapping[int, int], as_of: int) -> dict[int, set[int]]:
    """Give, of these facts (ids, with versions), those that were to answer in place of each as of a change.

    It is the rule of the view `fact_yield`. Reviews, and notes that both are right, are those of now.
    """
    named = {"ids": list(said), "versions": list(said.values()), "as_of": as_of}
    rows = session.execute(_SAID_THEN, named).all() if len(said) > 1 else []
    both_right = {tuple(row) for row in session.execute(_BOTH_RIGHT, named)} if rows else set()
    yields: dict[int, set[int]] = {fact_id: set() for fact_id in said}
    for _, asked_alike in groupby(rows, key=attrgetter("asked")):
        in_order = sorted(asked_alike, key=attrgetter("is_accepted", "given", "id"))
        for one, other in combinations(in_order, 2):
            ids = (min(one.id, other.id), max(one.id, other.id))
            if ids not in both_right and not says_the_same(one.value, other.value):
                yields[one.id].add(other.id)
    return yields


def keep_pairs(session: Session, fact_ids: Sequence[int], *, anyway: bool) -> tuple[int, ...]:
    """Store the pairs of edited facts with other live facts, and give the ids of other facts with the same value.

    Pairs that the caller may not see are stored, but neither given nor refused. Raises `AnsweredAlready` for a new
    contradiction unless `anyway`.
    """
    rows, pairs = _find_pairs(session, _WITH_IDS, ids=list(fact_ids))
    if not pairs:
        return ()
    edited = set(fact_ids)
    rows = [row for row in rows if is_in_scope(row.corpus, row.other_corpus)]
    told = [pair for pair in pairs if is_in_scope(pair.corpus, pair.other_corpus)]
    if not anyway and (new := _new_contradictions(session, told, edited)):
        said = {row.other_id: row.other_value for row in rows} | {row.fact_id: row.value for row in rows}
        others = sorted({n for pair in new for n in (pair.fact_id, pair.other_id)} - edited)
        raise refusals.answered_already(others, said[others[0]] if others else "")
    store_pairs(session, pairs)
    return tuple(sorted({row.other_id for row in rows if is_same(row.value, row.other_value)} - edited))


class PairCounts(NamedTuple):
    """The numbers of pairs stored: those whose values differ, and those whose values are the same."""

    contradictions: int
    duplicates: int


def store_pairs_of_range(session: Session, first: int, last: int) -> PairCounts:
    """Store pairs of live facts with the same question or sentence, for ids `first` to `last`. Count those in scope."""
    session.execute(_BY_INDEX)  # tables just filled have no statistics yet
    _, pairs = _find_pairs(session, _IN_RANGE, first=first, last=last)
    store_pairs(session, pairs)
    told = [pair for pair in pairs if is_in_scope(pair.corpus, pair.other_corpus)]
    alike = sum(pair.same_value for pair in told)
    return PairCounts(contradictions=len(told) - alike, duplicates=alike)


def store_pairs(session: Session, pairs: Collection[KeptPair]) -> None:
    """Store these pairs in the order of their fact ids, so that two transactions cannot block each other."""
    if pairs:
        ordered = sorted(pairs, key=lambda pair: (pair.fact_id, pair.other_id))
        session.execute(_KEEP, {name: [getattr(pair, name) for pair in ordered] for name in _NAMES})


def fill_frames(session: Session, first: int, last: int) -> None:
    """Store the frame, a hash of its sentence's words (`frame_of`), of each fact of this id range without one."""
    _fill_frames_where(session, _IN_RANGE, first=first, last=last)


_WITH_IDS, _IN_RANGE = "f.id = ANY(:ids)", "f.id BETWEEN :first AND :last"


def _fill_frames_where(session: Session, where: str, **given: Any) -> None:
    rows = session.execute(text(_UNFRAMED.replace(_WITH_IDS, where)), given).all()
    frames: dict[int, int] = {}
    for document_id, facts in groupby(rows, key=attrgetter("document_id")):
        said: str = session.execute(_TEXT, {"document_id": document_id}).scalar_one()
        ends = sentence_ends(said)
        frames |= {one.id: frame_of(one.title, said, ends, one.span_start, one.span_end) for one in facts}
    if frames:
        session.execute(_SET_FRAMES, {"ids": list(frames), "frames": list(frames.values())})


def _find_pairs(session: Session, where: str, **given: Any) -> tuple[Sequence[Any], list[KeptPair]]:
    """Find pairs of the facts that `where` (SQL) selects, by questions and by frames; give the rows, then the pairs.

    It first fills missing frames and deletes stored pairs by sentence that no longer apply.
    """
    _fill_frames_where(session, where, **given)
    session.execute(text(_DROP.replace(_WITH_IDS, where)), given)
    asked, framed = (
        session.execute(text(sql.replace(_WITH_IDS, where)), given).all() for sql in (_BY_QUESTION, _BY_FRAME)
    )
    seen: set[tuple[int, int]] = set()
    return [*asked, *framed], [*_new_pairs(asked, seen, None), *_new_pairs(framed, seen, 1.0)]


def _new_pairs(rows: Sequence[Any], seen: set[tuple[int, int]], score: float | None) -> Iterator[KeptPair]:
    """Yield the pair of each row, the older fact first, unless it is in `seen`; adds it to `seen`."""
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
                says_the_same(row.value, row.other_value), score,
            )  # fmt: skip


def _new_contradictions(
    session: Session, pairs: Sequence[KeptPair], edited: Collection[int]
) -> list[KeptPair]:
    """Give the contradictions by question among `pairs` that did not exist before these facts were edited."""
    against = [pair for pair in pairs if not pair.same_value and pair.score is None]
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


def compare_redacted(session: Session, document_ids: Sequence[int]) -> None:
    """Compare facts again whose sentences in these documents were redacted: store new pairs, drop obsolete ones."""
    of_these = (FactRow.document_id == func.any(document_ids), FactRow.deleted_seq.is_(None))
    reset = select(FactRow.id).where(*of_these, FactRow.frame.is_(None))
    if fact_ids := session.scalars(reset.order_by(FactRow.id)).all():
        keep_pairs(session, fact_ids, anyway=True)
