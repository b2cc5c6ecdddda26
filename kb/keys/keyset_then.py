"""Finds which keyset answered as of a change of the log, with its threshold and keys of that time.

All of it is read from the log, so that no later edit alters what is reported of the past. Ids of keys come from one
sequence that is only drawn from under the log's lock, so they grow with the changes that stored them: the keys of a
time are those whose ids are smaller than every id stored since.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import BigInteger, Select, cast, select, text
from sqlalchemy.orm import Session

from colmlm.kb.errors import refusals
from colmlm.kb.facts.edits import MAX_ID
from colmlm.kb.keys import keysets
from colmlm.kb.keys.records import KeysetHead
from colmlm.kb.tables import ChangeRow

_OF_KEYSET = cast(ChangeRow.payload["keyset"].astext, BigInteger)

# Changes written before the log recorded the ids of keys stored one key for each fact they name. So where n such
# changes after :seq name a fact, its last n keys were stored after :seq.
_LATER = text("""
SELECT numbered.id FROM (
    SELECT k.id, row_number() OVER (PARTITION BY k.fact_id ORDER BY k.id DESC) AS nth, since.num_keys
    FROM (
        SELECT fact_id, count(*) AS num_keys FROM change c CROSS JOIN unnest(c.fact_ids) AS fact_id
        WHERE c.kind = 'key' AND c.seq > :seq AND c.seq < :told AND c.payload -> 'keys' IS NULL
          AND CAST(c.payload ->> 'keyset' AS bigint) = :keyset_id
        GROUP BY fact_id
    ) AS since
    JOIN fact_key k ON k.keyset_id = :keyset_id AND k.fact_id = since.fact_id AND k.id < :end
) AS numbered WHERE numbered.nth <= numbered.num_keys
""")


@dataclass(frozen=True, slots=True)
class KeysetThen:
    """A keyset as of a change: its keys are those with ids below `end`, except the ids in `later`."""

    keyset: KeysetHead
    threshold: float
    end: int
    later: tuple[int, ...]


def keyset_then(session: Session, checkpoint_id: str, seq: int) -> KeysetThen:
    """Find the keyset that answered queries of this checkpoint as of change `seq`.

    Raises `NotAnsweredThen` where no keyset was active, or one of another checkpoint, or one that was retired since.
    """
    keyset = _active(session, checkpoint_id, seq)
    told, end = _stored_since(session, seq)
    of = {"keyset_id": keyset.keyset_id, "seq": seq, "told": told, "end": end}
    later = tuple(session.scalars(_LATER, of))
    return KeysetThen(keyset, _threshold(session, keyset, seq), end, later)


def _active(session: Session, checkpoint_id: str, seq: int) -> KeysetHead:
    activated = select(_OF_KEYSET).where(ChangeRow.kind == "activate", ChangeRow.seq <= seq)
    keyset_id: int | None = session.scalar(_last(activated))
    if keyset_id is None:
        raise refusals.not_answered_then(seq, "no keyset was active yet, so that no lookup was answered")
    keyset = keysets.keyset_head(session, keyset_id)
    if keyset.checkpoint_id != checkpoint_id:
        raise refusals.not_answered_then(
            seq,
            f"keyset {keyset_id} of checkpoint {keyset.checkpoint_id!r} answered, and these queries are of "
            f"{checkpoint_id!r}: their vectors do not compare. Ask with that checkpoint",
        )
    if keyset.state == "retired":
        raise refusals.not_answered_then(
            seq,
            f"keyset {keyset_id} answered, whose keys were dropped when it was retired, so that what it found is not "
            "known any more. `colmlm log diff` still tells which facts there were",
        )
    return keyset


def _threshold(session: Session, keyset: KeysetHead, seq: int) -> float:
    """Give the last threshold set by then; where none was, the one that a keyset begins with."""
    changed = select(ChangeRow.payload["threshold"].astext).where(
        ChangeRow.kind == "threshold",
        _OF_KEYSET == keyset.keyset_id,  # noqa: SIM300 - a column
    )
    then: str | None = session.scalar(_last(changed.where(ChangeRow.seq <= seq)))
    if then is not None:
        return float(then)
    was_set_since = session.scalar(_last(changed)) is not None
    return keysets.DEFAULT_THRESHOLD if was_set_since else keyset.threshold


def _stored_since(session: Session, seq: int) -> tuple[int, int]:
    """Find the first later change that records which keys it stored, and give it with the first id of these."""
    keys = ChangeRow.payload["keys"]
    statement = select(ChangeRow.seq, cast(keys[0].astext, BigInteger)).where(
        ChangeRow.kind == "key", ChangeRow.seq > seq, keys.is_not(None)
    )
    row = session.execute(statement.order_by(ChangeRow.seq).limit(1)).one_or_none()
    return (row[0], row[1]) if row else (MAX_ID, MAX_ID)


def _last(statement: Select[Any]) -> Select[Any]:
    return statement.order_by(ChangeRow.seq.desc()).limit(1)
