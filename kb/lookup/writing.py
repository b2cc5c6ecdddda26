"""Writing: brings a collection elsewhere up to the log, fills it, and mends it, one process at a time (`turns`).

Whoever writes reads the mark first and goes on from there, so a writer that dies leaves nothing that the next one does
not do again. Its turn ends with its connection to the database, without which it reads no key that it could write.
"""

from __future__ import annotations

import uuid

import numpy as np
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from colmlm.kb.errors import CandidatesRefused, CandidatesUnavailable
from colmlm.kb.keys import keysets
from colmlm.kb.keys.keycopy import indexed_ids, indexed_keys
from colmlm.kb.log import audit
from colmlm.kb.lookup.collection import Collection, CollectionMark
from colmlm.kb.lookup.in_process import AnyKeyset, OnKeys
from colmlm.kb.lookup.remote import Remote
from colmlm.kb.lookup.specs import collection_of
from colmlm.kb.lookup.touched import Keys, renewed, touched
from colmlm.kb.lookup.turns import is_mine, wait_until_mine
from colmlm.kb.store.database import connection_of
from colmlm.kb.store.milvus_address import MilvusAddress
from colmlm.kb.tables import FactKeyRow

_AT_ONCE = 2_000  # keys read and written together


def collection(session: Session, keyset: AnyKeyset, address: MilvusAddress) -> Collection | None:
    """Gives the collection that this keyset names, not yet asked for; None where its index is Faiss's."""
    if (name := collection_of(keyset.index_spec)) is None:
        return None
    owner = f"marks_of_base_{audit.database_id(session)}_keyset_{keyset.keyset_id}"
    return Collection(address, name, keyset.dim, owner)


def attach(session: Session, there: Collection) -> Remote:
    """Opens what is in a collection as of its mark.

    Raises `CandidatesRefused` where that is not this base's or names a change that the log does not have.
    """
    if not there.exists():
        raise CandidatesRefused(there.where, "it does not exist")
    mark = _trusted(session, there)
    return Remote(there, mark, age=_now(session) - mark.at)


def _trusted(session: Session, there: Collection) -> CollectionMark:
    mark = there.mark(strong=True)
    if mark is None:
        raise CandidatesRefused(there.where, "it was never filled to the end")
    if mark.log_hash != audit.hash_at(session, mark.seq):
        raise CandidatesRefused(there.where, f"its change {mark.seq} is not in this database's log")
    return mark


def hand_on(session: Session, keyset_id: int, there: Collection) -> bool:
    """Writes what the log has since the mark, and a new mark; says False while another process does that."""
    if not is_mine(session, keyset_id):
        return False
    mark, connection = _trusted(session, there), connection_of(session)
    found = touched(connection, keyset_id, mark.seq)
    has_changed = False
    for keys in renewed(connection, keyset_id, found):
        has_changed |= _renew(there, keys)
    if has_changed:
        _set_mark(session, there, found.head, mark.fill)
    return True


def _renew(there: Collection, keys: Keys) -> bool:
    """Makes the collection hold, of these keys, exactly those given; says whether there was anything to do."""
    live = [key_id for key_id, key in keys.items() if key is not None]
    present = there.present(list(keys))
    there.delete(sorted(present - set(live)))
    if new := [key_id for key_id in live if key_id not in present]:
        vectors = keysets.decode([key for key_id in new if (key := keys[key_id]) is not None], there.dim)
        there.insert(np.array(new, dtype=np.int64), vectors)
        _confirm(there, new)
    return bool(keys)


def _confirm(there: Collection, ids: list[int]) -> None:
    if lacking := set(ids) - there.present(ids):
        raise CandidatesUnavailable(there.where, f"{len(lacking)} keys that it took are not in it")


def write_all(
    session: Session, keyset: AnyKeyset, there: Collection, on_keys: OnKeys | None = None
) -> Remote:
    """Makes the collection hold exactly the keys of the database: mends it where it can be trusted, else fills it anew.

    While it is filled anew, lookups of other processes are refused.
    """
    wait_until_mine(session, keyset.keyset_id)
    head = audit.head_seq(session)  # read before the keys, as in catching up
    try:
        mark = None
        if there.exists():
            there.load()
            mark = _trusted(session, there)
        mends = mark is not None and _mended(session, keyset, there)
    except CandidatesRefused:
        there.exists()  # refused again where it is another's
        mark, mends = None, False
    if not mends:
        mark = None
        _fill(session, keyset, there, on_keys or (lambda done, total: None))
    if mark is None or mark.seq != head:
        _set_mark(session, there, head, uuid.uuid4().hex if mark is None else mark.fill)
    return attach(session, there)


def _set_mark(session: Session, there: Collection, seq: int, fill: str) -> None:
    there.set_mark(CollectionMark(seq, fill, audit.hash_at(session, seq), _now(session)))


def _now(session: Session) -> float:
    return float(session.execute(select(func.extract("epoch", func.clock_timestamp()))).scalar_one())


def compact(session: Session, keyset_id: int, there: Collection, seconds: float) -> bool:
    """Brings the collection up to the log and has it rewrite what holds deleted keys; says whether it did in time."""
    wait_until_mine(session, keyset_id)
    hand_on(session, keyset_id, there)
    return there.compact(seconds)


def _mended(session: Session, keyset: AnyKeyset, there: Collection) -> bool:
    """Puts in what is missing and takes out what is left over; says False where keys are stored more than once."""
    found = there.ids()
    if there.count(strong=True) != len(found):
        return False
    wanted = indexed_ids(session, keyset.keyset_id)
    there.delete(np.setdiff1d(found, wanted, assume_unique=True).tolist())
    missing = np.setdiff1d(wanted, found, assume_unique=True).tolist()
    for start in range(0, len(missing), _AT_ONCE):
        some = missing[start : start + _AT_ONCE]
        rows = session.execute(
            select(FactKeyRow.id, FactKeyRow.key).where(
                FactKeyRow.keyset_id == keyset.keyset_id, FactKeyRow.id == func.any(some)
            )
        ).all()
        ids = np.array([row.id for row in rows], dtype=np.int64)
        there.insert(ids, keysets.decode([row.key for row in rows], keyset.dim))
    _confirm(there, missing)
    return True


def _fill(session: Session, keyset: AnyKeyset, there: Collection, on_keys: OnKeys) -> None:
    done, total = 0, keysets.num_indexed_keys(session, keyset.keyset_id)
    there.create()
    on_keys(0, total)
    for ids, keys in indexed_keys(session, keyset.keyset_id, keyset.dim):
        there.insert(ids, keys)
        done += len(ids)
        on_keys(done, max(done, total))
    there.flush()
    if (found := there.count(strong=True)) != done:
        raise CandidatesUnavailable(there.where, f"{found} keys are in it, of {done} that it took")
