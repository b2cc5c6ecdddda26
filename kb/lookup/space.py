"""The space of lookups: what a decoder on another machine has to know of a knowledge base before it asks."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from colmlm.kb.errors import NoActiveKeyset
from colmlm.kb.log import audit
from colmlm.kb.lookup.records import LookupSpace
from colmlm.kb.tables import CheckpointRow, KeysetRow


def lookup_space(session: Session) -> LookupSpace:
    """Gives the space of lookups, from two rows; no keys are counted. Raises `NoActiveKeyset`."""
    statement = select(
        KeysetRow.id,
        KeysetRow.checkpoint_id,
        CheckpointRow.name,
        CheckpointRow.dim,
        KeysetRow.threshold,
        KeysetRow.calibrated,
    ).join(CheckpointRow, CheckpointRow.id == KeysetRow.checkpoint_id)
    row = session.execute(statement.where(KeysetRow.state == "active")).one_or_none()
    if row is None:
        raise NoActiveKeyset
    return LookupSpace(
        row.id, row.checkpoint_id, row.name, row.dim, row.threshold, row.calibrated, audit.head_seq(session)
    )
