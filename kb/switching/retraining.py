"""Retraining: move every lookup from one checkpoint's keys to another's, and back, while lookups go on.

rekey -> build -> check (the gate) -> activate -> retire; rollback goes back at once. When a keyset may answer is for
`kb.keys.activation` to say.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from colmlm.kb.errors import KeysetActive, KeysetNotReady
from colmlm.kb.keys import activation, keysets
from colmlm.kb.keys.activation import MAX_EDITS, GateStanding
from colmlm.kb.lookup.replica import rebuild, save
from colmlm.kb.records import KeysetRecord
from colmlm.kb.store.contention import tried_again
from colmlm.kb.store.store import Store


@dataclass(frozen=True, slots=True)
class Built:
    """An index made anew from the database, and its snapshot on disk."""

    keyset_id: int
    index_spec: str
    num_keys: int
    seq: int


class Retraining:
    """The verbs of a retraining job on a knowledge base."""

    def __init__(self, kb: Store) -> None:
        self.kb = kb

    def build(self, keyset_id: int) -> Built:
        """Make a keyset's index anew from the database, trained on all keys there are, and write its snapshot.

        A server then opens it in the time it takes to read the file.
        """
        with self.kb.sessions.begin() as session:
            keyset = keysets.get_keyset(session, keyset_id)
            if keyset.state == "retired":
                raise KeysetNotReady(keyset_id, keyset.state)
            replica = rebuild(session, keyset)
            save(session, replica, self.kb.settings.index_directory)
        return Built(keyset_id, replica.index.spec, len(replica.index), replica.applied_seq)

    def standing(self, keyset_id: int) -> GateStanding:
        with self.kb.sessions() as session:
            return activation.standing(session, keysets.get_keyset(session, keyset_id))

    def gate(self, keyset_id: int) -> dict[str, Any] | None:
        """The last report of a keyset's gate, as it was stored; None where it was never checked."""
        with self.kb.sessions() as session:
            keysets.get_keyset(session, keyset_id)
            return keysets.gate_of(session, keyset_id)

    def set_threshold(
        self, keyset_id: int, threshold: float, *, actor: str, reason: str = "set by hand"
    ) -> KeysetRecord:
        """Set the score below which a lookup is no match, by hand: the keyset is not calibrated then.

        Raises `InvalidValue`.
        """
        with self.kb.sessions.begin() as session:
            return keysets.set_threshold(session, keyset_id, threshold, actor, reason)

    @tried_again
    def activate(
        self,
        keyset_id: int,
        *,
        force: bool = False,
        max_edits: int = MAX_EDITS,
        actor: str | None = None,
        reason: str = "activate",
    ) -> KeysetRecord:
        """Let this keyset answer from now on, in every process, if its gate says so, as `kb.keys.activation` has it.

        Raises `GateRefused`, unless `force`, which is recorded with what spoke against it.
        """
        actor = actor or self.kb.settings.actor
        with self.kb.sessions.begin() as session:
            return activation.activate(session, keyset_id, actor, reason, force=force, max_edits=max_edits)

    @tried_again
    def rollback(self, *, actor: str | None = None, reason: str = "rollback") -> KeysetRecord:
        """Let the keyset answer that was active before this one; doing it twice ends where it began.

        It needs no gate. Facts that came since and have no key there (`num_unkeyed`) are silent until it is rekeyed;
        for all others it answers at once.
        """
        with self.kb.sessions.begin() as session:
            return activation.roll_back(session, actor or self.kb.settings.actor, reason)

    def retirable(self, keyset_id: int) -> KeysetRecord:
        """The keyset as it is before its keys are dropped. Raises `KeysetActive`."""
        with self.kb.sessions() as session:
            keyset = keysets.get_keyset(session, keyset_id)
        if keyset.state == "active":
            raise KeysetActive(keyset_id)
        return keyset

    @tried_again
    def retire(self, keyset_id: int, *, actor: str | None = None, reason: str = "retire") -> KeysetRecord:
        """Drop a keyset's keys for good. Raises `KeysetActive`."""
        with self.kb.sessions.begin() as session:
            return keysets.retire(session, keyset_id, actor or self.kb.settings.actor, reason)
