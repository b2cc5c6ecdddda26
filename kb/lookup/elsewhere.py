"""Elsewhere: every collection that keysets name on a Milvus server, also those of keysets that answer no lookups.

A retired keyset's collection outlives it where Milvus was away, and one of a keyset that is still building may have
been filled, or half filled. Both hold keys, and nobody follows the log with them.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from colmlm.kb.errors import CandidatesUnavailable
from colmlm.kb.keys.keysets import keyset_head
from colmlm.kb.lookup import writing
from colmlm.kb.lookup.collection import Collection
from colmlm.kb.lookup.specs import DROPPED
from colmlm.kb.store.settings import Settings
from colmlm.kb.tables import KeysetRow


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """The collection that a keyset in this state names, be it there or not."""

    keyset_id: int
    state: str
    there: Collection

    def is_useless(self, session: Session) -> bool:
        """Says whether it is there, and of a retired keyset or of one whose first filling broke off."""
        if self.state in ("ready", "active") or not self.there.is_there():
            return False
        return self.state == "retired" or not writing.is_filled(session, self.there)

    def is_filled(self, session: Session) -> bool:
        return self.there.is_there() and writing.is_filled(session, self.there)

    def drop(self, session: Session) -> None:
        """Drops it where it is there, and notes of a retired keyset's that it is gone: nobody asks for it again."""
        writing.drop(session, self.keyset_id, self.there)
        if self.state == "retired":
            spec = KeysetRow.index_spec + DROPPED
            session.execute(update(KeysetRow).where(KeysetRow.id == self.keyset_id).values(index_spec=spec))


def named(session: Session, settings: Settings) -> list[Elsewhere]:
    """Gives the collections that keysets name, by the keysets' ids, but for those that are known to be dropped."""
    found = []
    for keyset_id, state in session.execute(
        select(KeysetRow.id, KeysetRow.state).order_by(KeysetRow.id)
    ).all():
        there = writing.collection(session, keyset_head(session, keyset_id), settings.milvus)
        if there is not None:
            found.append(Elsewhere(keyset_id, state, there))
    return found


def useless(session: Session, settings: Settings) -> dict[int, str]:
    """Gives a sentence for each keyset whose collection is to be dropped, or of a retired one cannot be asked for."""
    found = {}
    for one in named(session, settings):
        of = f"{one.there.where} is of keyset {one.keyset_id}, which is {one.state}"
        try:
            if one.is_useless(session):
                found[one.keyset_id] = of
        except CandidatesUnavailable as unavailable:
            if one.state == "retired":
                found[one.keyset_id] = f"{of}: {unavailable}"
    return found
