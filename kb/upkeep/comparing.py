"""Comparing: finds every pair of facts of a base that ask the same, by words and by keys of the active keyset.

Edits store the pairs of the facts that they edit, by words alone. This finds the pairs of facts from before edits did
so, and those that only keys show. Each piece is a transaction of its own, beside which edits go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import func, select, text

from colmlm.kb.facts import pairs
from colmlm.kb.facts.comparisons import Comparisons
from colmlm.kb.facts.edits import IS_LIVE
from colmlm.kb.facts.pairs import KeptPair, says_the_same
from colmlm.kb.keys import activation, keysets
from colmlm.kb.keys.records import KeysetRecord
from colmlm.kb.lookup.records import Hit
from colmlm.kb.lookup.searchable import SearchableStore
from colmlm.kb.tables import FactKeyRow, FactRow, FactVersionRow

FACTS_AT_ONCE, KEYS_AT_ONCE = 10_000, 256
NEAREST = 5  # facts that are compared with each key
_BELOW_ONE = 1 - 2**-24  # the greatest score of a key, since 1 is that of a pair by sentence

_GIVEN = text("""
SELECT g.fact_id, g.seq, d.corpus FROM value_given g JOIN fact f ON f.id = g.fact_id
LEFT JOIN document d ON d.id = f.document_id WHERE g.fact_id = ANY(:ids)
""")
_CLEAR = text("""
DELETE FROM fact_pair p
WHERE p.held_seq IS NULL AND p.score IS NOT NULL AND p.found_at < :began
   OR NOT EXISTS (SELECT FROM standing_pair s WHERE s.id = p.id) AND (p.held_seq IS NULL OR NOT EXISTS (
       SELECT FROM fact f  -- that both are right is needed again where one is restored
       WHERE f.id IN (p.fact_id, p.other_id) AND f.deleted_seq IS NOT NULL AND f.erased_seq IS NULL
   ))
""")

OnPart = Callable[[int, int, str], None]  # called with how much is done, of how much, and of what


@dataclass(frozen=True, slots=True)
class CompareReport:
    """Record the numbers of live facts and keys, the score from which keys contradict (`radius`), and stored pairs.

    `keys` is 0 and `radius` None where no keyset is active, and facts were compared by words alone.
    """

    facts: int
    keys: int
    radius: float | None
    contradictions: int
    duplicates: int


def compare_all_facts(kb: SearchableStore, radius: float | None, on_part: OnPart) -> CompareReport:
    """Compare every live fact with all others, store the pairs, and drop stored pairs that no longer hold.

    Values that differ contradict where two keys score `radius` with each other (None: nine tenths of the way from the
    keyset's threshold to 1); values that say the same are duplicates from the threshold on.
    """
    with kb.sessions() as session:
        began: datetime = session.execute(select(func.clock_timestamp())).scalar_one()
        active = keysets.active_keyset_id(session)
        keyset = None if active is None else activation.count_keys(session, active)
    facts = _compare_by_words(kb, on_part)
    keys = 0
    if keyset is not None:
        radius = 1 - (1 - keyset.threshold) / 10 if radius is None else radius
        keys = _compare_by_keys(kb, keyset, radius, on_part)
    with kb.sessions.begin() as session:
        session.execute(_CLEAR, {"began": began})
    left = Comparisons(kb).counts()
    return CompareReport(
        facts, keys, radius if keyset is not None else None, left.contradictions, left.duplicates
    )


def _compare_by_words(kb: SearchableStore, on_part: OnPart) -> int:
    """Compute missing frames (`frame_of`) of facts, store their pairs by words, and give the number of live facts."""
    with kb.sessions() as session:
        last = session.scalar(select(func.max(FactRow.id))) or 0
        live = session.scalar(select(func.count()).select_from(FactVersionRow).where(IS_LIVE)) or 0
    for work, of in ((pairs.fill_frames, "facts read"), (pairs.store_pairs_of_range, "facts compared")):
        for first in range(1, last + 1, FACTS_AT_ONCE):
            with kb.sessions.begin() as session:
                work(session, first, first + FACTS_AT_ONCE - 1)
            on_part(min(last, first + FACTS_AT_ONCE - 1), last, of)
    return live


def _compare_by_keys(kb: SearchableStore, keyset: KeysetRecord, radius: float, on_part: OnPart) -> int:
    done = 0
    for rows in _keys(kb, keyset.keyset_id):
        rankings = kb.lookups.nearest(
            keysets.decode_keys([row.key for row in rows], keyset.dim),
            checkpoint_id=keyset.checkpoint_id,
            k=NEAREST + 1,
        )
        near = {
            _ordered_ids(row, hit): (row, hit)
            for row, ranking in zip(rows, rankings, strict=True)
            for hit in ranking.hits
            if hit.fact_id != row.fact_id
            and hit.score >= (keyset.threshold if says_the_same(row.value, hit.value) else radius)
        }
        _store(kb, list(near.values()))
        done += len(rows)
        on_part(done, max(done, keyset.num_keys), "keys compared")
    return done


def _keys(kb: SearchableStore, keyset_id: int) -> Iterator[Sequence[Any]]:
    """Yield rows of keys of live facts by key id, a part at a time, without keys of the kind "alias"."""
    after = 0
    while True:
        statement = (
            select(
                FactKeyRow.id,
                FactKeyRow.fact_id,
                FactKeyRow.key,
                FactVersionRow.version,
                FactVersionRow.value,
            )
            .join(FactVersionRow, FactVersionRow.fact_id == FactKeyRow.fact_id)
            .where(IS_LIVE, FactKeyRow.keyset_id == keyset_id, FactKeyRow.kind != "alias")
            .where(FactKeyRow.id > after)
            .order_by(FactKeyRow.id)
            .limit(KEYS_AT_ONCE)
        )
        with kb.sessions() as session:
            rows = session.execute(statement).all()
        if not rows:
            return
        yield rows
        after = rows[-1].id


def _ordered_ids(row: Any, hit: Hit) -> tuple[int, int]:
    return min(row.fact_id, hit.fact_id), max(row.fact_id, hit.fact_id)


def _store(kb: SearchableStore, near: Sequence[tuple[Any, Hit]]) -> None:
    if not near:
        return
    with kb.sessions.begin() as session:
        ids = sorted({n for row, hit in near for n in (row.fact_id, hit.fact_id)})
        given = {row.fact_id: row for row in session.execute(_GIVEN, {"ids": ids})}
        pairs.store_pairs(session, [_pair(row, hit, given) for row, hit in near])


def _pair(row: Any, hit: Hit, given: Mapping[int, Any]) -> KeptPair:
    versions = {row.fact_id: row.version, hit.fact_id: hit.version}
    one, other = _ordered_ids(row, hit)
    return KeptPair(
        one, other, versions[one], versions[other], given[one].seq, given[other].seq,
        given[one].corpus, given[other].corpus,
        says_the_same(row.value, hit.value), min(hit.score, _BELOW_ONE),
    )  # fmt: skip
