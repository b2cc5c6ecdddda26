"""Upkeep: the verbs that check, repair and count what a store holds."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from colmlm.kb.keys import counting, keysets
from colmlm.kb.log import audit
from colmlm.kb.lookup import shared, writing
from colmlm.kb.lookup.replica import snapshots_of
from colmlm.kb.lookup.searchable import SearchableStore
from colmlm.kb.lookup.snapshot_files import sizes_of
from colmlm.kb.store.settings import Settings
from colmlm.kb.tables import ChangeRow
from colmlm.kb.upkeep.fsck import fsck
from colmlm.kb.upkeep.records import FsckReport
from colmlm.kb.upkeep.repair import Repair, RepairReport
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


# Compares the snapshot on disk, and the one that servers share, with the database, by counts.


@dataclass(frozen=True, slots=True)
class SnapshotStanding:
    """A snapshot of `num_keys` keys as of change `applied_seq`, where the log ends with `head_seq`.

    Of a keyset whose keys are elsewhere it is what is there, and takes no bytes here. `num_wanted` is how many keys it
    should hold; None where later changes touched keys, so that it is unknown.
    """

    num_keys: int
    num_bytes: int
    applied_seq: int
    head_seq: int
    num_wanted: int | None


def snapshot_standing(session: Session, settings: Settings) -> SnapshotStanding | None:
    """Describes the active keyset's snapshot; None where there is none that can be read.

    Raises `NoActiveKeyset`, and where its keys are elsewhere `CandidatesRefused` and `CandidatesUnavailable`.
    """
    keyset = keysets.active_head(session)
    head = audit.head_seq(session)
    if (there := writing.collection(session, keyset, settings.milvus)) is not None:
        applied_seq = writing.attach(session, there).applied_seq
        held, size = there.count(strong=True), 0
    elif (found := sizes_of(snapshots_of(session, settings.index_directory), keyset.keyset_id)) is not None:
        held, size, applied_seq = found
    else:
        return None
    touched = (
        select(ChangeRow.seq)
        .where(ChangeRow.seq > applied_seq, ChangeRow.kind.not_in(audit.NO_KEYS))
        .limit(1)
    )
    is_behind = session.scalar(touched) is not None
    wanted = None if is_behind else counting.num_indexed_keys(session, keyset.keyset_id)
    return SnapshotStanding(held, size, applied_seq, head, wanted)


@dataclass(frozen=True, slots=True)
class SharedStanding:
    """The active keyset's shared snapshot, at `where`, and `behind` the log by so many changes; None: not there.

    `doubts` say which snapshots the database knows elsewhere, or names in vain.
    """

    where: str
    behind: int | None
    doubts: tuple[str, ...] = ()


def shared_standing(session: Session, settings: Settings) -> SharedStanding | None:
    """Describes the shared snapshot, without reading it; None where servers share none.

    Raises `SharedSnapshotsUnavailable`.
    """
    if (folder := shared.folder_of(session, settings)) is None:
        return None
    doubts = tuple(shared.doubts(session, folder).values())
    there = shared.noted(session).get(keysets.active_keyset_id(session) or 0)
    if doubts or there is None:
        return SharedStanding(folder.where, None, doubts)
    return SharedStanding(folder.where, audit.head_seq(session) - there.applied_seq)
