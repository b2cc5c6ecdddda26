"""Decides which of the keys that a search found are of live facts, in one SELECT.

It gives, from one snapshot of the database: the head of the change log, the keyset that answers, and those candidate
keys whose facts are live, with value and exact key. Keys of tombstones come without a value. Facts that are only
proposed come with their review, or not at all where only accepted ones are to be found. A standby decides nothing, as
it may still have what was deleted.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import psycopg
from psycopg.rows import namedtuple_row
from sqlalchemy import Engine, Row

from colmlm.kb.errors import StandbyAsked
from colmlm.kb.facts.reviewed import hidden
from colmlm.kb.lookup.contested import Yields
from colmlm.kb.lookup.observing import Observer
from colmlm.kb.store import database

# The driver runs this itself: in its binary form keys come as stored, and a prepared statement is planned once. Every
# row is sought by its id, one after the other (LIMIT keeps the planner from joining otherwise): it expects more
# candidates than most lookups have, and would read a small base whole for them.
# "active" is the keyset that answers: the active one, or one that is asked for by its id. Whether anything contradicts
# is asked once, since in most bases nothing does.
_DECIDE = """
SELECT coalesce((SELECT max(seq) FROM change), 0) AS head, pg_is_in_recovery() AS is_standby,
       active.id AS keyset_id, active.checkpoint_id, active.threshold,
       found.key_id, found.fact_id, found.version, found.value, found.key, found.review, found.approximate,
       found.yields_to
FROM (SELECT) AS always
LEFT JOIN keyset active ON active.state = 'active'
LEFT JOIN LATERAL (
    SELECT k.key_id, k.fact_id, v.version, v.value, k.key, f.review,
           k.kind = 'adopted' AS approximate,
           CASE WHEN EXISTS (SELECT FROM fact_pair WHERE NOT same_value AND score IS NULL AND held_seq IS NULL) THEN
               ARRAY(SELECT y.to_id FROM fact_yield y WHERE y.fact_id = k.fact_id AND y.version = v.version)
           END AS yields_to
    FROM unnest(%(key_ids)s::bigint[]) AS candidate (id)
    CROSS JOIN LATERAL (
        SELECT id AS key_id, fact_id, kind, key FROM fact_key
        WHERE keyset_id = %(keyset_id)s::bigint AND id = candidate.id LIMIT 1
    ) AS k
    CROSS JOIN LATERAL (SELECT review, document_id FROM fact WHERE id = k.fact_id LIMIT 1) AS f
    LEFT JOIN LATERAL (
        SELECT version, value FROM fact_version WHERE fact_id = k.fact_id AND to_seq IS NULL LIMIT 1
    ) AS v ON true
    WHERE active.id = %(keyset_id)s::bigint AND CASE
        WHEN v.version IS NULL THEN (SELECT true FROM tombstone t WHERE t.fact_id = k.fact_id) ELSE NOT HIDDEN
    END
) AS found ON true
""".replace("HIDDEN", hidden("%(accepted_only)s::boolean", "active.accepted_only"))
_DECIDE_ONE = _DECIDE.replace(
    "active.state = 'active'", "active.id = %(keyset_id)s::bigint AND active.state IN ('ready', 'active')"
)


@dataclass(frozen=True, slots=True)
class Decision:
    """The result of the SELECT: the head, the keyset that answers, and by key id the live candidates and tombstones."""

    head: int
    keyset_id: int | None
    checkpoint_id: str | None
    threshold: float
    keys: dict[int, Row[Any]]

    @property
    def yields(self) -> Yields:
        return {row.fact_id: row.yields_to for row in self.keys.values() if row.yields_to}

    def confirms(self, earlier: Decision) -> bool:
        """Says whether all that an earlier one said of the keyset and its keys still holds."""
        mine = self.keyset_id, self.checkpoint_id, self.threshold
        theirs = earlier.keyset_id, earlier.checkpoint_id, earlier.threshold
        return mine == theirs and all(self.keys.get(key_id) == row for key_id, row in earlier.keys.items())


@dataclass(frozen=True, slots=True)
class Decider:
    """Runs the SELECT on an engine of its own, `reader`, where it costs no BEGIN, no ROLLBACK and no ping.

    The active keyset is to answer, or the one that is `asked` for by its id.
    """

    reader: Engine
    asked: int | None
    observer: Observer

    def decide(self, keyset_id: int, key_ids: list[int], accepted_only: bool | None) -> Decision:
        parameters = {
            "keyset_id": keyset_id,
            "key_ids": database.id_array(key_ids),
            "accepted_only": accepted_only,
        }
        with self.observer.timed("select"):
            rows = database.read_from(self.reader, partial(self._fetch, parameters))
        keys = {row.key_id: row for row in rows if row.key_id is not None}
        first = rows[0]
        if first.is_standby:
            raise StandbyAsked
        return Decision(first.head, first.keyset_id, first.checkpoint_id, first.threshold, keys)

    @property
    def _statement(self) -> str:
        return _DECIDE if self.asked is None else _DECIDE_ONE

    def _fetch(self, parameters: dict[str, Any], connection: psycopg.Connection) -> list[Any]:
        with connection.cursor(binary=True, row_factory=namedtuple_row) as cursor:
            return cursor.execute(self._statement, parameters, prepare=True).fetchall()
