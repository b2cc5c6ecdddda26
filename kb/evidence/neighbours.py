"""Neighbours: what else was near where an output looked something up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import select

from colmlm.kb.keys import keysets
from colmlm.kb.records import Hit
from colmlm.kb.tables import Attribution, Generation

if TYPE_CHECKING:
    from colmlm.kb.lookup.searchable import SearchableStore


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Asks the queries of stored outputs once more."""

    kb: SearchableStore

    def of(self, generation_id: int, ordinal: int, k: int = 5) -> list[Hit] | None:
        """The k live facts that are nearest now to what lookup `ordinal` of an output asked, whatever their score.

        None where the output kept no query. Raises `KeysetMismatch` where its checkpoint's keyset is not active.
        """
        with self.kb.sessions() as session:
            asked = session.execute(
                select(Attribution.query, Generation.checkpoint_id)
                .join(Generation, Generation.id == Attribution.generation_id)
                .where(Attribution.generation_id == generation_id, Attribution.ordinal == ordinal)
            ).one_or_none()
        if asked is None or asked.query is None:
            return None
        query_1D = keysets.decode([asked.query], len(asked.query) // keysets.STORED.itemsize)
        (found,) = self.kb.lookup(query_1D, checkpoint_id=asked.checkpoint_id, k=k, threshold=-1.0)
        return list(found.hits)
