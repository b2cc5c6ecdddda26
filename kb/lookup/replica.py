"""This process's copy of one keyset's index, and how it follows the change log.

Catching up never trusts what a change says was done: for every fact touched since, the live keys are read
from the database and the index is made to hold exactly those. So a change may be applied twice, or late.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import ColumnElement, and_, case, func, or_, select
from sqlalchemy.orm import Session

from colmlm.kb.errors import IndexInvariant, SnapshotRefused
from colmlm.kb.facts.edits import IS_LIVE, MAX_ID
from colmlm.kb.keys import keysets
from colmlm.kb.keys.keycopy import indexed_keys
from colmlm.kb.keys.keysets import AUTO_SPEC, Ids, Vectors
from colmlm.kb.keys.records import KeysetHead, KeysetRecord
from colmlm.kb.log import audit
from colmlm.kb.lookup.index import FLAT_SPEC, FLAT_UP_TO, KeyIndex, default_spec
from colmlm.kb.tables import Change, FactKey, FactVersion, Tombstone

BATCH = 10_000

OnKeys = Callable[[int, int], None]
AnyKeyset = KeysetHead | KeysetRecord


@dataclass(slots=True)
class Replica:
    """The index of `keyset_id` with every change up to `applied_seq` in it (or more, never less)."""

    keyset_id: int
    checkpoint_id: str
    dim: int
    index: KeyIndex
    applied_seq: int
    _follow: threading.Lock = field(default_factory=threading.Lock)

    def catch_up(self, session: Session, wait_seconds: float | None = None) -> int:
        """Apply every change committed by now and return the seq reached. Safe beside searches and other callers.

        Another caller who is at it is waited for, by default to its end; after `wait_seconds` nothing is applied here.
        """
        if not self._follow.acquire(timeout=-1 if wait_seconds is None else wait_seconds):
            return self.applied_seq
        try:
            # Read before the keys: whatever is committed in between is newer than `head` and seen again next time.
            head = audit.head_seq(session)
            if head > self.applied_seq:
                touched, dropped, stored = _touched(session, self.keyset_id, self.applied_seq, head)
                self.index.remove(_gone(session, dropped))
                for start in range(0, len(touched), BATCH):
                    self._renew(session, FactKey.fact_id == func.any(touched[start : start + BATCH]))
                for first, last in _bounded(session, stored):
                    for start in range(first, last + 1, BATCH):
                        self._renew(session, FactKey.id.between(start, min(start + BATCH - 1, last)))
                self.applied_seq = head
            return self.applied_seq
        finally:
            self._follow.release()

    def has_outgrown(self, keyset: AnyKeyset) -> bool:
        """Whether the index is still exact where the keyset has grown to a size that wants another."""
        is_exact = keyset.index_spec == AUTO_SPEC and self.index.spec == FLAT_SPEC
        return is_exact and len(self.index) > 2 * FLAT_UP_TO

    def _renew(self, session: Session, which: ColumnElement[bool]) -> None:
        """Make the index hold, of these keys, exactly those whose facts are live or tombstones."""
        kept = func.coalesce(FactVersion.fact_id, Tombstone.fact_id)
        statement = (
            select(FactKey.id, case((kept.is_not(None), FactKey.key)).label("key"))
            .outerjoin(FactVersion, and_(FactVersion.fact_id == FactKey.fact_id, IS_LIVE))
            .outerjoin(Tombstone, Tombstone.fact_id == FactKey.fact_id)
            .where(FactKey.keyset_id == self.keyset_id, which)
        )
        keys: dict[int, bytes | None] = {row.id: row.key for row in session.execute(statement)}
        self.index.remove([key_id for key_id, key in keys.items() if key is None])
        new = self.index.missing([key_id for key_id, key in keys.items() if key is not None])
        if len(new):
            self._add(new, keysets.decode([keys[key_id] for key_id in new.tolist()], self.dim))  # type: ignore[misc]

    def _add(self, ids: Ids, keys: Vectors) -> None:
        if len(self.index) == 0:
            self.index = build(self.dim, self.index.spec, ids, keys)
        else:
            self.index.add(ids, keys)


def _touched(
    session: Session, keyset_id: int, after: int, head: int
) -> tuple[list[int], list[int], list[tuple[int, int]]]:
    """What the changes past `after` up to `head` touched: facts, ids of keys whose rows went, ranges of new key ids."""
    # Keys of another keyset are another index's business: a rekey of everything must not make this one re-read it.
    concerns = or_(Change.kind != "key", Change.payload.contains({"keyset": keyset_id}))
    between = and_(Change.seq > after, Change.seq <= head)
    touched: set[int] = set()
    dropped: list[int] = []
    stored: list[tuple[int, int]] = []
    columns = Change.fact_ids, Change.payload["dropped_keys"], Change.payload["keys"]
    for fact_ids, dropped_keys, keys in session.execute(select(*columns).where(between, concerns)):
        dropped += _ids(dropped_keys)
        if len(ends := _ids(keys)) == 2:
            stored.append((ends[0], ends[1]))
        else:
            touched.update(_ids(fact_ids))
    return sorted(touched), dropped, stored


def _gone(session: Session, dropped: list[int]) -> list[int]:
    """Those of these keys that are not there any more."""
    there = (
        set(session.scalars(select(FactKey.id).where(FactKey.id == func.any(dropped)))) if dropped else set()
    )
    return [key_id for key_id in dropped if key_id not in there]


def _bounded(session: Session, stored: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """These ranges of key ids, as far as there are any: one that was made up could go on for ever."""
    last_key = (session.scalar(select(func.max(FactKey.id))) or 0) if stored else 0
    return [(first, min(last, last_key)) for first, last in stored]


def _ids(said: Any) -> list[int]:
    """The ids in what a change says; a row that somebody put into the log may say anything."""
    return [one for one in said if type(one) is int and 0 < one <= MAX_ID] if isinstance(said, list) else []


def build(dim: int, spec: str, ids: Ids, keys: Vectors) -> KeyIndex:
    """An index of all these keys. A keyset that shrank below what its spec is trained on is searched exactly."""
    index = KeyIndex(dim, spec)
    if len(ids):
        try:
            index.add(ids, keys)
        except IndexInvariant:
            if spec == FLAT_SPEC:
                raise
            index = KeyIndex(dim, FLAT_SPEC)
            index.add(ids, keys)
    return index


def rebuild(session: Session, keyset: AnyKeyset, on_keys: OnKeys | None = None) -> Replica:
    """The replica from the database alone, a batch of keys at a time.

    `on_keys` hears (keys added, keys there are) from the moment on when the index is trained.
    """
    head = audit.head_seq(session)  # before the keys, as in catch_up
    num_keys = keysets.num_indexed_keys(session, keyset.keyset_id)
    index = _trained(session, keyset, num_keys)
    report = on_keys or (lambda done, total: None)
    report(0, num_keys)
    for ids, keys in indexed_keys(session, keyset.keyset_id, keyset.dim):
        index.add(ids, keys)
        report(len(index), max(num_keys, len(index)))
    return Replica(keyset.keyset_id, keyset.checkpoint_id, keyset.dim, index, head)


def _trained(session: Session, keyset: AnyKeyset, num_keys: int) -> KeyIndex:
    """An empty index ready for all keys of the keyset. One that has too few keys for its spec is searched exactly."""
    spec = default_spec(num_keys, keyset.dim) if keyset.index_spec == AUTO_SPEC else keyset.index_spec
    index = KeyIndex(keyset.dim, spec)
    if index.train_min:
        sample = keysets.sample_keys(session, keyset.keyset_id, keyset.dim, index.train_size, num_keys)
        if len(sample) < index.train_min:
            return KeyIndex(keyset.dim, FLAT_SPEC)
        index.train(sample)
    return index


def open_replica(
    session: Session, keyset: AnyKeyset, directory: Path, on_keys: OnKeys | None = None
) -> Replica:
    """The replica from the keyset's snapshot where that is good, else rebuilt; caught up either way."""
    try:
        replica = load_replica(session, keyset, directory)
    except SnapshotRefused:
        replica = rebuild(session, keyset, on_keys)
    replica.catch_up(session)
    return replica


def load_replica(session: Session, keyset: AnyKeyset, directory: Path) -> Replica:
    """The replica as the keyset's snapshot has it, not caught up. Raises `SnapshotRefused` on any doubt."""
    directory = snapshots_of(session, directory)
    index, applied_seq = KeyIndex.load(directory, keyset_id=keyset.keyset_id, dim=keyset.dim)
    _require_same_history(session, directory, keyset.keyset_id, applied_seq)
    return Replica(keyset.keyset_id, keyset.checkpoint_id, keyset.dim, index, applied_seq)


def snapshots_of(session: Session, directory: Path) -> Path:
    """Where this database's snapshots lie: an index directory may serve several databases, one after the other."""
    return directory / audit.database_id(session)


def save(session: Session, replica: Replica, directory: Path) -> None:
    """Write the replica's snapshot, caught up, so that no process brings back what another has removed."""
    directory = snapshots_of(session, directory)
    with replica._follow:
        replica.index.save(directory, keyset_id=replica.keyset_id, applied_seq=replica.applied_seq)
        _history_file(directory, replica.keyset_id).write_text(
            json.dumps({"seq": replica.applied_seq, "hash": _hash_at(session, replica.applied_seq)})
        )
    keysets.note_snapshot(session, replica.keyset_id, replica.applied_seq)


def _require_same_history(session: Session, directory: Path, keyset_id: int, applied_seq: int) -> None:
    """Refuse a snapshot of a future that did not happen: the database may have been restored from a backup."""
    noted = None
    with suppress(OSError, ValueError):
        noted = json.loads(_history_file(directory, keyset_id).read_text())
    if noted != {"seq": applied_seq, "hash": _hash_at(session, applied_seq)}:
        raise SnapshotRefused(
            keyset_id=keyset_id, cause=f"its change {applied_seq} is not in this database's log"
        )


def _history_file(directory: Path, keyset_id: int) -> Path:
    return directory / f"keyset-{keyset_id}.history"


def _hash_at(session: Session, seq: int) -> str:
    return session.scalar(select(Change.hash).where(Change.seq == seq)) or audit.GENESIS
