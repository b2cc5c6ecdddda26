"""Lookups: what queries find in a store, now or as of a change."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Unpack

import numpy.typing as npt
from sqlalchemy import select
from sqlalchemy.orm import Session

from colmlm.kb.errors import NoActiveKeyset
from colmlm.kb.log import audit
from colmlm.kb.lookup.history import AsOf
from colmlm.kb.lookup.options import USUAL_FACTS, FactFilter, LookupOptions
from colmlm.kb.lookup.records import Lookup, LookupSpace, Ranking
from colmlm.kb.lookup.replica import snapshots_of
from colmlm.kb.lookup.searcher import Searcher
from colmlm.kb.store.store import Store
from colmlm.kb.tables import CheckpointRow, KeysetRow


@dataclass(frozen=True, slots=True)
class Lookups:
    """Answers lookups in a store, with one index for each process."""

    store: Store
    searcher: Searcher

    def find(
        self, queries_BD: npt.NDArray[Any], *, checkpoint_id: str, **options: Unpack[LookupOptions]
    ) -> list[Lookup]:
        """Find the best live facts for each query [B, d].

        Of facts that contradict each other and are about as near, the accepted one comes first, or else the newer one.

        Raises `IndexBehind` where the index does not reach `min_seq` in time, and `NoSuchChange` at once where that
        change does not exist. Raises `KeysetMismatch` where the queries are not of the active keyset's checkpoint.
        """
        return self.searcher.find(queries_BD, checkpoint_id=checkpoint_id, **options)

    def nearest(
        self,
        queries_BD: npt.NDArray[Any],
        *,
        checkpoint_id: str,
        k: int,
        fact_filter: FactFilter = USUAL_FACTS,
    ) -> list[Ranking]:
        """Find the k live facts nearest to each query [B, d], and the nearest tombstone, which then hides none."""
        return self.searcher.nearest(queries_BD, checkpoint_id=checkpoint_id, k=k, fact_filter=fact_filter)

    def catch_up(self) -> int:
        """Apply every committed change to this process's index and give the seq reached."""
        return self.searcher.catch_up()

    def rebuild(self) -> None:
        """Build the active keyset's index and snapshot again from the database alone."""
        self.searcher.rebuild()

    def snapshot(self, *, share: bool = False) -> None:
        """Write the active keyset's index to disk, so that the next process starts from it.

        With `share` it is also copied to where servers share snapshots, if there is such a place.
        """
        self.searcher.snapshot(share=share)

    def as_of(self, seq: int) -> AsOf:
        """Give lookups in the base as of change `seq`. Raises `NoSuchChange`."""
        with self.store.sessions() as session:
            audit.require_change(session, seq)
        return AsOf(self.store, seq)

    def in_keyset(self, keyset_id: int) -> Searcher:
        """Give lookups in one keyset, active or not. Opens no index yet."""
        return self.searcher.of_keyset(keyset_id)

    def standing(self) -> IndexStanding:
        """Give the state of this process's index without catching up. It takes two small statements."""
        return index_standing(self.store, self.searcher)

    def space(self) -> LookupSpace:
        """Tell what queries lookups answer now: their checkpoint and width, with the threshold and the last change."""
        with self.store.sessions() as session:
            return lookup_space(session)


# The space of lookups: what a decoder on another machine has to know of a knowledge base before it asks.


def lookup_space(session: Session) -> LookupSpace:
    """Give the space of lookups, from two rows; no keys are counted. Raises `NoActiveKeyset`."""
    statement = select(
        KeysetRow.id,
        KeysetRow.checkpoint_id,
        CheckpointRow.name,
        CheckpointRow.dim,
        KeysetRow.threshold,
        KeysetRow.calibrated,
    ).join(CheckpointRow, CheckpointRow.id == KeysetRow.checkpoint_id)
    row = session.execute(statement.where(KeysetRow.state == "active")).one_or_none()
    if row is None:
        raise NoActiveKeyset
    return LookupSpace(
        row.id, row.checkpoint_id, row.name, row.dim, row.threshold, row.calibrated, audit.head_seq(session)
    )


# Reports how far the index of a process has followed the database.


@dataclass(frozen=True, slots=True)
class IndexStanding:
    """The state of a process's index.

    `applied_seq` is None where no index is open; `snapshot_at` where it has no snapshot.
    """

    head_seq: int
    applied_seq: int | None
    snapshot_at: datetime | None

    @property
    def lag(self) -> int | None:
        """The number of changes that the next lookup would have to apply first."""
        return None if self.applied_seq is None else max(0, self.head_seq - self.applied_seq)


def index_standing(store: Store, searcher: Searcher) -> IndexStanding:
    """Give the state of this process's index without catching up. It takes two small statements."""
    applied_seq, keyset_id = searcher.applied_seq, searcher.keyset_in_use
    with store.sessions() as session:
        head = audit.head_seq(session)
        snapshot_at = _snapshot_at(session, store, keyset_id) if keyset_id is not None else None
    return IndexStanding(head, applied_seq, snapshot_at)


def _snapshot_at(session: Session, store: Store, keyset_id: int) -> datetime | None:
    """Give the time at which the snapshot on disk was written, perhaps by another process of this home."""
    manifest = snapshots_of(session, store.settings.index_directory) / f"keyset-{keyset_id}.json"
    try:
        return datetime.fromtimestamp(manifest.stat().st_mtime, UTC)
    except FileNotFoundError:
        return None
