"""Adapting: fills a keyset at once with keys predicted from another's. A rekey makes the true ones later.

A sample of documents is keyed by the checkpoint. A map is fitted on the facts that both keysets have keyed, for each
kind of key, and applied to all other keys of the old keyset. Each batch is committed, so a second run goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any

import numpy as np
import numpy.typing as npt
from sqlalchemy import and_, func, or_, select
from sqlalchemy.orm import Session, aliased, sessionmaker

from colmlm.kb.errors import InvalidValue, count_of
from colmlm.kb.keys import activation, keysets, predicted
from colmlm.kb.keys.calibration import asked_by_people
from colmlm.kb.keys.keycopy import copy_keys
from colmlm.kb.keys.keysets import Ids, Vectors
from colmlm.kb.keys.records import AdaptedKeys, MapFit, Prediction
from colmlm.kb.keys.rekey import (
    Encoder,
    KeyQueue,
    RekeyRun,
    documents_without_keys,
    facts_without_keys,
    facts_without_question_keys,
    has_key_sql,
    live_or_tombstone_sql,
    queue_length,
)
from colmlm.kb.log import audit
from colmlm.kb.tables import DocumentRow, FactKeyRow, FactRow
from colmlm.kb.texts.asked import ANSWER, QUESTION

FEWEST_SAMPLED = 250  # facts with true keys, where nobody says how many
_KINDS = ("context", "question")
_ASKED = 500  # questions that measure a map
_AT_ONCE = 5_000  # keys predicted in one transaction
_ENCODED_AT_ONCE = 32


def default_sample_size(num_keys: int) -> int:
    """Give for how many of `num_keys` facts to make true keys: a hundredth, within the bounds of a fit."""
    return min(MOST_FITTED, max(FEWEST_SAMPLED, num_keys // 100))


def require_adaptable(
    session: Session, checkpoint_id: str, from_keyset_id: int, corpus: str | None, fit: MapFit
) -> None:
    """Raise `InvalidValue` unless keys of the checkpoint may be predicted from the keyset `from_keyset_id`.

    It must have true keys of another checkpoint. The checkpoint's own keyset must not be active: no gate has seen them.
    """
    require_fit(fit.get("method", "auto"), fit.get("sample", FEWEST_SAMPLED))
    old, name = keysets.keyset_head(session, from_keyset_id), "keyset to predict from"
    other = "with --predict-from (from_keyset), see `colmlm keysets list`"
    if old.checkpoint_id == checkpoint_id:
        cause = f"{old.keyset_id} belongs to this checkpoint"
        raise InvalidValue(name, f"{cause}. Name the keyset of another checkpoint {other}")
    if old.state == "retired":
        raise InvalidValue(name, f"{old.keyset_id} is retired and has no keys. Name another {other}")
    if left := sum(one.left for one in predicted.list_predictions(session).get(from_keyset_id, ())):
        remedy = f"Run `colmlm keysets fill {old.keyset_id}`"
        raise InvalidValue(name, f"{old.keyset_id} has {count_of(left, 'predicted key')}. {remedy}")
    if not _kinds(session, from_keyset_id, corpus):
        of = "" if corpus is None else f" of corpus {corpus!r}"
        cause = f"{old.keyset_id} has no keys{of} that a checkpoint made, from texts or questions"
        raise InvalidValue(
            name, f"{cause}. Name another {other}, or run `colmlm keysets fill {old.keyset_id}`"
        )
    active = keysets.active_keyset_id(session)
    if active is not None and keysets.keyset_head(session, active).checkpoint_id == checkpoint_id:
        raise _active_refusal(active)


def _active_refusal(keyset_id: int) -> InvalidValue:
    cause = f"{keyset_id} is active, so its keys must be true"
    return InvalidValue("keyset to fill", f"{cause}. Run `colmlm keysets fill {keyset_id}`")


def _kinds(session: Session, keyset_id: int, corpus: str | None) -> list[str]:
    """Give the kinds of key, of those that a map can be fitted on, of which the keyset has keys in the corpus."""
    keys = limit_to_corpus(select(FactKeyRow.id).join(FactRow, FactRow.id == FactKeyRow.fact_id), corpus)
    of = [(kind, keys.where(FactKeyRow.keyset_id == keyset_id, FactKeyRow.kind == kind)) for kind in _KINDS]
    return [kind for kind, found in of if session.scalar(found.limit(1)) is not None]


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
        """Make the true keys of the sample and predict the other keys; give a record for each kind of key.

        `require_adaptable` must have passed, before the keyset was made.
        """
        with self.sessions() as session:
            kinds = _kinds(session, self.from_keyset_id, self.corpus)
            sample = AdaptSample.draw(
                session, self.keyset_id, self.from_keyset_id, self.corpus, self._size(session)
            )
        return tuple(self._adapt(kind, sample) for kind in kinds)

    def _size(self, session: Session) -> int:
        """Give how many facts are to get true keys: `sample`, or by default a hundredth of those with old keys."""
        if self.sample is not None:
            return self.sample
        return default_sample_size(activation.num_indexed_keys(session, self.from_keyset_id))

    def _adapt(self, kind: str, sample: AdaptSample) -> AdaptedKeys:
        began = monotonic()
        each = self._key_sample(kind, sample)
        with self.sessions() as session:
            pairs = sample.pairs(session, kind)
            num_lacking = self._num_lacking(session, kind)
            prediction = self._stored_prediction(session, kind, len(pairs.groups_N))
            old, new = (keysets.checkpoint_of(session, one) for one in (self.from_keyset_id, self.keyset_id))
        num_predicted = 0
        if num_lacking:
            fitted = best_map(self.method, pairs.old_ND, pairs.new_NE, pairs.groups_N)
            prediction = self._measure_prediction(kind, pairs, fitted)
            num_predicted = self._fill(kind, fitted, prediction, num_lacking)
        num_facts = self._num_keyed(kind)
        return AdaptedKeys(
            from_checkpoint=old.name,
            to_checkpoint=new.name,
            facts=num_facts,
            predicted=num_predicted,
            prediction=prediction,
            seconds=round(monotonic() - began, 2),
            seconds_true=None if each is None else round(each * num_facts, 2),
        )

    def _key_sample(self, kind: str, sample: AdaptSample) -> float | None:
        """Make the true keys that the sample lacks; give the seconds for each, or None where it lacks none."""
        with self.sessions() as session:
            waiting = sample.queues(session, kind)
            number = queue_length(session, waiting, keyset_id=self.keyset_id)
        began = monotonic()
        RekeyRun(
            self.sessions, self.encoder, self.keyset_id, self.actor, None, self.batch, self.on_facts
        ).work(waiting)
        return (monotonic() - began) / number if number else None

    def _stored_prediction(self, session: Session, kind: str, num_pairs: int) -> Prediction:
        """Give the former prediction of keys of this kind; one with the method "none" if no predicted keys are left."""
        before = predicted.list_predictions(session).get(self.keyset_id, ())
        true = Prediction(kind, self.from_keyset_id, "none", num_pairs, 0)
        return next((one for one in before if one.kind == kind), true)

    def _measure_prediction(self, kind: str, pairs: KeyPairs, fitted: FittedMap) -> Prediction:
        """Measure the recall of some fitted facts' questions among predicted keys, true keys and old keys."""
        asked = [n for n, question in enumerate(pairs.questions_N) if question]
        asked = asked[:: max(1, -(-len(asked) // _ASKED))]
        figures: dict[str, float | None] = {}
        if asked:
            queries = self._queries(kind, [pairs.questions_N[n] or "" for n in asked])
            ways = {"": fitted.held_out_NE, "_true": pairs.new_NE}
            if pairs.old_ND.shape[1] == pairs.new_NE.shape[1]:
                ways["_old"] = pairs.old_ND
            for way, keys_ND in ways.items():
                for k, share in measure_recall(queries, asked, keys_ND).items():
                    figures[f"recall_at_{k}{way}"] = round(share, 4)
        return Prediction(kind, self.from_keyset_id, fitted.method, len(pairs.groups_N), 0, **figures)

    def _queries(self, kind: str, questions: Sequence[str]) -> Vectors:
        """Encode questions as queries: for question keys in the way a decoder asks, since they are keys themselves."""
        pieces = []
        for start in range(0, len(questions), _ENCODED_AT_ONCE):
            batch = questions[start : start + _ENCODED_AT_ONCE]
            if kind == "question":
                pieces.append(self.encoder.encode_contexts([f"{QUESTION} {one} {ANSWER}" for one in batch]))
            else:
                pieces.append(self.encoder.encode_questions(batch))
        return np.concatenate(pieces)

    def _fill(self, kind: str, fitted: FittedMap, prediction: Prediction, total: int) -> int:
        """Predict all keys of the kind that the keyset lacks, a batch in each transaction; give their number."""
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
            keysets.analyze_keyset(session, self.keyset_id)
        return done

    def _old_keys(self, session: Session, kind: str, after: int) -> tuple[Ids, Vectors]:
        statement = (
            self._lacking_statement(kind).where(FactKeyRow.id > after).order_by(FactKeyRow.id).limit(_AT_ONCE)
        )
        rows = session.execute(statement.add_columns(FactKeyRow.key)).all()
        dim = keysets.keyset_head(session, self.from_keyset_id).dim
        return np.array([row[0] for row in rows], dtype=np.int64), keysets.decode_keys(
            [row[2] for row in rows], dim
        )

    def _num_keyed(self, kind: str) -> int:
        """Count the facts that have a key of the kind now."""
        keys = select(func.count(FactKeyRow.fact_id.distinct())).join(
            FactRow, FactRow.id == FactKeyRow.fact_id
        )
        of_kind = (
            FactKeyRow.keyset_id == self.keyset_id,
            FactKeyRow.kind == kind,
            live_or_tombstone_sql(),
        )
        with self.sessions() as session:
            return session.scalar(limit_to_corpus(keys, self.corpus).where(*of_kind)) or 0

    def _num_lacking(self, session: Session, kind: str) -> int:
        return session.scalar(select(func.count()).select_from(self._lacking_statement(kind).subquery())) or 0

    def _lacking_statement(self, kind: str) -> Any:
        """Select the old keys of facts that have no key of the kind in the new keyset."""
        lacking = ~has_key_sql(self.keyset_id, FactKeyRow.kind == kind)
        if kind == "question":  # a document's fact that has only a question key would look keyed
            lacking = and_(lacking, or_(FactRow.document_id.is_(None), has_key_sql(self.keyset_id)))
        statement = select(FactKeyRow.id, FactKeyRow.fact_id).join(FactRow, FactRow.id == FactKeyRow.fact_id)
        return limit_to_corpus(statement, self.corpus).where(
            FactKeyRow.keyset_id == self.from_keyset_id,
            FactKeyRow.kind == kind,
            live_or_tombstone_sql(),
            lacking,
        )

    def _store(self, kind: str, key_ids: Ids, made_NE: Vectors, prediction: Prediction) -> int:
        """Store the predicted keys of facts that, under the log's lock, still lack one and have their old key.

        An activation waits for that lock, so no predicted key is added to a keyset that answers.
        """
        with self.sessions.begin() as session:
            pending = audit.begin_change(session, self.actor, "predicted")
            if keysets.active_keyset_id(session) == self.keyset_id:
                raise _active_refusal(self.keyset_id)
            still = self._lacking_statement(kind).where(FactKeyRow.id == func.any(key_ids.tolist()))
            fact_of = {row[0]: row[1] for row in session.execute(still)}
            rows = [n for n, key_id in enumerate(key_ids.tolist()) if key_id in fact_of]
            if not rows:
                return 0
            fact_ids = [fact_of[int(key_ids[n])] for n in rows]
            first = copy_keys(session, self.keyset_id, kind, fact_ids, made_NE[rows])
            payload = {
                "keyset": self.keyset_id,
                "keys": [first, first + len(rows) - 1],
                "predicted": predicted.prediction_to_json(prediction),
            }
            audit.append_change(session, pending, "key", fact_ids, payload=payload)
            keysets.note_gate(session, self.keyset_id, None)  # which has not seen these keys
            return len(rows)


# The sample of an adapting: documents and facts that get true keys, and pairs of keys that a map is fitted on.

MOST_FITTED = 20_000  # facts that a map is fitted on


@dataclass(frozen=True, slots=True)
class KeyPairs:
    """Facts with true keys in both keysets: the old [n, d], the new [n, e], their documents [n] and questions [n]."""

    old_ND: Vectors
    new_NE: Vectors
    groups_N: list[int]
    questions_N: list[str | None]


@dataclass(frozen=True, slots=True)
class AdaptSample:
    """The facts of a keyset that get true keys, so that the others can be predicted from another keyset's."""

    keyset_id: int
    from_keyset_id: int
    corpus: str | None
    documents: Sequence[int]
    facts: Sequence[int]

    @classmethod
    def draw(
        cls, session: Session, keyset_id: int, from_keyset_id: int, corpus: str | None, size: int
    ) -> AdaptSample:
        """Draw documents with about `size` facts, and as many facts without a document, by a hash of their ids.

        A second call draws the same ids. With a `corpus` it draws no facts without a document.
        """
        documents = _sampled_documents(session, from_keyset_id, corpus, size)
        return cls(
            keyset_id,
            from_keyset_id,
            corpus,
            documents,
            [] if corpus is not None else _facts(session, from_keyset_id, size),
        )

    def queues(self, session: Session, kind: str) -> list[KeyQueue]:
        """Give the queues of the sample's documents and facts that lack a true key of the kind."""
        if kind == "context":
            return [documents_without_keys(self.keyset_id, self.corpus, self.documents)]
        asked_before = has_key_sql(self.from_keyset_id, FactKeyRow.kind == "question")
        of_documents = select(FactRow.id).where(FactRow.document_id == func.any(list(self.documents)))
        ids = {*session.scalars(of_documents.where(asked_before)), *asked_by_people(session)}
        return [
            facts_without_keys(self.keyset_id, self.facts),
            facts_without_question_keys(self.keyset_id, self.corpus, sorted(ids)),
        ]

    def pairs(self, session: Session, kind: str) -> KeyPairs:
        """Read the true keys of the kind that both keysets have in the corpus, of the sample or not."""
        old, new = aliased(FactKeyRow), aliased(FactKeyRow)
        group = func.coalesce(FactRow.document_id, -FactRow.id)
        among = predicted.predicted_stretches(session, self.keyset_id)
        statement = (
            select(group, FactRow.question, old.key, new.key)
            .join(old, and_(old.fact_id == FactRow.id, old.keyset_id == self.from_keyset_id))
            .join(new, and_(new.fact_id == FactRow.id, new.keyset_id == self.keyset_id))
            .where(old.kind == kind, new.kind == kind, ~predicted.predicted_sql(new.id, among))
            .where(live_or_tombstone_sql())
            .order_by(func.hashint8(group), FactRow.id)
            .limit(MOST_FITTED)
        )
        rows = session.execute(limit_to_corpus(statement, self.corpus)).all()
        dims = [keysets.keyset_head(session, one).dim for one in (self.from_keyset_id, self.keyset_id)]
        return KeyPairs(
            keysets.decode_keys([row[2] for row in rows], dims[0]),
            keysets.decode_keys([row[3] for row in rows], dims[1]),
            [row[0] for row in rows],
            [row[1] for row in rows],
        )


def limit_to_corpus(statement: Any, corpus: str | None) -> Any:
    """Limit a statement on facts to those of a corpus, where one is named."""
    if corpus is None:
        return statement
    return statement.join(DocumentRow, DocumentRow.id == FactRow.document_id).where(
        DocumentRow.corpus == corpus
    )


def _sampled_documents(session: Session, from_keyset_id: int, corpus: str | None, size: int) -> list[int]:
    keyed_before = has_key_sql(from_keyset_id, FactKeyRow.kind == "context")
    found = (
        select(FactRow.document_id, func.count())
        .where(FactRow.document_id.is_not(None), live_or_tombstone_sql(), keyed_before)
        .group_by(FactRow.document_id)
        .order_by(func.hashint8(FactRow.document_id), FactRow.document_id)
    )
    chosen: list[int] = []
    facts = 0
    for document_id, number in session.execute(limit_to_corpus(found, corpus).limit(size)):
        if facts >= size:
            break
        chosen.append(document_id)
        facts += number
    return chosen


def _facts(session: Session, from_keyset_id: int, size: int) -> list[int]:
    keyed_before = has_key_sql(from_keyset_id, FactKeyRow.kind == "question")
    found = select(FactRow.id).where(FactRow.document_id.is_(None), live_or_tombstone_sql(), keyed_before)
    return list(session.scalars(found.order_by(func.hashint8(FactRow.id), FactRow.id).limit(size)))


# Maps between key spaces: predicts keys of one checkpoint from those of another, fitted on facts that both
# have keyed.
#
# - `procrustes`: the rotation, or reflection, that brings the old keys nearest to the new ones. With fewer facts than
#   dimensions several do so equally well, and it is the one nearest to the identity.
# - `ridge`: the linear map of least squares, regularised towards a known map, more so the fewer facts there are: the
#   identity, where both checkpoints come from one base, or that rotation.
#
# A map is judged by its predictions for documents it was not fitted on: facts of one document have much in common.

METHODS = ("auto", "procrustes", "ridge")
FOLDS = 5
FEWEST = 10  # facts to fit a map on
_QUERIES_AT_ONCE = 256
_OF_IDENTITY = 1e-3  # by the mean square of the singular values, in a rotation that few facts leave open
_STRENGTHS = (
    0.1,
    0.3,
    1.0,
    3.0,
    10.0,
    30.0,
    100.0,
)  # of holding to the known map, by the variance of the old keys

Matrix = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class LinearMap:
    """A linear map of centred keys: the map `known_DE`, with a ridge correction unless `factors` is None.

    The correction is kept as factors of a decomposition, which serves every `strength` of regularisation.
    """

    known_DE: Matrix
    mean_D: Matrix
    mean_E: Matrix
    factors: tuple[Matrix, Matrix, Matrix] | None = None
    strength: float = 0.0

    def __call__(self, keys_ND: Vectors) -> Vectors:
        """Predict keys [n, e] from keys [n, d]. Rows are unit vectors."""
        off_ND = keys_ND - self.mean_D
        made_NE = off_ND @ self.known_DE + self.mean_E
        if self.factors is not None:
            axes_DR, lengths_R, targets_RE = self.factors
            held = self.strength * float((lengths_R**2).sum()) / len(self.known_DE)
            made_NE += ((off_ND @ axes_DR) * (lengths_R / (lengths_R**2 + held))) @ targets_RE
        return unit_rows(made_NE)


Fitter = Callable[[Vectors, Vectors], LinearMap]


@dataclass(frozen=True, slots=True)
class FittedMap:
    """A map, its method, and the key predicted for each fact by a map that was fitted without the fact's document."""

    method: str
    map: LinearMap
    held_out_NE: Vectors
    cosine: float


def unit_rows(rows: npt.NDArray[Any]) -> Vectors:
    """Give the rows at length 1; a row of zeros stays."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    units: Vectors = (rows / np.maximum(lengths, 1e-12)).astype(np.float32)
    return units


def fit_rotation(old_ND: Vectors, new_NE: Vectors) -> LinearMap:
    """Fit the rotation, or reflection, with the least squared distance to the new keys."""
    old, new, mean_D, mean_E = _centre_keys(old_ND, new_NE)
    return LinearMap(_rotation(old, new), mean_D, mean_E)


def fit_near_identity(old_ND: Vectors, new_NE: Vectors) -> LinearMap:
    """Fit a ridge regression towards the identity. The map's `strength` can be set afterwards. Widths must be equal."""
    old, new, mean_D, mean_E = _centre_keys(old_ND, new_NE)
    return _corrected_map(np.eye(old.shape[1]), old, new, mean_D, mean_E)


def fit_near_rotation(old_ND: Vectors, new_NE: Vectors) -> LinearMap:
    """Fit a ridge regression towards the rotation of `fit_rotation`; the map's `strength` can be set afterwards."""
    old, new, mean_D, mean_E = _centre_keys(old_ND, new_NE)
    return _corrected_map(_rotation(old, new), old, new, mean_D, mean_E)


def require_fit(method: str, sample: int) -> None:
    """Raise `InvalidValue` for an unknown method, and for a sample with fewer than `FEWEST` facts."""
    if method not in METHODS:
        raise InvalidValue("method", f"{method!r} is not one of {', '.join(METHODS)}")
    if sample < FEWEST:
        raise InvalidValue(
            "sample",
            f"{count_of(sample, 'fact', 'are')} too few to translate keys by. Use at least {FEWEST}",
        )


def are_documents_too_few(groups_N: Sequence[int]) -> bool:
    """Tell whether facts, given by the document of each [N], are too few or of too few documents to fit a map on."""
    return len(groups_N) < FEWEST or len(set(groups_N)) < 2


def best_map(method: str, old_ND: Vectors, new_NE: Vectors, groups_N: Sequence[int]) -> FittedMap:
    """Fit the map of this method that predicts best the keys that it was not fitted on.

    `groups_N` are the documents of the facts. No document is both fitted and predicted. Raises `InvalidValue` for too
    few facts or documents.
    """
    fold_N = _folds(groups_N)
    same_width = old_ND.shape[1] == new_NE.shape[1]
    tried = (
        one
        for name, fitter, strengths in _fitters(method, same_width)
        for one in _fit_strengths(name, fitter, strengths, old_ND, new_NE, fold_N)
    )
    return max(tried, key=lambda one: one.cosine)


def _fitters(method: str, same_width: bool) -> Iterator[tuple[str, Fitter, Sequence[float]]]:
    """Give the fitters of a method with their names and strengths; "auto" stands for all methods."""
    if method != "ridge":
        yield "procrustes", fit_rotation, (0.0,)
    if method != "procrustes":
        if same_width:
            yield "ridge to the identity", fit_near_identity, _STRENGTHS
        yield "ridge to the rotation", fit_near_rotation, _STRENGTHS


def _fit_strengths(
    name: str,
    fitter: Fitter,
    strengths: Sequence[float],
    old_ND: Vectors,
    new_NE: Vectors,
    fold_N: npt.NDArray[np.int64],
) -> Iterator[FittedMap]:
    """Yield a map at each strength, fitted on all facts, with the keys that a map fitted without each fold predicts."""
    held_out = {strength: np.zeros_like(new_NE, dtype=np.float32) for strength in strengths}
    for fold in np.unique(fold_N):
        out = fold_N == fold
        without = fitter(old_ND[~out], new_NE[~out])
        for strength, made_NE in held_out.items():
            made_NE[out] = replace(without, strength=strength)(old_ND[out])
    whole = fitter(old_ND, new_NE)
    for strength, made_NE in held_out.items():
        cosine = float(np.mean(np.einsum("nd,nd->n", made_NE, new_NE)))
        named = f"{name}, {strength:g}" if len(strengths) > 1 else name
        yield FittedMap(named, replace(whole, strength=strength), made_NE, cosine)


def _folds(groups_N: Sequence[int]) -> npt.NDArray[np.int64]:
    """Give the fold [N] of each fact for cross-validation: a run of documents by id, since neighbours share topics."""
    if are_documents_too_few(groups_N):
        raise InvalidValue(
            "sample",
            f"{count_of(len(groups_N), 'fact', 'are')} too few to translate keys by. Add facts first",
        )
    known, group_N = np.unique(np.asarray(groups_N, dtype=np.int64), return_inverse=True)
    folds: npt.NDArray[np.int64] = group_N * FOLDS // len(known)
    return folds


def _corrected_map(known_DE: Matrix, old: Matrix, new: Matrix, mean_D: Matrix, mean_E: Matrix) -> LinearMap:
    left_NR, lengths_R, axes_RD = np.linalg.svd(old, full_matrices=False)
    targets_RE = left_NR.T @ (new - old @ known_DE)
    return LinearMap(known_DE, mean_D, mean_E, (axes_RD.T, lengths_R, targets_RE), 1.0)


def measure_recall(queries_BD: Vectors, own_B: Sequence[int], keys_ND: Vectors) -> dict[int, float]:
    """Give by k, 1 and 10, the share of queries whose own key is among the k nearest. Tied keys count as nearer."""
    rank_B = np.empty(len(queries_BD), dtype=np.int64)
    for start in range(0, len(queries_BD), _QUERIES_AT_ONCE):
        rows = slice(start, start + _QUERIES_AT_ONCE)
        scores_BN = queries_BD[rows] @ keys_ND.T
        own = np.take_along_axis(scores_BN, np.asarray(own_B[rows])[:, None], axis=1)
        rank_B[rows] = (~(scores_BN < own)).sum(axis=1)
    return {k: float(np.mean(rank_B <= k)) for k in (1, 10)}


def _centre_keys(old_ND: Vectors, new_NE: Vectors) -> tuple[npt.NDArray[np.float64], ...]:
    old, new = old_ND.astype(np.float64), new_NE.astype(np.float64)
    mean_D, mean_E = old.mean(axis=0), new.mean(axis=0)
    return old - mean_D, new - mean_E, mean_D, mean_E


def _rotation(old: npt.NDArray[np.float64], new: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    product = old.T @ new
    # A little of the identity decides what the facts leave open. Without it the product of few facts has many singular
    # values of about zero, for which LAPACK sometimes finds no decomposition.
    little = _OF_IDENTITY * float(np.linalg.norm(product)) / np.sqrt(min(product.shape))
    left, _, right = np.linalg.svd(product + little * np.eye(*product.shape), full_matrices=False)
    rotation: npt.NDArray[np.float64] = left @ right
    return rotation
