"""Elsewhere: every collection that keysets name on a Milvus server, also those of keysets that answer no lookups.

A retired keyset's collection outlives it where Milvus was away, and one of a keyset that is still building may have
been filled, or half filled. Both hold keys, and nobody follows the log with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sqlalchemy import null, select, update
from sqlalchemy.orm import Session

from colmlm.kb.errors import CandidatesUnavailable
from colmlm.kb.keys.keysets import keyset_head
from colmlm.kb.lookup.collection import Collection
from colmlm.kb.lookup.remote import CollectionWriter, collection, filled_at, is_filled
from colmlm.kb.lookup.specs import DROPPED
from colmlm.kb.lookup.turns import wait_until_mine
from colmlm.kb.store.milvus_address import MilvusAddress
from colmlm.kb.store.settings import Settings
from colmlm.kb.tables import KeysetRow


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """The collection that a keyset in this state names, be it there or not, and at which address it was filled last.

    That is None where it is not known.
    """

    keyset_id: int
    state: str
    there: Collection
    filled_at: str | None

    @property
    def is_needed(self) -> bool:
        """Say whether its keyset answers, or could."""
        return self.state in ("ready", "active")

    def is_kept(self, session: Session) -> bool:
        """Say whether it is needed, or its keyset is building and has filled it to the end."""
        if self.is_needed:
            return True
        return self.state == "building" and self.is_there() and is_filled(session, self.there)

    def is_there(self) -> bool:
        """Say whether it is on the server. Raises `CandidatesUnavailable` where it may be on another one."""
        if (doubt := self.doubt()) is not None:
            raise CandidatesUnavailable(self.there.where, doubt)
        return self.there.is_there()

    def doubt(self) -> str | None:
        """Say where it was filled, unless that is this server, or it is there all the same."""
        if self.filled_at in (None, self.there.address.uri) or self.there.is_there():
            return None
        return f"it is not there, and was filled at {self.filled_at}"

    def drop(self, session: Session) -> Elsewhere | None:
        """Drop it, unless it is kept by the time that it is this process's turn to write there; give it then.

        While the turn was awaited another process may have filled it, and its keyset may answer with it by now. Of a
        retired keyset's it notes that it is gone: nobody asks for it again.
        """
        now = self._in_turn(session)
        if now is None or now.is_kept(session):
            return now
        if now.is_there():
            CollectionWriter(session, now.there).drop()
        now._note_gone(session)
        return None

    def forget(self, session: Session) -> None:
        """Have nobody look for it any more, where it is still in doubt: the server that had it is gone or renamed."""
        now = self._in_turn(session)
        if now is not None and now.doubt() is not None:
            now._note_gone(session)

    def _note_gone(self, session: Session) -> None:
        note = update(KeysetRow).where(KeysetRow.id == self.keyset_id)
        if self.state == "retired":
            session.execute(note.values(index_spec=KeysetRow.index_spec + DROPPED))
        else:
            session.execute(note.values(index_fit=null()))

    def _in_turn(self, session: Session) -> Elsewhere | None:
        """Wait for this process's turn to write there and gives it as it is then; None where it was dropped."""
        wait_until_mine(session, self.keyset_id)
        return _of(session, self.keyset_id, self.there.address)


def named(session: Session, settings: Settings) -> list[Elsewhere]:
    """Give the collections that keysets name, by the keysets' ids, but for those that are known to be dropped."""
    ids = session.scalars(select(KeysetRow.id).order_by(KeysetRow.id)).all()
    found = (_of(session, keyset_id, settings.milvus) for keyset_id in ids)
    return [one for one in found if one is not None]


def _of(session: Session, keyset_id: int, address: MilvusAddress) -> Elsewhere | None:
    keyset = keyset_head(session, keyset_id)
    if (there := collection(session, keyset, address)) is None:
        return None
    at = None if keyset.index_fit is None else filled_at(keyset.index_fit.spec)
    return Elsewhere(keyset_id, keyset.state, there, at)


@dataclass(frozen=True, slots=True)
class ElsewhereStanding:
    """The keysets whose collections are to be compared with the database, and a sentence for each other collection:
    the `useless` are to be dropped, the `astray` are in doubt, and the `unasked` could not be asked for.
    """

    kept: frozenset[int] = frozenset()
    useless: Mapping[int, str] = field(default_factory=dict)
    astray: Mapping[int, str] = field(default_factory=dict)
    unasked: Mapping[int, str] = field(default_factory=dict)

    def describe_findings(self) -> tuple[str, ...]:
        return (*self.useless.values(), *self.astray.values(), *self.unasked.values())


def standing(session: Session, settings: Settings) -> ElsewhereStanding:
    """Look for the collections of keysets that answer nothing; those of the others are opened by who compares them."""
    kept, useless, astray, unasked = set(), {}, {}, {}
    for one in named(session, settings):
        of = f"{one.there.where} is of keyset {one.keyset_id}, which is {one.state}"
        try:
            if not one.is_needed and (doubt := one.doubt()) is not None:
                astray[one.keyset_id] = f"{of}: {doubt}; a repair forgets it"
            elif one.is_kept(session):
                kept.add(one.keyset_id)
            elif one.is_there():
                useless[one.keyset_id] = of
        except CandidatesUnavailable as unavailable:
            unasked[one.keyset_id] = f"{of}: {unavailable}"
    return ElsewhereStanding(frozenset(kept), useless, astray, unasked)
