"""Keysets: measures, activates and retires them. `kb.keys.activation` decides when one may answer.

A retraining is: rekey -> build -> check (the gate) -> activate -> retire; a rollback undoes `activate` at once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, Unpack

from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from colmlm.kb.answers.reading import JudgedReader
from colmlm.kb.errors import InvalidValue, KBError, count_of, refusals
from colmlm.kb.facts import reading
from colmlm.kb.facts.ingest import MANY_FACTS
from colmlm.kb.facts.records import Edit
from colmlm.kb.keys import activation, keysets, predicted
from colmlm.kb.keys.activation import Succession, find_former_keyset, read_succession
from colmlm.kb.keys.adapting import AdaptRun, require_adaptable
from colmlm.kb.keys.calibration import Calibration, has_question_keys
from colmlm.kb.keys.keycopy import Keys, store_keys
from colmlm.kb.keys.keysets import Ids, Vectors, context_keys
from colmlm.kb.keys.records import (
    MAX_EDITS,
    RECALL,
    AdaptedKeys,
    BuiltIndex,
    CheckpointInfo,
    GateLimits,
    GateStanding,
    KeysetHead,
    KeysetRecord,
    MapFit,
    RekeyPart,
)
from colmlm.kb.keys.rekey import Elsewhere, Encoder, RekeyRun
from colmlm.kb.lookup import snapshots
from colmlm.kb.lookup.in_process import OnKeys
from colmlm.kb.lookup.replica import rebuild_replica, save_replica
from colmlm.kb.lookup.searchable import SearchableStore
from colmlm.kb.store.waits import refusal_of, retry_on_contention
from colmlm.kb.switching.gate import GateReport, check_keyset

# Keying: gives keysets their keys, made by a checkpoint, predicted or given, and their indexes.

# What keysets there are: which one answers, how far each is, and what its gate said.

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class KnownKeysets:
    """Reads the keysets of a store."""

    store: SearchableStore

    def all(self) -> list[KeysetRecord]:
        """List the keysets by id, retired ones too, and count their keys."""
        with self.store.sessions() as session:
            return activation.count_all_keys(session)

    def in_use(self) -> list[KeysetHead]:
        """List the keysets that are not retired, by id, and count nothing."""
        with self.store.sessions() as session:
            return keysets.heads_in_use(session)

    def show(self, keyset_id: int) -> KeysetRecord:
        """Give one keyset and count its keys, which takes seconds among millions. Raises `KeysetNotFound`."""
        with self.store.sessions() as session:
            return activation.count_keys(session, keyset_id)

    def head(self, keyset_id: int) -> KeysetHead:
        """Give one keyset and count nothing. Raises `KeysetNotFound`."""
        with self.store.sessions() as session:
            return keysets.keyset_head(session, keyset_id)

    def active(self) -> KeysetHead:
        """Give the keyset that answers, and count nothing. Raises `NoActiveKeyset`."""
        with self.store.sessions() as session:
            return keysets.active_head(session)

    def is_ready(self, checkpoint_id: str) -> bool:
        """Tell whether a checkpoint has a keyset that could answer and is not active."""
        with self.store.sessions() as session:
            return keysets.ready_keyset_of(session, checkpoint_id) is not None

    def line(self) -> Succession:
        """Give the active keyset, the one that may be activated next, and all that can answer, by a small statement."""
        with self.store.sessions() as session:
            return read_succession(session)

    def former(self, active: int) -> int | None:
        """Give the keyset that a rollback from the active one leads to; None where there is none. It reads the log."""
        with self.store.sessions() as session:
            return find_former_keyset(session, active)

    def checkpoint(self, keyset_id: int) -> CheckpointInfo:
        """Give the checkpoint that makes the keys of a keyset. Raises `KeysetNotFound`."""
        with self.store.sessions() as session:
            return keysets.checkpoint_of(session, keyset_id)

    def has_question_keys(self, keyset_id: int) -> bool:
        """Tell whether a keyset keys facts of documents from their questions too."""
        with self.store.sessions() as session:
            return has_question_keys(session, keyset_id)

    def keys(self, keyset_id: int, *, corpus: str | None = None) -> tuple[Ids, Vectors]:
        """Give fact ids [n] and context keys [n, d] of live facts, by fact id."""
        with self.store.sessions() as session:
            return context_keys(session, keyset_id, corpus)

    def has_threshold(self, keyset_id: int) -> bool:
        """Tell whether a keyset's threshold was measured or set by hand, so that it must not be changed unasked."""
        with self.store.sessions() as session:
            return keysets.is_threshold_chosen(session, keyset_id)

    def outlived_calibration(self, keyset_id: int) -> bool:
        """Tell whether true keys took the place of predicted ones since the keyset's threshold was last chosen."""
        with self.store.sessions() as session:
            return predicted.were_replaced_since_threshold(session, keyset_id)

    def standing(self, keyset_id: int) -> GateStanding:
        """Give the outcome of a keyset's last gate, with the number of edits since."""
        with self.store.sessions() as session:
            return activation.activation_standing(session, keysets.keyset_head(session, keyset_id))

    def gate(self, keyset_id: int) -> dict[str, Any] | None:
        """Give the last report of a keyset's gate, as it was stored; None where it was never checked."""
        with self.store.sessions() as session:
            keysets.keyset_head(session, keyset_id)
            return keysets.gate_of(session, keyset_id)

    @retry_on_contention
    def _edit(self, edit: Callable[[Session], T]) -> T:
        """Run an edit in one transaction. Callers count keys after it, since the log is locked meanwhile."""
        with self.store.sessions.begin() as session:
            return edit(session)

    @property
    def _actor(self) -> str:
        return self.store.settings.actor


_BATCH = 64  # documents that are encoded in one transaction


@dataclass(frozen=True, slots=True)
class FillableKeysets(KnownKeysets):
    """The keysets of a store, with the verbs that fill them with keys and build their indexes."""

    @retry_on_contention
    def create(self, checkpoint: CheckpointInfo, index_spec: str | None = None) -> KeysetHead:
        """Register a checkpoint and give its keyset: the one it has, unless that is retired, or a new one."""
        with self.store.sessions.begin() as session:
            return keysets.create_keyset(session, checkpoint, index_spec, self._actor)

    def rekey(
        self,
        encoder: Encoder,
        *,
        corpus: str | None = None,
        batch: int = _BATCH,
        on_facts: Callable[[int, int], None] | None = None,
        kinds: Collection[str] = ("context",),
        replace: bool = False,
        elsewhere: Elsewhere | None = None,
    ) -> KeysetRecord:
        """Give every live fact (of `corpus`) a key of the encoder's checkpoint; after a kill a second call resumes.

        It runs several transactions, one for each batch of documents. Then the keyset is ready (active if none was) and
        its index is on disk, so that no lookup has to wait for it after activation. `on_facts` is called with the
        number of facts keyed, and of all. With "question" among the `kinds`, facts of documents get a second key from
        their question, also those that this keyset keys later. With `replace`, true keys take the place of predicted
        ones, those of facts that outputs ask for first. `elsewhere` makes most keys.
        """
        if corpus is not None:
            with self.store.sessions() as session:
                reading.require_corpus(session, corpus)
        keyset = self.create(encoder.checkpoint)
        rekey = RekeyRun(
            self.store.sessions,
            encoder,
            keyset.keyset_id,
            self._actor,
            corpus,
            batch,
            on_facts,
            kinds,
            replace,
            elsewhere,
        )
        rekey.run()
        return self.finish(keyset.keyset_id)

    def key_facts(
        self,
        encoder: Encoder,
        fact_ids: Sequence[int],
        *,
        most: int,
        on_facts: Callable[[int, int], None] | None = None,
    ) -> bool:
        """Give these facts the keys of the encoder's checkpoint that they lack, and say whether they have them now.

        Nothing is done where they lack more than `most`. If the checkpoint has no active or ready keyset, a rekey of
        all facts makes one, so all facts count towards `most`.
        """
        with self.store.sessions() as session:
            keyset_id = keysets.answering_keyset_of(session, encoder.checkpoint.checkpoint_id)
        if keyset_id is None:
            if self.show(self.create(encoder.checkpoint).keyset_id).num_unkeyed > most:
                return False
            self.rekey(encoder, on_facts=on_facts)
            return True
        run = RekeyRun(self.store.sessions, encoder, keyset_id, self._actor, None, _BATCH, on_facts)
        return run.run_for(fact_ids, most)

    def rekey_part(self, encoder: Encoder, part: RekeyPart) -> int:
        """Make the keys of a part of a rekey that runs elsewhere, with its keyset's encoder; give their number.

        Raises `InvalidValue` where the rekey is of another base.
        """
        how = part.actor, part.corpus, part.batch, None, part.kinds, part.replace
        return RekeyRun(self.store.sessions, encoder, part.keyset_id, *how).work_part(part)

    def adapt(
        self,
        encoder: Encoder,
        *,
        corpus: str | None = None,
        from_keyset_id: int | None = None,
        on_facts: Callable[[int, int], None] | None = None,
        batch: int = 64,
        **fit: Unpack[MapFit],
    ) -> tuple[KeysetRecord, tuple[AdaptedKeys, ...]]:
        """Give the encoder's keyset keys predicted from another's, by default the active's (`kb.keys.adapting`).

        True keys are made of a sample alone. Facts without a key in the other keyset are left to a rekey, which with
        `replace` makes all predicted keys true. Raises `NoActiveKeyset`, and `InvalidValue` where the other keyset is
        of the same checkpoint, retired, predicted itself, or without keys that a checkpoint made, where that of the
        encoder is active, or where there are too few facts.
        """
        if corpus is not None:
            with self.store.sessions() as session:
                reading.require_corpus(session, corpus)
        source = self.active() if from_keyset_id is None else self.head(from_keyset_id)
        with self.store.sessions() as session:
            require_adaptable(session, encoder.checkpoint.checkpoint_id, source.keyset_id, corpus, fit)
        ids = self.create(encoder.checkpoint).keyset_id, source.keyset_id
        run = AdaptRun(self.store.sessions, encoder, *ids, self._actor, corpus, batch, on_facts, **fit)
        adapted = run.run()
        return self.finish(run.keyset_id), adapted

    def store_keys(
        self,
        keyset_id: int,
        fact_ids: Keys,
        keys_ND: Keys,
        kind: str = "context",
        *,
        actor: str,
        reason: str,
        batch: int = 100_000,
        on_facts: Callable[[int, int], None] | None = None,
    ) -> list[Edit]:
        """Store one unit vector [n, d] of a kind for each fact [n]; each batch is one transaction and one change.

        Raises `InvalidKeys`, `FactNotFound` or `FactDeleted`; then nothing of that transaction is stored.
        """
        if len(fact_ids) != len(keys_ND):
            raise InvalidValue("keys", f"there are {len(keys_ND)} for {count_of(len(fact_ids), 'fact')}")
        edits: list[Edit] = []
        for start in range(0, len(fact_ids), batch):
            piece = slice(start, start + batch)
            with self.store.sessions.begin() as session:
                edits.append(
                    store_keys(
                        session, keyset_id, fact_ids[piece], keys_ND[piece], kind, actor=actor, reason=reason
                    )
                )
            if on_facts is not None:
                on_facts(min(piece.stop, len(fact_ids)), len(fact_ids))
        if len(fact_ids) >= MANY_FACTS:
            with self.store.sessions.begin() as session:
                keysets.analyze_grown(session, keyset_id)
        return edits

    def finish(self, keyset_id: int, on_keys: OnKeys | None = None) -> KeysetRecord:
        """Mark a keyset as ready (active where none is) and write its index, as a rekey does at its end.

        Where the index has to be built, `on_keys` is called with the number of keys added and that of all keys.
        """
        with self.store.sessions.begin() as session:
            activation.finish_building(session, keyset_id, self._actor)
        self.store.searcher.prepare(keyset_id, on_keys)
        return self.show(keyset_id)

    def build(self, keyset_id: int, *, recall: float = RECALL, on_keys: OnKeys | None = None) -> BuiltIndex:
        """Rebuild a keyset's index from the database, trained on all its keys, and write its snapshot.

        Lookups read as few lists as find the share `recall` of the nearest keys. A server then opens the index in the
        time that reading the file takes. `on_keys` is called with the number of keys added and that of all keys.
        """
        with self.store.sessions.begin() as session:
            keyset = keysets.keyset_head(session, keyset_id)
            if keyset.state == "retired":
                raise refusals.keyset_not_ready(keyset_id, keyset.state)
            replica = rebuild_replica(session, keyset, self.store.settings, on_keys, recall)
            save_replica(session, replica, self.store.settings)
        built = replica.candidates
        return BuiltIndex(keyset_id, built.fit.spec, len(built), built.applied_seq, built.fit)


@dataclass(frozen=True, slots=True)
class Keysets(FillableKeysets):
    """The keysets of a store, with all verbs: they are filled, measured, activated, rolled back and retired."""

    def calibrate(self, keyset_id: int, measured: Calibration) -> KeysetRecord:
        """Give a keyset the threshold that was measured for it: below this score a lookup is no match."""
        of = keyset_id, measured.threshold, self._actor, "calibrated"
        self._edit(lambda session: keysets.set_threshold(session, *of, measured=measured))
        return self.show(keyset_id)

    def set_threshold(
        self, keyset_id: int, threshold: float, *, actor: str | None = None, reason: str = "set by hand"
    ) -> KeysetRecord:
        """Set the score below which a lookup is no match, by hand: the keyset is not calibrated then.

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
        """Measure a keyset against the active one, and store the report; see `kb.switching.gate`."""
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
        """Make this keyset the one that answers, in every process, if its gate allows it (`kb.keys.activation`).

        With `questions` the gate must have asked that set. Raises `GateRefused`, unless `force`; then the change
        records what the gate refused.
        """
        of = keyset_id, actor or self._actor, reason
        self._edit(
            lambda session: activation.activate_keyset(
                session, *of, force=force, max_edits=max_edits, questions=questions
            )
        )
        return self.show(keyset_id)

    def rollback(self, *, actor: str | None = None, reason: str = "rollback") -> KeysetRecord:
        """Activate the keyset that was active before this one; a second rollback undoes the first.

        It needs no gate. Newer facts without a key in that keyset (`num_unkeyed`) are not found until it is rekeyed;
        all others are found at once.
        """
        by = actor or self._actor, reason
        return self.show(self._edit(lambda session: activation.roll_back(session, *by)))

    def retirable(self, keyset_id: int) -> KeysetRecord:
        """Give a keyset that may be retired. Raises `KeysetActive`."""
        keyset = self.show(keyset_id)
        if keyset.state == "active":
            raise refusals.keyset_active(keyset_id)
        return keyset

    def retire(self, keyset_id: int, *, actor: str | None = None, reason: str = "retire") -> KeysetRecord:
        """Drop a keyset's keys for good, also those in a Milvus collection. Raises `KeysetActive`.

        Where Milvus does not answer or another process writes there, the keyset is retired, but its keys stay there
        until this is called again, facts are erased, or the base is repaired. In that case it raises
        `KeysLeftElsewhere`.
        """
        by = actor or self._actor, reason
        self._edit(lambda session: keysets.retire_keyset(session, keyset_id, *by))
        try:
            with self.store.sessions.begin() as session:
                for one in snapshots.named_collections(session, self.store.settings):
                    if one.keyset_id == keyset_id:
                        one.drop(session)
        except (KBError, DBAPIError) as error:
            cause = error if isinstance(error, KBError) else refusal_of(error)
            if cause is None:  # the database does not answer, and nothing more is known
                raise
            raise refusals.keys_left_elsewhere(keyset_id, str(cause)) from error
        return self.show(keyset_id)
