"""Adapting: fills a keyset at once with keys predicted from another's. A rekey makes the true ones later.

A sample of documents is keyed by the checkpoint. A map is fitted on the facts that both keysets have keyed, for each
kind of key, and applied to all other keys of the old keyset. What was committed stays: a second run goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

import numpy as np
from sqlalchemy import and_, exists, func, or_, select
from sqlalchemy.orm import Session, sessionmaker

from colmlm.kb.errors import InvalidValue
from colmlm.kb.keys import keysets, predicted, queues
from colmlm.kb.keys.adapt_sample import AdaptSample, KeyPairs, of_corpus
from colmlm.kb.keys.keycopy import copy_keys
from colmlm.kb.keys.keysets import Ids, Vectors
from colmlm.kb.keys.maps import FittedMap, are_few, best_map, require_fit, shares_found
from colmlm.kb.keys.records import AdaptedKeys, Prediction
from colmlm.kb.keys.rekey import Encoder, RekeyRun
from colmlm.kb.log import audit
from colmlm.kb.tables import FactKeyRow, FactRow
from colmlm.kb.texts.asked import ANSWER, QUESTION

FEWEST_SAMPLED = 250  # facts with true keys, where nobody says how many
_ASKED = 500  # questions that measure a map
_AT_ONCE = 5_000  # keys predicted in one transaction
_ENCODED_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class AdaptRun:
    """One filling of a keyset from another: who asked for it, the corpus (None: all), and how the map is fitted."""

    sessions: sessionmaker[Session]
    encoder: Encoder
    keyset_id: int
    from_keyset_id: int
    actor: str
    corpus: str | None
    batch: int
    on_facts: Callable[[int, int], None] | None
    sample: int | None = None
    method: str = "auto"

    def run(self) -> tuple[AdaptedKeys, ...]:
        """Keys the sample and predicts the other keys; gives what was done for each kind of key that there is."""
        require_fit(self.method, FEWEST_SAMPLED if self.sample is None else self.sample)
        with self.sessions() as session:
            self._require_true(session)
            kinds = [kind for kind in ("context", "question") if self._has(session, kind)]
            sample = AdaptSample.drawn(
                session, self.keyset_id, self.from_keyset_id, self.corpus, self._size(session)
            )
        return tuple(self._adapt(kind, sample) for kind in kinds)

    def _size(self, session: Session) -> int:
        """Gives how many facts to key truly: a hundredth, where nobody says how many."""
        if self.sample is not None:
            return self.sample
        return max(FEWEST_SAMPLED, keysets.num_indexed_keys(session, self.from_keyset_id) // 100)

    def _require_true(self, session: Session) -> None:
        """Refuses to predict from keys that were predicted themselves, from those of the same checkpoint, and keys that
        would answer before a gate has seen them.
        """
        old, name = keysets.get_keyset(session, self.from_keyset_id), "keyset to predict from"
        if old.keyset_id == self.keyset_id:
            raise InvalidValue(name, f"{old.keyset_id} is that of this checkpoint; name another one's")
        if old.state == "retired":
            raise InvalidValue(name, f"{old.keyset_id} is retired and has no keys")
        if old.num_predicted:
            remedy = f"run: colmlm keysets rekey {old.keyset_id}"
            raise InvalidValue(name, f"{old.num_predicted} keys of {old.keyset_id} are predicted; {remedy}")
        if keysets.active_keyset_id(session) == self.keyset_id:
            remedy = f"run: colmlm keysets rekey {self.keyset_id}"
            raise InvalidValue(
                "keyset to fill", f"{self.keyset_id} is active, so its keys must be true; {remedy}"
            )

    def _has(self, session: Session, kind: str) -> bool:
        keys = FactKeyRow.keyset_id == self.from_keyset_id, FactKeyRow.kind == kind
        return bool(session.scalar(select(exists().where(*keys))))

    def _adapt(self, kind: str, sample: AdaptSample) -> AdaptedKeys:
        began = monotonic()
        each = self._key(kind, sample)
        with self.sessions() as session:
            pairs = sample.pairs(session, kind)
            num_lacking = self._num_lacking(session, kind)
            old, new = (keysets.checkpoint_of(session, one) for one in (self.from_keyset_id, self.keyset_id))
        num_facts = len(pairs.groups_N)
        if are_few(pairs.groups_N) and not num_lacking:
            prediction = Prediction(kind, self.from_keyset_id, "none", num_facts, 0)
        else:
            fitted = best_map(self.method, pairs.old_ND, pairs.new_NE, pairs.groups_N)
            prediction = self._measured(kind, pairs, fitted)
            num_facts += self._fill(kind, fitted, prediction, num_lacking)
        return AdaptedKeys(
            from_checkpoint=old.name,
            to_checkpoint=new.name,
            facts=num_facts,
            prediction=prediction,
            seconds=round(monotonic() - began, 2),
            seconds_true=None if each is None else round(each * num_facts, 2),
        )

    def _key(self, kind: str, sample: AdaptSample) -> float | None:
        """Makes the true keys of the sample; gives the seconds that one took, or None where all were there."""
        with self.sessions() as session:
            waiting = sample.queues(session, kind)
            number = queues.length(session, waiting, keyset_id=self.keyset_id)
        began = monotonic()
        RekeyRun(
            self.sessions, self.encoder, self.keyset_id, self.actor, None, self.batch, self.on_facts
        ).work(waiting)
        return (monotonic() - began) / number if number else None

    def _measured(self, kind: str, pairs: KeyPairs, fitted: FittedMap) -> Prediction:
        """Asks some questions of the fit among its facts, by predicted keys, by true ones, and by the old ones."""
        asked = [n for n, question in enumerate(pairs.questions_N) if question]
        asked = asked[:: max(1, -(-len(asked) // _ASKED))]
        figures: dict[str, float | None] = {}
        if asked:
            queries = self._queries(kind, [pairs.questions_N[n] or "" for n in asked])
            ways = {"": fitted.held_out_NE, "_true": pairs.new_NE}
            if pairs.old_ND.shape[1] == pairs.new_NE.shape[1]:
                ways["_old"] = pairs.old_ND
            for way, keys_ND in ways.items():
                for k, share in shares_found(queries, asked, keys_ND).items():
                    figures[f"recall_at_{k}{way}"] = round(share, 4)
        return Prediction(kind, self.from_keyset_id, fitted.method, len(pairs.groups_N), 0, **figures)

    def _queries(self, kind: str, questions: Sequence[str]) -> Vectors:
        """Encodes questions as they are asked. Where they are the keys themselves, they are asked as a decoder does."""
        pieces = []
        for start in range(0, len(questions), _ENCODED_AT_ONCE):
            batch = questions[start : start + _ENCODED_AT_ONCE]
            if kind == "question":
                pieces.append(self.encoder.encode_contexts([f"{QUESTION} {one} {ANSWER}" for one in batch]))
            else:
                pieces.append(self.encoder.encode_questions(batch))
        return np.concatenate(pieces)

    def _fill(self, kind: str, fitted: FittedMap, prediction: Prediction, total: int) -> int:
        """Predicts all keys of the kind that the keyset lacks, a batch in each transaction; gives their number."""
        after, done = 0, 0
        while True:
            with self.sessions() as session:
                key_ids, keys_ND = self._old_keys(session, kind, after)
            if not len(key_ids):
                break
            after = int(key_ids[-1])
            done += self._store(kind, key_ids, fitted.map(keys_ND), prediction)
            if self.on_facts is not None:
                self.on_facts(done, max(done, total))
        with self.sessions.begin() as session:
            keysets.analyze(session, self.keyset_id)
        return done

    def _old_keys(self, session: Session, kind: str, after: int) -> tuple[Ids, Vectors]:
        statement = self._lacking(kind).where(FactKeyRow.id > after).order_by(FactKeyRow.id).limit(_AT_ONCE)
        rows = session.execute(statement.add_columns(FactKeyRow.key)).all()
        dim = keysets.keyset_head(session, self.from_keyset_id).dim
        return np.array([row[0] for row in rows], dtype=np.int64), keysets.decode(
            [row[2] for row in rows], dim
        )

    def _num_lacking(self, session: Session, kind: str) -> int:
        return session.scalar(select(func.count()).select_from(self._lacking(kind).subquery())) or 0

    def _lacking(self, kind: str) -> Any:
        """Selects the old keys of facts that have no key of the kind in the new keyset."""
        lacking = ~queues.has_key(self.keyset_id, FactKeyRow.kind == kind)
        if kind == "question":  # a document's fact that has only a question key would look keyed
            lacking = and_(lacking, or_(FactRow.document_id.is_(None), queues.has_key(self.keyset_id)))
        statement = select(FactKeyRow.id, FactKeyRow.fact_id).join(FactRow, FactRow.id == FactKeyRow.fact_id)
        return of_corpus(statement, self.corpus).where(
            FactKeyRow.keyset_id == self.from_keyset_id, FactKeyRow.kind == kind, queues.is_kept(), lacking
        )

    def _store(self, kind: str, key_ids: Ids, made_NE: Vectors, prediction: Prediction) -> int:
        """Stores the predicted keys of facts that lack one and whose old key is there, now that the log is locked."""
        with self.sessions.begin() as session:
            pending = audit.begin(session, self.actor, "predicted")
            still = self._lacking(kind).where(FactKeyRow.id == func.any(key_ids.tolist()))
            fact_of = {row[0]: row[1] for row in session.execute(still)}
            rows = [n for n, key_id in enumerate(key_ids.tolist()) if key_id in fact_of]
            if not rows:
                return 0
            fact_ids = [fact_of[int(key_ids[n])] for n in rows]
            first = copy_keys(session, self.keyset_id, kind, fact_ids, made_NE[rows])
            payload = {
                "keyset": self.keyset_id,
                "keys": [first, first + len(rows) - 1],
                "predicted": predicted.said(prediction),
            }
            audit.append(session, pending, "key", fact_ids, payload=payload)
            keysets.note_gate(session, self.keyset_id, None)  # which has not seen these keys
            return len(rows)
