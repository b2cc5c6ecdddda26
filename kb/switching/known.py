"""What keysets there are: which one answers, how far each is, and what its gate said."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy.orm import Session

from colmlm.kb.keys import activation, counting, keysets, predicted, question_keys, succession
from colmlm.kb.keys.asked import context_keys
from colmlm.kb.keys.keysets import Ids, Vectors
from colmlm.kb.keys.records import CheckpointInfo, GateStanding, KeysetHead, KeysetRecord
from colmlm.kb.keys.succession import Succession
from colmlm.kb.lookup.searchable import SearchableStore
from colmlm.kb.store.contention import tried_again

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class KnownKeysets:
    """The keysets of a store, as they are."""

    store: SearchableStore

    def all(self) -> list[KeysetRecord]:
        """Lists the keysets by id, retired ones too, and counts their keys."""
        with self.store.sessions() as session:
            return counting.all_counted(session)

    def in_use(self) -> list[KeysetHead]:
        """Lists the keysets that are not retired, by id, and counts nothing."""
        with self.store.sessions() as session:
            return keysets.heads_in_use(session)

    def show(self, keyset_id: int) -> KeysetRecord:
        """Gives one keyset and counts its keys, which takes seconds among millions. Raises `KeysetNotFound`."""
        with self.store.sessions() as session:
            return counting.counted(session, keyset_id)

    def head(self, keyset_id: int) -> KeysetHead:
        """Gives one keyset and counts nothing. Raises `KeysetNotFound`."""
        with self.store.sessions() as session:
            return keysets.keyset_head(session, keyset_id)

    def active(self) -> KeysetHead:
        """Gives the keyset that answers, and counts nothing. Raises `NoActiveKeyset`."""
        with self.store.sessions() as session:
            return keysets.active_head(session)

    def is_ready(self, checkpoint_id: str) -> bool:
        """Tells whether a checkpoint has a keyset that could answer and is not active."""
        with self.store.sessions() as session:
            return keysets.ready_keyset_of(session, checkpoint_id) is not None

    def line(self) -> Succession:
        """Tells which keyset answers and which may answer next, by a small statement."""
        with self.store.sessions() as session:
            return succession.succession(session)

    def former(self, active: int) -> int | None:
        """Gives the keyset that a rollback from the active one leads to; None where there is none. It reads the log."""
        with self.store.sessions() as session:
            return succession.former(session, active)

    def checkpoint(self, keyset_id: int) -> CheckpointInfo:
        """Tells which checkpoint makes the keys of a keyset. Raises `KeysetNotFound`."""
        with self.store.sessions() as session:
            return keysets.checkpoint_of(session, keyset_id)

    def has_question_keys(self, keyset_id: int) -> bool:
        """Tells whether a keyset keys facts of documents from their questions too."""
        with self.store.sessions() as session:
            return question_keys.has_question_keys(session, keyset_id)

    def keys(self, keyset_id: int, *, corpus: str | None = None) -> tuple[Ids, Vectors]:
        """Gives fact ids [n] and context keys [n, d] of live facts, by fact id."""
        with self.store.sessions() as session:
            return context_keys(session, keyset_id, corpus)

    def has_threshold(self, keyset_id: int) -> bool:
        """Tells whether a keyset's threshold was measured or set by hand, so that it must not be changed unasked."""
        with self.store.sessions() as session:
            return keysets.is_threshold_chosen(session, keyset_id)

    def outlived_calibration(self, keyset_id: int) -> bool:
        """Tells whether true keys took the place of predicted ones since the keyset's threshold was last chosen."""
        with self.store.sessions() as session:
            return predicted.were_replaced_since_threshold(session, keyset_id)

    def standing(self, keyset_id: int) -> GateStanding:
        """Gives the outcome of a keyset's last gate, with the number of edits since."""
        with self.store.sessions() as session:
            return activation.standing(session, keysets.keyset_head(session, keyset_id))

    def gate(self, keyset_id: int) -> dict[str, Any] | None:
        """Gives the last report of a keyset's gate, as it was stored; None where it was never checked."""
        with self.store.sessions() as session:
            keysets.keyset_head(session, keyset_id)
            return keysets.gate_of(session, keyset_id)

    @tried_again
    def _edit(self, edit: Callable[[Session], T]) -> T:
        """Makes one transaction of an edit. What counts keys comes after it, since the log is locked meanwhile."""
        with self.store.sessions.begin() as session:
            return edit(session)

    @property
    def _actor(self) -> str:
        return self.store.settings.actor
