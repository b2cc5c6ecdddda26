"""Neighbours: finds the facts that are nearest now to the query of a stored lookup."""

from __future__ import annotations

from sqlalchemy import select

from colmlm.kb.keys import keysets
from colmlm.kb.lookup.records import Hit
from colmlm.kb.lookup.searchable import SearchableStore
from colmlm.kb.tables import AttributionRow, GenerationRow


def neighbours_of(store: SearchableStore, generation_id: int, ordinal: int, k: int) -> list[Hit] | None:
    """Looks up the stored query of an output again by key, whatever it was ranked by; see `Outputs.neighbours`."""
    with store.sessions() as session:
        asked = session.execute(
            select(AttributionRow.query, GenerationRow.checkpoint_id)
            .join(GenerationRow, GenerationRow.id == AttributionRow.generation_id)
            .where(AttributionRow.generation_id == generation_id, AttributionRow.ordinal == ordinal)
        ).one_or_none()
    if asked is None or asked.query is None:
        return None
    query_1D = keysets.decode([asked.query], len(asked.query) // keysets.STORED.itemsize)
    (found,) = store.lookups.find(query_1D, checkpoint_id=asked.checkpoint_id, k=k, threshold=-1.0)
    return list(found.hits)
