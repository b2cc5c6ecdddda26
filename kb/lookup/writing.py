"""Writing: brings a collection elsewhere up to the log, fills it, and mends it, one process at a time (`turns`).

Whoever writes reads the mark first and goes on from there, so a writer that dies leaves nothing that the next one does
not do again. Its turn ends with its connection to the database, so it asks for that before each call (`writer`).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import numpy as np
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from colmlm.kb.errors import CandidatesRefused, CandidatesUnavailable
from colmlm.kb.keys import keysets
from colmlm.kb.keys.keycopy import indexed_ids
from colmlm.kb.keys.keysets import Ids
from colmlm.kb.keys.records import KeysetHead
from colmlm.kb.log import audit
from colmlm.kb.lookup.collection import AT_ONCE, Collection, CollectionMark
from colmlm.kb.lookup.in_process import OnKeys
from colmlm.kb.lookup.remote import Remote
from colmlm.kb.lookup.specs import collection_of
from colmlm.kb.lookup.touched import Keys, renewed, touched
from colmlm.kb.lookup.turns import is_mine, wait_until_mine
from colmlm.kb.lookup.writer import CollectionWriter
from colmlm.kb.store.database import connection_of
from colmlm.kb.store.milvus_address import MilvusAddress
from colmlm.kb.tables import FactKeyRow


def collection(session: Session, keyset: KeysetHead, address: MilvusAddress) -> Collection | None:
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
    there, connection = there.patient(), connection_of(session)
    mark, writer = _trusted(session, there), CollectionWriter(session, there)
    found = touched(connection, keyset_id, mark.seq)
    has_changed = False
    for keys in renewed(connection, keyset_id, found):
        has_changed |= _renew(writer, keys)
    if has_changed:
        _set_mark(writer, found.head, mark.fill)
    return True


def _renew(writer: CollectionWriter, keys: Keys) -> bool:
    """Makes the collection hold, of these keys, exactly those given; says whether there was anything to do."""
    there = writer.there
    live = [key_id for key_id, key in keys.items() if key is not None]
    present = there.present(list(keys))
    writer.delete(sorted(present - set(live)))
    if new := [key_id for key_id in live if key_id not in present]:
        vectors = keysets.decode([key for key_id in new if (key := keys[key_id]) is not None], there.dim)
        writer.insert(np.array(new, dtype=np.int64), vectors)
        _confirm(there, new)
    return bool(keys)


def _confirm(there: Collection, ids: list[int]) -> None:
    if lacking := set(ids) - there.present(ids):
        raise CandidatesUnavailable(there.where, f"{len(lacking)} keys that it took are not in it")


def write_all(
    session: Session, keyset: KeysetHead, there: Collection, on_keys: OnKeys | None = None
) -> Remote:
    """Makes the collection hold exactly the keys of the database: mends it where it can be trusted, else fills it anew.

    While it is filled anew, lookups of other processes are refused.
    """
    wait_until_mine(session, keyset.keyset_id)
    head = audit.head_seq(session)  # read before the keys, as in catching up
    writer, mark, mends = CollectionWriter(session, there.patient()), None, False
    try:
        if there.exists():
            there.load()
            mark = _trusted(session, writer.there)
            mends = _mend(writer, keyset)
    except CandidatesRefused:
        there.exists()  # refused again where it is another's
    if not mends:
        _fill(writer, keyset, on_keys or (lambda done, total: None))
    # Anew also where nothing was written since: what was mended is seen by every search some seconds later.
    _set_mark(writer, head, mark.fill if mends and mark is not None else uuid.uuid4().hex)
    return attach(session, there)


def _set_mark(writer: CollectionWriter, seq: int, fill: str) -> None:
    session = writer.session
    writer.set_mark(CollectionMark(seq, fill, audit.hash_at(session, seq), _now(session)))


def _now(session: Session) -> float:
    return float(session.execute(select(func.extract("epoch", func.clock_timestamp()))).scalar_one())


def compact(session: Session, keyset_id: int, there: Collection, seconds: float) -> bool:
    """Brings the collection up to the log and has it rewrite what holds deleted keys; says whether it did in time.

    A writer that lost its connection in the midst may have put in what was erased since. So ids are compared before,
    and counted after. Raises `CandidatesRefused` where there are more then.
    """
    wait_until_mine(session, keyset_id)
    there = there.patient()
    hand_on(session, keyset_id, there)
    held = there.ids()
    wanted = indexed_ids(session, keyset_id)
    CollectionWriter(session, there).delete(np.setdiff1d(held, wanted, assume_unique=True).tolist())
    is_compacted = there.compact(seconds)
    if more := there.count(strong=True) - len(np.intersect1d(held, wanted, assume_unique=True)):
        raise CandidatesRefused(there.where, f"it holds {more} keys more than it should")
    return is_compacted


def is_filled(session: Session, there: Collection) -> bool:
    """Says whether the collection, which is there, was filled to the end by this base."""
    try:
        _trusted(session, there)
    except CandidatesRefused:
        return False
    return True


def _mend(writer: CollectionWriter, keyset: KeysetHead) -> bool:
    """Puts in what is missing and takes out what is left over; says False where keys are stored more than once."""
    there, session = writer.there, writer.session
    found = there.ids()
    if there.count(strong=True) != len(found):
        return False
    wanted = indexed_ids(session, keyset.keyset_id)
    writer.delete(np.setdiff1d(found, wanted, assume_unique=True).tolist())
    for ids in _put(writer, keyset, np.setdiff1d(wanted, found, assume_unique=True)):
        _confirm(there, ids)
    return True


def _put(writer: CollectionWriter, keyset: KeysetHead, wanted: Ids) -> Iterator[list[int]]:
    """Inserts these keys, and gives the ids of some after the other. Each are read just before they are written."""
    for start in range(0, len(wanted), AT_ONCE):
        rows = writer.session.execute(
            select(FactKeyRow.id, FactKeyRow.key).where(
                FactKeyRow.keyset_id == keyset.keyset_id,
                FactKeyRow.id == func.any(wanted[start : start + AT_ONCE].tolist()),
            )
        ).all()
        ids = [row.id for row in rows]
        writer.insert(np.array(ids, dtype=np.int64), keysets.decode([row.key for row in rows], keyset.dim))
        yield ids


def _fill(writer: CollectionWriter, keyset: KeysetHead, on_keys: OnKeys) -> None:
    there, wanted, done = writer.there, indexed_ids(writer.session, keyset.keyset_id), 0
    writer.create()
    on_keys(0, len(wanted))
    for ids in _put(writer, keyset, wanted):
        done += len(ids)
        on_keys(done, len(wanted))
    there.flush()
    if (found := there.count(strong=True)) != done:
        raise CandidatesUnavailable(there.where, f"{found} keys are in it, of {done} that it took")
