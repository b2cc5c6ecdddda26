"""Compares the snapshot on disk with the database, by counts."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.orm import Session

from colmlm.kb.errors import NoActiveKeyset
from colmlm.kb.keys import keysets
from colmlm.kb.log import audit
from colmlm.kb.lookup.replica import snapshots_of
from colmlm.kb.tables import ChangeRow


@dataclass(frozen=True, slots=True)
class SnapshotStanding:
    """A snapshot of `num_keys` keys as of change `applied_seq`, where the log ends with `head_seq`.

    `num_wanted` is how many keys it should hold; None where later changes touched keys, so that it is unknown.
    """

    num_keys: int
    num_bytes: int
    applied_seq: int
    head_seq: int
    num_wanted: int | None


def snapshot_standing(session: Session, index_directory: Path) -> SnapshotStanding | None:
    """Describes the active keyset's snapshot; None where there is none that can be read. Raises `NoActiveKeyset`."""
    if (keyset_id := keysets.active_keyset_id(session)) is None:
        raise NoActiveKeyset
    directory, head = snapshots_of(session, index_directory), audit.head_seq(session)
    try:
        manifest = json.loads((directory / f"keyset-{keyset_id}.json").read_text())
        size = (directory / manifest["file"]).stat().st_size
        held, applied_seq = int(manifest["count"]), int(manifest["applied_seq"])
    except (OSError, ValueError, LookupError, TypeError):
        return None
    touched = (
        select(ChangeRow.seq)
        .where(ChangeRow.seq > applied_seq, ChangeRow.kind.not_in(audit.NO_KEYS))
        .limit(1)
    )
    is_behind = session.scalar(touched) is not None
    wanted = None if is_behind else keysets.num_indexed_keys(session, keyset_id)
    return SnapshotStanding(held, size, applied_seq, head, wanted)
