"""Touched: what changes of the log touched in one keyset, and which keys an index is to hold of that.

The driver runs these statements itself, prepared, since a lookup that finds its index behind waits for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg

from colmlm.kb.facts.edits import MAX_ID

BATCH = 10_000

# Changes that store keys of another keyset only count: a rekey of everything must not make an index read it all.
_PASSED = """
SELECT c.seq, touching.fact_ids, touching.dropped, touching.stored
FROM change c LEFT JOIN LATERAL (
    SELECT c.fact_ids, c.payload -> 'dropped_keys' AS dropped, c.payload -> 'keys' AS stored
    WHERE c.kind <> 'key' OR c.payload @> jsonb_build_object('keyset', %(keyset_id)s::bigint)
) AS touching ON true
WHERE c.seq > %(after)s::bigint
"""
_KEYS = """
SELECT k.id, CASE WHEN v.fact_id IS NOT NULL OR t.fact_id IS NOT NULL THEN k.key END
FROM fact_key k
LEFT JOIN fact_version v ON v.fact_id = k.fact_id AND v.to_seq IS NULL
LEFT JOIN tombstone t ON t.fact_id = k.fact_id
WHERE k.keyset_id = %(keyset_id)s::bigint AND
"""
_OF_FACTS = _KEYS + "k.fact_id = ANY(%(ids)s::bigint[])"
_BETWEEN = _KEYS + "k.id BETWEEN %(first)s::bigint AND %(last)s::bigint"
_THERE = "SELECT id FROM fact_key WHERE id = ANY(%(ids)s::bigint[])"
_LAST = "SELECT max(id) FROM fact_key"

Keys = dict[int, bytes | None]


@dataclass(slots=True)
class Touched:
    """What changes up to `head` touched: facts, ids of dropped keys, ranges of new key ids."""

    head: int
    facts: set[int] = field(default_factory=set)
    dropped: list[int] = field(default_factory=list)
    stored: list[tuple[int, int]] = field(default_factory=list)


def touched(connection: psycopg.Connection, keyset_id: int, after: int) -> Touched:
    """Gives what every change past `after` that is committed by now touched."""
    found = Touched(after)
    for seq, fact_ids, dropped, stored in _rows(connection, _PASSED, keyset_id=keyset_id, after=after):
        found.head = max(found.head, seq)
        found.dropped += _ids(dropped)
        if len(ends := _ids(stored)) == 2:
            found.stored.append((ends[0], ends[1]))
        else:
            found.facts.update(_ids(fact_ids))
    return found


def renewed(connection: psycopg.Connection, keyset_id: int, found: Touched) -> Iterator[Keys]:
    """Gives the keys, as they are now, of all that was touched, in batches; None for those an index must not hold.

    These are of facts that are neither live nor tombstones, and keys that were dropped.
    """
    if gone := _gone(connection, found.dropped):
        yield dict.fromkeys(gone)
    facts = sorted(found.facts)
    for start in range(0, len(facts), BATCH):
        yield dict(_rows(connection, _OF_FACTS, keyset_id=keyset_id, ids=facts[start : start + BATCH]))
    for first, last in _bounded(connection, found.stored):
        for start in range(first, last + 1, BATCH):
            ends = {"first": start, "last": min(start + BATCH - 1, last)}
            yield dict(_rows(connection, _BETWEEN, keyset_id=keyset_id, **ends))


def _gone(connection: psycopg.Connection, dropped: list[int]) -> list[int]:
    """Gives those of these keys that do not exist any more."""
    there = {key_id for (key_id,) in _rows(connection, _THERE, ids=dropped)} if dropped else set()
    return [key_id for key_id in dropped if key_id not in there]


def _bounded(connection: psycopg.Connection, stored: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Cuts these ranges of key ids at the last id that exists, since a forged range could be endless."""
    last_key = (_rows(connection, _LAST)[0][0] or 0) if stored else 0
    return [(first, min(last, last_key)) for first, last in stored]


def _rows(connection: psycopg.Connection, statement: str, **values: Any) -> Sequence[Any]:
    with connection.cursor(binary=True) as cursor:
        return cursor.execute(statement, values, prepare=True).fetchall()


def _ids(said: Any) -> list[int]:
    """Gives the ids in a member of a change's payload; a row that somebody put into the log may hold anything there."""
    return [one for one in said if type(one) is int and 0 < one <= MAX_ID] if isinstance(said, list) else []
