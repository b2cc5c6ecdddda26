"""Writes keys into their keyset's partition and reads them from it, by binary COPY.

All rows have one width, so the bytes of a structured array are the rows themselves: no row is handled in Python. Ids
come from one sequence that all keysets share.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import numpy as np
import numpy.typing as npt
from psycopg import sql
from sqlalchemy import select, text
from sqlalchemy.orm import Session

from colmlm.kb.errors import FactNotFound, InvalidValue, refusals
from colmlm.kb.facts.records import Edit
from colmlm.kb.keys.keysets import STORED, Ids, Vectors
from colmlm.kb.log import audit
from colmlm.kb.store.database import checked_at_once, connection_of, copy_blocks, id_array, reserve_ids
from colmlm.kb.tables import ADOPTED, KEY_IDS, CheckpointRow, KeysetRow, key_kinds

_ROWS = 2_000  # rows in one message to the server
_BATCH = 20_000  # keys read at once
_COPY_KEYS = b"COPY fact_key (keyset_id, id, fact_id, kind, key) FROM STDIN (FORMAT binary)"
_COPY_INDEXED = sql.SQL("""
COPY (
    SELECT {columns} FROM fact_key k
    WHERE k.keyset_id = {keyset_id}
      AND (EXISTS (SELECT FROM fact_version v WHERE v.fact_id = k.fact_id AND v.to_seq IS NULL)
           OR EXISTS (SELECT FROM tombstone t WHERE t.fact_id = k.fact_id))
    ORDER BY k.id
) TO STDOUT (FORMAT binary)
""")
_DROP = text("""
DELETE FROM fact_key
WHERE keyset_id = :keyset_id AND kind = :kind AND fact_id = ANY(CAST(:fact_ids AS bigint[])) RETURNING id
""")
_HEADER = b"PGCOPY\n\xff\r\n\x00" + bytes(8)
_TRAILER = b"\xff\xff"

Keys = npt.NDArray[Any]


def require_unit(keys_ND: Keys, dim: int, checkpoint_id: str) -> None:
    """Raise `InvalidKeys` unless these are unit vectors of width `dim`."""
    if keys_ND.ndim != 2 or keys_ND.shape[1] != dim:
        raise refusals.invalid_keys(checkpoint_id, f"shape {keys_ND.shape}, not (n, {dim})")
    # No array of all squares is made, which would take longer than summing them. NaN fails the comparison, too.
    keys = keys_ND.astype(np.float32, copy=False)
    if not (np.abs(np.sqrt(np.einsum("nd,nd->n", keys, keys)) - 1) < 0.01).all():
        raise refusals.invalid_keys(checkpoint_id, "they are not unit vectors")


def copy_keys(session: Session, keyset_id: int, kind: str, fact_ids: Sequence[int], keys_ND: Keys) -> int:
    """Insert one key for each of these facts and give the first id; the others follow it. The log must be locked."""
    first = reserve_ids(session, KEY_IDS, len(fact_ids))
    copy_blocks(session, _COPY_KEYS, _blocks(keyset_id, kind, first, np.asarray(fact_ids), keys_ND))
    return first


def drop_approximate_keys(session: Session, keyset_id: int, fact_ids: Sequence[int]) -> dict[str, list[int]]:
    """Drop these facts' keys that a release gave; give the dropped ids as a field for the change's payload, or {}."""
    found = {"keyset_id": keyset_id, "kind": ADOPTED, "fact_ids": id_array(fact_ids)}
    dropped = sorted(session.scalars(_DROP, found))
    return {"dropped_keys": dropped} if dropped else {}


def _blocks(keyset_id: int, kind: str, first: int, fact_ids: Keys, keys_ND: Keys) -> Iterator[bytes]:
    """Yield the rows of these keys in the binary form of COPY, a block at a time."""
    fields: list[tuple[str, str, int]] = [  # name, type, width
        ("keyset_id", ">i8", 8),
        ("id", ">i8", 8),
        ("fact_id", ">i8", 8),
        ("kind", f"S{len(kind)}", len(kind)),
        ("key", f"V{keys_ND.shape[1] * STORED.itemsize}", keys_ND.shape[1] * STORED.itemsize),
    ]
    layout = _layout(fields)
    yield _HEADER
    for start in range(0, len(fact_ids), _ROWS):
        chunk = slice(start, start + _ROWS)
        rows = np.zeros(len(fact_ids[chunk]), layout)
        rows["count"] = len(fields)
        for name, _, width in fields:
            rows[f"{name}#"] = width
        rows["keyset_id"], rows["kind"], rows["fact_id"] = keyset_id, kind.encode(), fact_ids[chunk]
        rows["id"] = np.arange(first + start, first + start + len(rows))
        rows["key"] = np.ascontiguousarray(keys_ND[chunk], STORED).view(layout["key"]).ravel()
        yield rows.tobytes()
    yield _TRAILER


def indexed_keys(session: Session, keyset_id: int, dim: int) -> Iterator[tuple[Ids, Vectors]]:
    """Read the ids [n] and keys [n, d] that an index holds, those of live facts and of tombstones, by id, in batches.

    The session's connection is in use until the last batch.
    """
    width = dim * STORED.itemsize
    layout = _layout([("id", ">i8", 8), ("key", f"V{width}", width)])
    with closing(_read_indexed_keys(session, keyset_id, ("id", "key"), layout)) as batches:
        for rows in batches:
            keys = np.ascontiguousarray(rows["key"]).view(STORED).reshape(-1, dim)
            yield rows["id"].astype(np.int64), keys.astype(np.float32)


def indexed_ids(session: Session, keyset_id: int) -> Ids:
    """Read the ids of the keys that an index holds, ascending, at eight bytes each. A row in Python takes a hundred."""
    batches = _read_indexed_keys(session, keyset_id, ("id",), _layout([("id", ">i8", 8)]))
    return np.concatenate([np.empty(0, np.int64), *(rows["id"].astype(np.int64) for rows in batches)])


def _read_indexed_keys(
    session: Session, keyset_id: int, columns: Sequence[str], layout: np.dtype[Any]
) -> Generator[Keys]:
    """Read these columns of the keys that an index holds, in batches of rows of this layout."""
    statement = _COPY_INDEXED.format(
        columns=sql.SQL(", ").join(sql.Identifier("k", column) for column in columns),
        keyset_id=sql.Literal(keyset_id),
    )
    with (
        connection_of(session).cursor() as cursor,
        cursor.copy(statement) as copy,
        closing(_read_ahead(_whole_rows(copy, layout.itemsize, _BATCH))) as batches,
    ):
        for data in batches:
            yield np.frombuffer(data, layout)


def _read_ahead(batches: Iterator[bytes]) -> Generator[bytes]:
    """Yield the batches of an iterator, and let it make the next one in a thread while the caller uses the last."""
    with ThreadPoolExecutor(1, "keys-ahead") as reader:
        coming = reader.submit(next, batches, None)
        while (batch := coming.result()) is not None:
            coming = reader.submit(next, batches, None)
            yield batch


def _whole_rows(copy: Iterable[Any], size: int, batch: int) -> Iterator[bytes]:
    """Cut what COPY sends, without header and trailer, into pieces of at most `batch` rows of this size."""
    held = bytearray()
    start = len(_HEADER)
    for block in copy:
        held += block
        if len(held) - start >= batch * size:
            yield bytes(held[start : start + batch * size])
            del held[: start + batch * size]
            start = 0
    if rows := (len(held) - start) // size:
        yield bytes(held[start : start + rows * size])


def _layout(fields: list[tuple[str, str, int]]) -> np.dtype[Any]:
    """Give the layout of a row of binary COPY: the number of fields, then each field's width and bytes."""
    return np.dtype(
        [("count", ">i2"), *((p, t) for n, t, _ in fields for p, t in ((f"{n}#", ">i4"), (n, t)))]
    )


# Stores keys in bulk that were computed elsewhere.

_MOST_NAMED = 1000


def store_keys(
    session: Session, keyset_id: int, fact_ids: Keys, keys_ND: Keys, kind: str, *, actor: str, reason: str
) -> Edit:
    """Store these keys in one change, all or none; see `Keysets.store_keys`. Does not commit."""
    if kind not in key_kinds:
        raise InvalidValue("kind", f"{kind!r} is not one of {', '.join(key_kinds)}")
    if fact_ids.ndim != 1 or fact_ids.dtype.kind not in "iu":
        raise InvalidValue("fact ids", f"they are {fact_ids.dtype}{fact_ids.shape}, not integers [n]")
    pending = audit.begin_change(session, actor, reason)
    checkpoint_id, dim = _checkpoint_and_width(session, keyset_id)
    require_unit(keys_ND, dim, checkpoint_id)
    asked = fact_ids.tolist()
    if kind != "alias" and (fault := _already_keyed(session, keyset_id, asked, kind)):
        raise refusals.invalid_keys(checkpoint_id, fault)
    _lock_live(session, asked)
    renewed = drop_approximate_keys(session, keyset_id, asked) if kind == "context" else {}
    with checked_at_once(session, len(asked)):  # the facts are locked, as a check of each key would lock them
        first = copy_keys(session, keyset_id, kind, asked, keys_ND)
    # The range of key ids tells indexes what to fetch, and history when keys were added, without a million fact ids.
    payload = {"keyset": keyset_id, "keys": [first, first + len(asked) - 1], **renewed}
    seq = audit.append_change(session, pending, "key", num_facts=len(asked), payload=payload)
    return Edit(seq, "key", ())


def _checkpoint_and_width(session: Session, keyset_id: int) -> tuple[str, int]:
    """Give the id of the keyset's checkpoint and the width of its keys. Raises `InvalidKeys` if it is retired."""
    statement = select(KeysetRow.state, CheckpointRow.id, CheckpointRow.dim).where(KeysetRow.id == keyset_id)
    found = session.execute(
        statement.join(CheckpointRow, CheckpointRow.id == KeysetRow.checkpoint_id)
    ).one_or_none()
    if found is None:
        raise refusals.keyset_not_found(keyset_id)
    if found.state == "retired":
        raise refusals.invalid_keys(found.id, f"its keyset {keyset_id} is retired")
    return found.id, found.dim


def _already_keyed(session: Session, keyset_id: int, fact_ids: list[int], kind: str) -> str | None:
    """Describe in a sentence which of these facts would get a second key of this kind; None where none would."""
    if len(set(fact_ids)) < len(fact_ids):
        return f"a fact is there twice, and has one {kind} key"
    sought = {"keyset_id": keyset_id, "kind": kind, "fact_ids": id_array(fact_ids), "most": _MOST_NAMED}
    keyed = session.scalars(_KEYED, sought).all()
    if not keyed:
        return None
    more = " and more" if len(keyed) > 10 else ""
    return f"there already is a key of the kind {kind!r} for fact {', '.join(map(str, keyed[:10]))}{more}"


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
    """Lock the facts against removal until this transaction ends. Raises where one is neither live nor a tombstone.

    Tombstones have keys, so that queries near them abstain.
    """
    kept = connection_of(session).execute(_LOCK_KEPT, (id_array(fact_ids),)).fetchone()
    if kept == (len(set(fact_ids)),):
        return
    rows = session.execute(_NOT_KEPT, {"fact_ids": id_array(fact_ids), "most": _MOST_NAMED}).all()
    if missing := [row.id for row in rows if not row.is_there]:
        raise FactNotFound(missing)
    raise refusals.fact_deleted([row.id for row in rows])
