"""Elsewhere: every collection that keysets name on a Milvus server, also those of keysets that answer no lookups.

A retired keyset's collection outlives it where Milvus was away, and one of a keyset that is still building may have
been filled, or half filled. Both hold keys, and nobody follows the log with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from colmlm.kb.errors import CandidatesUnavailable
from colmlm.kb.keys.keysets import keyset_head
from colmlm.kb.lookup import writing
from colmlm.kb.lookup.collection import Collection
from colmlm.kb.lookup.remote import fitted
from colmlm.kb.lookup.specs import DROPPED
from colmlm.kb.store.settings import Settings
from colmlm.kb.tables import KeysetRow


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """The collection that a keyset in this state names, be it there or not, and where it was `fitted` last."""

    keyset_id: int
    state: str
    there: Collection
    fitted: str | None

    def is_useless(self, session: Session) -> bool:
        """Says whether it is there, and of a retired keyset or of one whose first filling broke off."""
        if self.state in ("ready", "active") or not self.is_there():
            return False
        return self.state == "retired" or not writing.is_filled(session, self.there)

    def is_there(self) -> bool:
        """Says whether it is on the server. Raises `CandidatesUnavailable` where it was filled on another one."""
        if self.there.is_there():
            return True
        if self.fitted not in (None, fitted(self.there)):
            raise CandidatesUnavailable(self.there.where, f"it was filled as {self.fitted}")
        return False

    def drop(self, session: Session) -> None:
        """Drops it where it is there, and notes of a retired keyset's that it is gone: nobody asks for it again."""
        if self.is_there():
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
        keyset = keyset_head(session, keyset_id)
        there = writing.collection(session, keyset, settings.milvus)
        if there is not None:
            fit = keyset.index_fit
            found.append(Elsewhere(keyset_id, state, there, None if fit is None else fit.spec))
    return found


@dataclass(frozen=True, slots=True)
class ElsewhereStanding:
    """The keysets whose collections are to be compared with the database, and a sentence for each other collection:
    it is to be dropped, or could not be asked for.
    """

    kept: frozenset[int]
    useless: Mapping[int, str]


def standing(session: Session, settings: Settings) -> ElsewhereStanding:
    """Looks for the collections of keysets that answer nothing; those of the others are opened by who compares them."""
    kept, useless = set(), {}
    for one in named(session, settings):
        of = f"{one.there.where} is of keyset {one.keyset_id}, which is {one.state}"
        try:
            if one.is_useless(session):
                useless[one.keyset_id] = of
            elif one.state in ("ready", "active") or (one.state == "building" and one.is_there()):
                kept.add(one.keyset_id)
        except CandidatesUnavailable as unavailable:
            useless[one.keyset_id] = f"{of}: {unavailable}"
    return ElsewhereStanding(frozenset(kept), useless)
