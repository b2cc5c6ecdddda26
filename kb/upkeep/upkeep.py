"""Upkeep: the verbs that check, repair and count what a store holds."""

from __future__ import annotations

from dataclasses import dataclass

from colmlm.kb.lookup.searchable import SearchableStore
from colmlm.kb.upkeep.fsck import fsck
from colmlm.kb.upkeep.records import FsckReport
from colmlm.kb.upkeep.repair import Repair, RepairReport
from colmlm.kb.upkeep.snapshot_standing import (
    SharedStanding,
    SnapshotStanding,
    shared_standing,
    snapshot_standing,
)
from colmlm.kb.upkeep.statistics import Statistics, statistics


@dataclass(frozen=True, slots=True)
class Upkeep:
    """The checks and repairs of a store."""

    store: SearchableStore

    def fsck(self) -> FsckReport:
        """Compares facts, sentences, keys, index, texts and log, and changes nothing."""
        with self.store.sessions() as session:
            return fsck(session, self.store.settings)

    def repair(self, *, dry_run: bool = False) -> RepairReport:
        """Checks everything, mends what is derived, and checks again; a dry run says what it would mend."""
        return Repair(self.store).run(dry_run=dry_run)

    def snapshot(self) -> SnapshotStanding | None:
        """Compares the active keyset's snapshot with the database by counts, and opens nothing: `fsck` compares sets.

        None where there is none that can be read. Raises `NoActiveKeyset`, and where the keys are elsewhere
        `CandidatesRefused` and `CandidatesUnavailable`.
        """
        with self.store.sessions() as session:
            return snapshot_standing(session, self.store.settings)

    def shared_snapshot(self) -> SharedStanding | None:
        """Describes the active keyset's snapshot where servers share it, without reading it; None where they do not.

        Raises `SharedSnapshotsUnavailable`.
        """
        with self.store.sessions() as session:
            return shared_standing(session, self.store.settings)

    def statistics(self) -> Statistics:
        """Counts everything, in one statement for each table, which reads the whole table."""
        with self.store.reports() as session:
            return statistics(session)
