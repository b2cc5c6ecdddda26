"""Keysets: measures, activates and retires them. `kb.keys.activation` decides when one may answer.

A retraining is: rekey -> build -> check (the gate) -> activate -> retire; a rollback undoes `activate` at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy.exc import DBAPIError

from colmlm.kb.answers.reading import JudgedReader
from colmlm.kb.errors import KBError, KeysetActive, KeysLeftElsewhere
from colmlm.kb.keys import activation, keysets
from colmlm.kb.keys.calibration import Calibration
from colmlm.kb.keys.records import MAX_EDITS, KeysetRecord
from colmlm.kb.keys.rekey import Encoder
from colmlm.kb.lookup import elsewhere
from colmlm.kb.store.causes import refusal_of
from colmlm.kb.switching.gate import GateReport, check_keyset
from colmlm.kb.switching.keying import FillableKeysets
from colmlm.kb.switching.limits import GateLimits


@dataclass(frozen=True, slots=True)
class Keysets(FillableKeysets):
    """The keysets of a store."""

    def calibrate(self, keyset_id: int, measured: Calibration) -> KeysetRecord:
        """Gives a keyset the threshold that was measured for it: below this score a lookup is no match."""
        of = keyset_id, measured.threshold, self._actor, "calibrated"
        self._edit(lambda session: keysets.set_threshold(session, *of, measured=measured))
        return self.show(keyset_id)

    def set_threshold(
        self, keyset_id: int, threshold: float, *, actor: str | None = None, reason: str = "set by hand"
    ) -> KeysetRecord:
        """Sets the score below which a lookup is no match, by hand: the keyset is not calibrated then.

        Raises `InvalidValue`.
        """
        of = keyset_id, threshold, actor or self._actor, reason
        self._edit(lambda session: keysets.set_threshold(session, *of))
        return self.show(keyset_id)

    def check(
        self,
        keyset_id: int,
        encoder: Encoder,
        limits: GateLimits | None = None,
        *,
        active_encoder: Encoder | None = None,
        on_texts: Callable[[int, int], None] | None = None,
        reader: Callable[[], JudgedReader] | None = None,
    ) -> GateReport:
        """Measures a keyset against the active one, and stores the report; see `kb.switching.gate`."""
        return check_keyset(
            self.store,
            keyset_id,
            encoder,
            limits,
            active_encoder=active_encoder,
            on_texts=on_texts,
            reader=reader,
        )

    def activate(
        self,
        keyset_id: int,
        *,
        force: bool = False,
        max_edits: int = MAX_EDITS,
        questions: str | None = None,
        actor: str | None = None,
        reason: str = "activate",
    ) -> KeysetRecord:
        """Makes this keyset the one that answers, in every process, if its gate allows it (`kb.keys.activation`).

        With `questions` the gate must have asked that set. Raises `GateRefused`, unless `force`; then the change
        records what the gate refused.
        """
        of = keyset_id, actor or self._actor, reason
        self._edit(
            lambda session: activation.activate(
                session, *of, force=force, max_edits=max_edits, questions=questions
            )
        )
        return self.show(keyset_id)

    def rollback(self, *, actor: str | None = None, reason: str = "rollback") -> KeysetRecord:
        """Activates the keyset that was active before this one; a second rollback undoes the first.

        It needs no gate. Newer facts without a key in that keyset (`num_unkeyed`) are not found until it is rekeyed;
        all others are found at once.
        """
        by = actor or self._actor, reason
        return self.show(self._edit(lambda session: activation.roll_back(session, *by)))

    def retirable(self, keyset_id: int) -> KeysetRecord:
        """Gives a keyset that may be retired. Raises `KeysetActive`."""
        keyset = self.show(keyset_id)
        if keyset.state == "active":
            raise KeysetActive(keyset_id)
        return keyset

    def retire(self, keyset_id: int, *, actor: str | None = None, reason: str = "retire") -> KeysetRecord:
        """Drops a keyset's keys for good, those elsewhere too. Raises `KeysetActive`.

        Where that cannot be done elsewhere, since the server does not answer or another process writes there, the
        keyset is retired, and its keys stay there until this is called again, facts are erased, or the base is
        repaired: then it raises `KeysLeftElsewhere`.
        """
        by = actor or self._actor, reason
        self._edit(lambda session: keysets.retire(session, keyset_id, *by))
        try:
            with self.store.sessions.begin() as session:
                for one in elsewhere.named(session, self.store.settings):
                    if one.keyset_id == keyset_id:
                        one.drop(session)
        except (KBError, DBAPIError) as error:
            cause = error if isinstance(error, KBError) else refusal_of(error)
            if cause is None:  # the database does not answer, and nothing more is known
                raise
            raise KeysLeftElsewhere(keyset_id, str(cause)) from error
        return self.show(keyset_id)
