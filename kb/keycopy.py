"""Keys into their keyset's partition, by binary COPY; ids come from the one sequence that all keysets share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from sqlalchemy.orm import Session

from kb.copying import copy_blocks, reserve
from kb.errors import InvalidKeys
from kb.keysets import STORED
from kb.tables import KEY_IDS

_ROWS = 2_000  # of one message to the server
_COPY_KEYS = b"COPY fact_key (keyset_id, id, fact_id, kind, key) FROM STDIN (FORMAT binary)"
_HEADER = b"PGCOPY\n\xff\r\n\x00" + bytes(8)
_TRAILER = b"\xff\xff"

Keys = npt.NDArray[Any]


def require_unit(keys_ND: Keys, dim: int, checkpoint_id: str) -> None:
    """Raise `InvalidKeys` unless these are unit vectors of width `dim`."""
    if keys_ND.ndim != 2 or keys_ND.shape[1] != dim:
        raise InvalidKeys(checkpoint_id, f"shape {keys_ND.shape}, not (n, {dim})")
    # Written so that NaN fails too.
    if not (np.abs(np.linalg.norm(keys_ND.astype(np.float32, copy=False), axis=1) - 1) < 0.01).all():
        raise InvalidKeys(checkpoint_id, "they are not unit vectors")


def copy_keys(session: Session, keyset_id: int, kind: str, fact_ids: Sequence[int], keys_ND: Keys) -> int:
    """Insert one key for each of these facts and give the first id; the others follow it. The log must be locked."""
    first = reserve(session, KEY_IDS, len(fact_ids))
    copy_blocks(session, _COPY_KEYS, _blocks(keyset_id, kind, first, np.asarray(fact_ids), keys_ND))
    return first


def _blocks(keyset_id: int, kind: str, first: int, fact_ids: Keys, keys_ND: Keys) -> Iterator[bytes]:
    """The rows as COPY takes them: all are of one width, so that a structured array is their very bytes."""
    fields: list[tuple[str, str, int]] = [  # name, type, width
        ("keyset_id", ">i8", 8),
        ("id", ">i8", 8),
        ("fact_id", ">i8", 8),
        ("kind", f"S{len(kind)}", len(kind)),
        ("key", f"V{keys_ND.shape[1] * STORED.itemsize}", keys_ND.shape[1] * STORED.itemsize),
    ]
    layout = np.dtype(
        [("count", ">i2"), *((p, t) for n, t, _ in fields for p, t in ((f"{n}#", ">i4"), (n, t)))]
    )
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
