"""Touched keys: the keys of one keyset that changes of the log touched, and which of them an index must hold now.

Every index follows the log by these statements, in this process or elsewhere. psycopg runs them as prepared statements
without SQLAlchemy, since a lookup that finds its index behind waits for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg

from colmlm.kb.facts.edits import MAX_ID

BATCH = 10_000

# Rows are sought by their ids, one after the other: OFFSET and scalar sub-selects keep the planner, which knows nothing
# of how many are asked for, from reading a table whole. The log is read by the numbers that it has: a forged one may be
# endlessly far from the last.
# Changes that store keys of another keyset only count: a rekey of everything must not make an index read it all.
_PASSED = """
SELECT c.seq, touching.fact_ids, touching.payload -> 'dropped_keys', touching.payload -> 'keys'
FROM change c LEFT JOIN LATERAL (
    SELECT c.fact_ids, c.payload
    WHERE c.kind <> 'key' OR c.payload @> jsonb_build_object('keyset', %(keyset_id)s::bigint)
) AS touching ON true
WHERE c.seq > %(after)s::bigint
"""
_KEYS = """
SELECT k.id, CASE WHEN (SELECT true FROM fact_version v WHERE v.fact_id = k.fact_id AND v.to_seq IS NULL)
       OR (SELECT true FROM tombstone t WHERE t.fact_id = k.fact_id) THEN k.key END
FROM SOUGHT AS k WHERE k.keyset_id = %(keyset_id)s::bigint
"""
# The keyset is looked at last: without statistics all of its ids would be read, to be compared with those of one fact.
_OF_FACTS = _KEYS.replace(
    "SOUGHT",
    "unnest(%(ids)s::bigint[]) AS touched (id)"
    " CROSS JOIN LATERAL (SELECT * FROM fact_key WHERE fact_id = touched.id OFFSET 0)",
)
_BETWEEN = _KEYS.replace("SOUGHT", "fact_key") + "AND k.id BETWEEN %(first)s::bigint AND %(last)s::bigint"
_GONE = """
SELECT dropped.id FROM unnest(%(ids)s::bigint[]) AS dropped (id)
WHERE (SELECT true FROM fact_key k WHERE k.keyset_id = %(keyset_id)s::bigint AND k.id = dropped.id) IS NULL
"""
_LAST = "SELECT max(id) FROM fact_key WHERE keyset_id = %(keyset_id)s::bigint"

Keys = dict[int, bytes | None]


@dataclass(slots=True)
class TouchedKeys:
    """The keys touched by changes up to `head`: as facts, as ids of dropped keys, and as ranges of ids of new keys."""

    head: int
    facts: set[int] = field(default_factory=set)
    dropped: list[int] = field(default_factory=list)
    stored: list[tuple[int, int]] = field(default_factory=list)


def read_touched_keys(connection: psycopg.Connection, keyset_id: int, after: int) -> TouchedKeys:
    """Read from the log which keys the committed changes past `after` touched."""
    found = TouchedKeys(after)
    for seq, fact_ids, dropped, stored in _rows(connection, _PASSED, keyset_id=keyset_id, after=after):
        found.head = max(found.head, seq)
        found.dropped += _ids(dropped)
        if len(ends := _ids(stored)) == 2:
            found.stored.append((ends[0], ends[1]))
        else:
            found.facts.update(_ids(fact_ids))
    return found


def renew_touched_keys(connection: psycopg.Connection, keyset_id: int, found: TouchedKeys) -> Iterator[Keys]:
    """Yield the touched keys by id, as the database stores them now, in batches.

    The value is None for a dropped key and for a key of a fact that is neither live nor a tombstone: no index holds it.
    """
    if found.dropped:
        yield {key_id: None for (key_id,) in _rows(connection, _GONE, keyset_id=keyset_id, ids=found.dropped)}
    facts = sorted(found.facts)
    for start in range(0, len(facts), BATCH):
        yield dict(_rows(connection, _OF_FACTS, keyset_id=keyset_id, ids=facts[start : start + BATCH]))
    for first, last in _bound_ranges(connection, keyset_id, found.stored):
        for start in range(first, last + 1, BATCH):
            ends = {"first": start, "last": min(start + BATCH - 1, last)}
            yield dict(_rows(connection, _BETWEEN, keyset_id=keyset_id, **ends))


def _bound_ranges(
    connection: psycopg.Connection, keyset_id: int, stored: list[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Cut these ranges of key ids at the last id that exists, since a forged range could be endless."""
    last_key = (_rows(connection, _LAST, keyset_id=keyset_id)[0][0] or 0) if stored else 0
    return [(first, min(last, last_key)) for first, last in stored]


def _rows(connection: psycopg.Connection, statement: str, **values: Any) -> Sequence[Any]:
    with connection.cursor(binary=True) as cursor:
        return cursor.execute(statement, values, prepare=True).fetchall()


def _ids(said: Any) -> list[int]:
    """Give the valid ids in a field of a change's payload. A forged row of the log may hold anything there."""
    return [one for one in said if type(one) is int and 0 < one <= MAX_ID] if isinstance(said, list) else []
