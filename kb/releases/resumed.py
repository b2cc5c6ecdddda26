"""Resumed: imports that the program's release before began. It knew a store by the order of its entries alone.

So another edition of the same entries would pass for it. What is stored of such an import is compared with the store
before it goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

import numpy as np
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from colmlm.kb.corpus.release import Examined, Release, ReleasedFact
from colmlm.kb.errors import InvalidRelease
from colmlm.kb.facts.redaction import MARK
from colmlm.kb.keys.keysets import decode
from colmlm.kb.lookup.sealed import Ids, SealedIndex
from colmlm.kb.releases.facts import PIECE, StoredPieces
from colmlm.kb.releases.keys import BLOCK
from colmlm.kb.tables import ADOPTED, DocumentRow, FactKeyRow, FactRow, FactVersionRow, KeysetRow

_REMEDY = "Import into another corpus: --corpus NAME"
_SAME = 0.002  # by how much numbers of a key may differ once they were stored with half the bits


def begun(session: Session, release: Release, examined: Examined, corpus: str) -> StoredPieces | None:
    """Gives what the release before stored of this store; None where nothing, or where this one began the import.

    Raises `InvalidRelease` where these are other facts.
    """
    stored = StoredPieces.read(session, examined.order, corpus)
    if not stored.upto or StoredPieces.read(session, examined.digest, corpus).upto:
        return None
    for n, piece in enumerate(release.pieces(PIECE)):
        numbers = np.arange(n * PIECE, min(n * PIECE + len(piece), stored.upto), dtype=np.int64)
        if not len(numbers):
            break
        _require_same(session, corpus, piece[: len(numbers)], stored.fact_ids(numbers))
    return stored


def _require_same(session: Session, corpus: str, facts: Sequence[ReleasedFact], fact_ids: Ids) -> None:
    """Raises unless these facts are stored as they are; but for those that were erased, and what was redacted."""
    statement = (
        select(FactRow.id, FactVersionRow.value, DocumentRow.external_id, FactRow.ordinal)
        .join(FactVersionRow, FactVersionRow.fact_id == FactRow.id)
        .join(DocumentRow, DocumentRow.id == FactRow.document_id)
        .where(FactRow.id == func.any(fact_ids.tolist()), FactVersionRow.version == 1)
    )
    said: dict[int, tuple[Any, ...]] = {row[0]: tuple(row[1:]) for row in session.execute(statement)}
    for fact_id, fact in zip(fact_ids.tolist(), facts, strict=True):
        value, *place = said.get(fact_id, (MARK,))
        if MARK not in value and (value, *place) != (fact.value, fact.sample_id, fact.fact_idx):
            cause = f"in corpus {corpus!r} entry {fact.entry_id} is stored from another edition"
            raise InvalidRelease(cause, _REMEDY)


def require_same_keys(session: Session, stored: StoredPieces, index: SealedIndex, checkpoint_id: str) -> None:
    """Raises where the checkpoint's keyset has other keys of these facts than the index gives, by its first block."""
    numbers, keys_ND = next(islice(index.blocks(BLOCK), 1))
    there = numbers < stored.upto
    fact_ids, ours_ND = stored.fact_ids(numbers[there]), keys_ND[there]
    statement = (
        select(FactKeyRow.fact_id, FactKeyRow.key)
        .join(KeysetRow, KeysetRow.id == FactKeyRow.keyset_id)
        .where(KeysetRow.checkpoint_id == checkpoint_id, KeysetRow.state != "retired")
        .where(FactKeyRow.kind == ADOPTED, FactKeyRow.fact_id == func.any(fact_ids.tolist()))
    )
    kept = {row.fact_id: row.key for row in session.execute(statement)}
    rows = [row for row, fact_id in enumerate(fact_ids.tolist()) if fact_id in kept]
    theirs_ND = decode([kept[fact_id] for fact_id in fact_ids[rows].tolist()], index.dim)
    if not np.allclose(theirs_ND, ours_ND[rows], atol=_SAME):
        raise InvalidRelease("the keys that are stored of these facts are from another index", _REMEDY)
