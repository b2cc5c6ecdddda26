"""Stores keys in bulk that were computed elsewhere."""

from __future__ import annotations

from sqlalchemy import select, text
from sqlalchemy.orm import Session

from colmlm.kb.errors import (
    FactDeleted,
    FactNotFound,
    InvalidKeys,
    InvalidValue,
    KeysetNotFound,
)
from colmlm.kb.facts.records import Edit
from colmlm.kb.keys.keycopy import Keys, copy_keys, drop_adopted, require_unit
from colmlm.kb.log import audit
from colmlm.kb.store.database import connection_of, id_array
from colmlm.kb.store.references import checked_at_once
from colmlm.kb.tables import CheckpointRow, KeysetRow, key_kinds

_MOST_NAMED = 1000


def store_keys(
    session: Session, keyset_id: int, fact_ids: Keys, keys_ND: Keys, kind: str, *, actor: str, reason: str
) -> Edit:
    """Stores these keys in one change, all or none; see `Keysets.store_keys`. Does not commit."""
    if kind not in key_kinds:
        raise InvalidValue("kind", f"{kind!r} is none of {', '.join(key_kinds)}")
    if fact_ids.ndim != 1 or fact_ids.dtype.kind not in "iu":
        raise InvalidValue("fact ids", f"they are {fact_ids.dtype}{fact_ids.shape}, not integers [n]")
    pending = audit.begin(session, actor, reason)
    checkpoint_id, dim = _maker(session, keyset_id)
    require_unit(keys_ND, dim, checkpoint_id)
    asked = fact_ids.tolist()
    if kind != "alias" and (fault := _already_keyed(session, keyset_id, asked, kind)):
        raise InvalidKeys(checkpoint_id, fault)
    _lock_live(session, asked)
    renewed = drop_adopted(session, keyset_id, asked) if kind == "context" else {}
    with checked_at_once(session, len(asked)):  # the facts are locked, as a check of each key would lock them
        first = copy_keys(session, keyset_id, kind, asked, keys_ND)
    # The range of key ids tells indexes what to fetch, and history when keys were added, without a million fact ids.
    payload = {"keyset": keyset_id, "keys": [first, first + len(asked) - 1], **renewed}
    seq = audit.append(session, pending, "key", num_facts=len(asked), payload=payload)
    return Edit(seq, "key", ())


def _maker(session: Session, keyset_id: int) -> tuple[str, int]:
    """Gives the checkpoint of the keyset and the dimension of its keys."""
    statement = select(KeysetRow.state, CheckpointRow.id, CheckpointRow.dim).where(KeysetRow.id == keyset_id)
    found = session.execute(
        statement.join(CheckpointRow, CheckpointRow.id == KeysetRow.checkpoint_id)
    ).one_or_none()
    if found is None:
        raise KeysetNotFound(keyset_id)
    if found.state == "retired":
        raise InvalidKeys(found.id, f"its keyset {keyset_id} is retired")
    return found.id, found.dim


def _already_keyed(session: Session, keyset_id: int, fact_ids: list[int], kind: str) -> str | None:
    """Says which of these facts would get a second key of this kind; None where none would."""
    if len(set(fact_ids)) < len(fact_ids):
        return f"a fact is there twice, and has one {kind} key"
    sought = {"keyset_id": keyset_id, "kind": kind, "fact_ids": id_array(fact_ids), "most": _MOST_NAMED}
    keyed = session.scalars(_KEYED, sought).all()
    if not keyed:
        return None
    more = " and more" if len(keyed) > 10 else ""
    return f"a {kind} key is there already of fact {', '.join(map(str, keyed[:10]))}{more}"


_KEYED = text("""
SELECT fact_id FROM fact_key
WHERE keyset_id = :keyset_id AND kind = :kind AND fact_id = ANY(CAST(:fact_ids AS bigint[]))
ORDER BY fact_id LIMIT :most
""")
_LOCK_KEPT = b"""
SELECT count(*) FROM (
    SELECT FROM fact f WHERE f.id = ANY(%s::bigint[]) AND (
        EXISTS (SELECT FROM fact_version v WHERE v.fact_id = f.id AND v.to_seq IS NULL)
        OR EXISTS (SELECT FROM tombstone t WHERE t.fact_id = f.id)
    ) FOR KEY SHARE OF f
) AS kept
"""
_NOT_KEPT = text("""
SELECT asked.id, f.id IS NOT NULL AS is_there
FROM unnest(CAST(:fact_ids AS bigint[])) AS asked (id)
LEFT JOIN fact f ON f.id = asked.id
LEFT JOIN fact_version v ON v.fact_id = asked.id AND v.to_seq IS NULL
LEFT JOIN tombstone t ON t.fact_id = asked.id
WHERE v.fact_id IS NULL AND t.fact_id IS NULL ORDER BY asked.id LIMIT :most
""")


def _lock_live(session: Session, fact_ids: list[int]) -> None:
    """Locks the facts against removal until this transaction ends. Raises where one is neither live nor a tombstone.

    Tombstones have keys, so that queries near them abstain.
    """
    kept = connection_of(session).execute(_LOCK_KEPT, (id_array(fact_ids),)).fetchone()
    if kept == (len(set(fact_ids)),):
        return
    rows = session.execute(_NOT_KEPT, {"fact_ids": id_array(fact_ids), "most": _MOST_NAMED}).all()
    if missing := [row.id for row in rows if not row.is_there]:
        raise FactNotFound(missing)
    raise FactDeleted([row.id for row in rows])
