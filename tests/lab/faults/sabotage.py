"""Deliberate faults of the knowledge base that `crashlab` must detect. They are set in its child processes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psycopg
from sqlalchemy import Engine, delete, text
from sqlalchemy.orm import Session

from colmlm.kb.backup import restore as backup_restore
from colmlm.kb.backup.restore import NewerLog, RepeatedErasure
from colmlm.kb.backup.write import Archive
from colmlm.kb.facts import edits
from colmlm.kb.facts.facts import Facts
from colmlm.kb.facts.records import Edit
from colmlm.kb.keys import adapting
from colmlm.kb.keys.adapting import FittedMap
from colmlm.kb.keys.keysets import Vectors
from colmlm.kb.keys.predicted import predicted_sql
from colmlm.kb.keys.rekey import KeyQueue, RekeyRun
from colmlm.kb.lookup.replica import Replica
from colmlm.kb.lookup.searchable import SearchableStore
from colmlm.kb.removal import erase
from colmlm.kb.removal.purge import NAMES, Heard
from colmlm.kb.removal.records import Level
from colmlm.kb.store import database
from colmlm.kb.tables import FactKeyRow


def deletes_are_acknowledged_and_rolled_back() -> None:
    def delete(
        self: Facts, fact_ids: Sequence[int], *, actor: str, reason: str, abstain: bool = False
    ) -> Edit:
        with self.store.sessions() as session:
            return edits.delete_facts(session, fact_ids, actor, reason, abstain=abstain)

    Facts.delete = delete  # type: ignore[method-assign]


def indexes_claim_changes_they_have_not_applied() -> None:
    def catch_up(self: Replica, connection: psycopg.Connection, wait_seconds: float | None = None) -> int:
        ((head,),) = connection.execute("SELECT coalesce(max(seq), 0) FROM change").fetchall()
        self.candidates.advance(head)
        return self.applied_seq

    Replica.catch_up = catch_up  # type: ignore[method-assign]


def predicted_keys_are_dropped_before_true_ones_are_made() -> None:
    whole = RekeyRun.work

    def work(self: RekeyRun, waiting: Sequence[KeyQueue]) -> None:
        with self.sessions.begin() as session:
            for queue in waiting:
                if queue.replaced:
                    session.execute(delete(FactKeyRow).where(predicted_sql(FactKeyRow.id, queue.replaced)))
        whole(self, waiting)

    RekeyRun.work = work  # type: ignore[method-assign]


def keys_are_predicted_by_a_map_of_other_facts() -> None:
    whole = adapting.best_map

    def best_map(method: str, old_ND: Vectors, new_NE: Vectors, groups_N: Sequence[int]) -> FittedMap:
        return whole(method, old_ND, new_NE[::-1].copy(), groups_N)

    adapting.best_map = best_map


def purges_claim_levels_and_rewrite_nothing() -> None:
    def purge(kb: SearchableStore, *, now: bool, on_step: Heard) -> tuple[Level, ...]:
        return tuple(Level(number, name, "reached", "") for number, name in enumerate(NAMES, 1))

    erase.purge_erased = purge


def purges_leave_a_setting() -> None:
    whole = erase.purge_erased

    def purge(kb: SearchableStore, *, now: bool, on_step: Heard) -> tuple[Level, ...]:
        levels = whole(kb, now=now, on_step=on_step)
        with kb.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text("ALTER SYSTEM SET wal_recycle = off"))
        return levels

    erase.purge_erased = purge


def restores_commit_table_by_table() -> None:
    whole = backup_restore._copy_in

    def copy_in(session: Session, archive: Archive, table: dict[str, Any], blocks: Iterator[bytes]) -> None:
        whole(session, archive, table, blocks)
        session.commit()

    backup_restore._copy_in = copy_in


def restores_pass_over_the_newer_log() -> None:
    def repeat(session: Session, newer: NewerLog, actor: str) -> Iterator[RepeatedErasure]:
        return iter(())

    backup_restore.repeat_erasures = repeat


def migrations_commit_one_by_one() -> None:
    def migrate(engine: Engine, later: Path | None = None) -> None:
        found = database.revision_of(engine) or ""
        due = [revision for revision in database.schema_revisions(later) if revision > found]
        for revision in reversed(due):
            with engine.begin() as connection:
                database.upgrade_on(connection, later, revision)

    database.migrate_database = migrate


def migrations_lose_keys() -> None:
    whole = database.migrate_database

    def migrate(engine: Engine, later: Path | None = None) -> None:
        whole(engine, later)
        with engine.begin() as connection:
            connection.execute(text("DELETE FROM fact_key"))

    database.migrate_database = migrate
