"""Adopts the keys of a release: as its index gives them back, and marked as approximate.

A block is one transaction with one change of the log, which says how much of the index was read by then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from sqlalchemy import BigInteger, cast, func, select, text
from sqlalchemy.orm import Session

from colmlm.kb.errors import refusals
from colmlm.kb.keys.keycopy import Keys, copy_keys
from colmlm.kb.log import audit
from colmlm.kb.store.database import checked_at_once, connection_of, id_array
from colmlm.kb.tables import ADOPTED, ChangeRow, KeysetRow

BLOCK = 20_000  # keys in one transaction

# Facts that were deleted since, or keyed otherwise, get none. The others are locked, as a check of each key would do.
_WANTING = b"""
SELECT f.id FROM fact f WHERE f.id = ANY(%s::bigint[])
  AND (f.deleted_seq IS NULL OR EXISTS (SELECT FROM tombstone t WHERE t.fact_id = f.id))
  AND NOT EXISTS (SELECT FROM fact_key k WHERE k.keyset_id = %s AND k.fact_id = f.id OFFSET 0)
FOR KEY SHARE OF f
"""


@dataclass(frozen=True, slots=True)
class KeysOfRelease:
    """Stores blocks of one release's keys in a keyset, for its facts in a corpus."""

    digest: str
    index_digest: str
    corpus: str
    keyset_id: int
    actor: str
    reason: str

    def read(self, session: Session) -> int:
        """Give how many keys of the index were read before, from the log. The release before did not note of which."""
        payload = ChangeRow.payload
        upto = select(func.max(cast(payload["upto"].astext, BigInteger))).where(
            ChangeRow.kind == "key",
            payload.contains({"release": self.digest, "corpus": self.corpus, "keyset": self.keyset_id}),
            func.coalesce(payload["index"].astext, self.index_digest) == self.index_digest,
        )
        return session.scalar(upto) or 0

    def store(self, session: Session, fact_ids: npt.NDArray[np.int64], keys_ND: Keys, upto: int) -> int:
        """Store the keys that are wanted and gives their number; `upto` keys of the index are read then.

        Does not commit.
        """
        pending = audit.begin_change(session, self.actor, self.reason)
        asked = (id_array(fact_ids.tolist()), self.keyset_id)
        rows = connection_of(session).execute(_WANTING, asked).fetchall()
        wanted = np.isin(fact_ids, np.array([row[0] for row in rows], np.int64))
        payload: dict[str, Any] = {
            "keyset": self.keyset_id, "release": self.digest, "index": self.index_digest, "corpus": self.corpus,
            "upto": upto,
        }  # fmt: skip
        if number := int(wanted.sum()):
            with checked_at_once(session, number):
                first = copy_keys(
                    session, self.keyset_id, ADOPTED, fact_ids[wanted].tolist(), keys_ND[wanted]
                )
            payload |= {"keys": [first, first + number - 1]}
        audit.append_change(session, pending, "key", num_facts=number, payload=payload)
        return number


def require_one_index(
    session: Session, digest: str, corpus: str, checkpoint_id: str, index_digest: str
) -> None:
    """Raise where the checkpoint's keyset has keys of these facts from another index, whose makers may differ."""
    payload = ChangeRow.payload
    of_another = (
        select(KeysetRow.id)
        .join(ChangeRow, payload["keyset"].as_integer() == KeysetRow.id)
        .where(
            KeysetRow.checkpoint_id == checkpoint_id, KeysetRow.state != "retired", ChangeRow.kind == "key"
        )
        .where(payload.contains({"release": digest, "corpus": corpus}))
        .where(payload["index"].astext != index_digest)
    )
    if (keyset_id := session.scalar(of_another.limit(1))) is not None:
        remedy = (
            f"Take that index, import into another corpus, or drop them: colmlm keysets retire {keyset_id}"
        )
        raise refusals.invalid_release(
            f"keyset {keyset_id} has keys of these facts from another index", remedy
        )


def analyze_facts(session: Session) -> None:
    """Let the planner know how many facts there are now, without reading their texts."""
    session.execute(
        text(
            "ANALYZE document (id, corpus, external_id, replaced_seq), fact (id, document_id, ordinal, deleted_seq)"
        )
    )
    session.execute(text("ANALYZE fact_version (fact_id, version, from_seq, to_seq)"))
