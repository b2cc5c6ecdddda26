"""Calibration: chooses the score below which a lookup is *no match*, for one keyset and from its own facts.

Every sampled question is scored twice against the keys of live facts:

- *genuine*: the best score of a fact with the value of the fact it asks for, which a lookup should accept;
- *impostor*: the best score of any fact with another value, which is what a lookup would find once the fact it
  asks for and all that say the same are deleted, and which it should refuse.

A false reject is a genuine score below the threshold, a false accept an impostor score at or above it.
Cosines differ from checkpoint to checkpoint (the paper's 0.7 refuses half of the right answers of a small
one), so no threshold suits all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from sqlalchemy import and_, exists, func, or_, select, update
from sqlalchemy.orm import Session

from colmlm.kb.errors import InvalidValue
from colmlm.kb.tables import ChangeRow, FactKeyRow, FactPastRow, FactRow, KeysetRow

Scores = npt.NDArray[np.float64]
Vectors = npt.NDArray[np.float32]
_CHUNK = 256  # questions scored at once, which bounds the memory of [questions, keys]
_NOT_ASKED = -1  # the class of values that no question asks for

# Questions that hardly distinguish facts, as generated ones may be, make both error rates add up to about 1 at any
# threshold, and the least sum may refuse nearly everything. A knowledge base that answers nothing is useless, and one
# that refuses nothing answers with facts about something else.
_MOST_REJECTS = 1 / 3


@dataclass(frozen=True, slots=True)
class Calibration:
    """A threshold and its error rates on the questions it was chosen from.

    `right_first` is the share of questions whose best fact has the right value, which no threshold can raise.
    """

    threshold: float
    false_accept_rate: float
    false_reject_rate: float
    right_first: float
    num_questions: int


def calibrate_threshold(
    queries_BD: Vectors,
    said: Sequence[str],
    keys: Iterable[tuple[Sequence[str], Vectors]],
    *,
    false_accept_rate: float | None = None,
) -> Calibration:
    """Choose the threshold for queries [B, d] that ask for facts with the values `said` [B].

    `keys` are those of live facts, in batches [N, d] with the facts' values [N], of which one is held at a time.
    Without a rate it is the threshold with the least mean of both error rates. If that would refuse more than a third
    of the genuine scores, it is the highest that does not. With a rate it is the lowest that accepts no more than this
    share of impostors. Raises `InvalidValue` without questions, and where all facts have one value, since then no wrong
    answer exists.
    """
    genuine, impostor = score_pairs(queries_BD, said, keys)
    if not len(genuine) or not np.isfinite(impostor).any():
        raise InvalidValue(
            "threshold",
            "calibration needs questions, and facts with keys and at least two values. Add facts first",
        )
    threshold = (
        _threshold(genuine, impostor) if false_accept_rate is None else _at_rate(impostor, false_accept_rate)
    )
    return Calibration(
        threshold=threshold,
        false_accept_rate=float(np.mean(impostor >= threshold)),
        false_reject_rate=float(np.mean(genuine < threshold)),
        right_first=float(np.mean(genuine > impostor)),
        num_questions=len(genuine),
    )


def score_pairs(
    queries_BD: Vectors, said: Sequence[str], keys: Iterable[tuple[Sequence[str], Vectors]]
) -> tuple[Scores, Scores]:
    """Give each question's best score with a key of its value (genuine) and of another (impostor); -inf for none."""
    forms = [normalise_value(value) for value in said]
    classes = {form: number for number, form in enumerate(dict.fromkeys(forms))}
    class_B = np.array([classes[form] for form in forms], dtype=np.int64)
    genuine, impostor = (np.full(len(said), -np.inf) for _ in range(2))
    for values, keys_ND in keys:
        class_N = np.array(
            [classes.get(normalise_value(value), _NOT_ASKED) for value in values], dtype=np.int64
        )
        for start in range(0, len(said), _CHUNK):
            rows = slice(start, start + _CHUNK)
            scores_BN = (queries_BD[rows] @ keys_ND.T).astype(np.float64)
            same_BN = class_B[rows, None] == class_N[None, :]
            _raise_best_scores(genuine[rows], np.where(same_BN, scores_BN, -np.inf))
            _raise_best_scores(impostor[rows], np.where(same_BN, -np.inf, scores_BN))
    return genuine, impostor


def _raise_best_scores(best: Scores, scores_BN: npt.NDArray[np.float64]) -> None:
    np.maximum(best, scores_BN.max(axis=1, initial=-np.inf), out=best)


def normalise_value(value: str) -> str:
    """Normalise a value for comparison: no case, runs of blanks, or punctuation at the ends."""
    return " ".join(value.casefold().split()).strip(" .,;:!?\"'")


def _threshold(genuine: Scores, impostor: Scores) -> float:
    """Give the threshold with the least sum of error rates, but none that refuses more than is allowed."""
    candidates = np.unique(np.concatenate([genuine[np.isfinite(genuine)], impostor[np.isfinite(impostor)]]))
    edges = np.concatenate(
        [candidates[:1], (candidates[1:] + candidates[:-1]) / 2, np.nextafter(candidates[-1:], 2)]
    )
    rejects = np.searchsorted(np.sort(genuine), edges, side="left") / len(genuine)
    accepts = 1 - np.searchsorted(np.sort(impostor), edges, side="left") / len(impostor)
    highest = int(np.searchsorted(rejects, max(_MOST_REJECTS, rejects[0]), side="right")) - 1
    return _as_cosine(edges[min(int(np.argmin(rejects + accepts)), highest)])


def _at_rate(impostor: Scores, rate: float) -> float:
    """Give the lowest threshold that accepts at most this share of the impostors."""
    descending = np.sort(impostor)[::-1]
    allowed = int(np.floor(rate * len(descending) + 1e-9))
    if allowed >= len(descending):
        return -1.0
    # The threshold lies just above the first impostor that must be refused, so equal scores are refused too.
    return _as_cosine(np.nextafter(descending[allowed], 2))


def _as_cosine(threshold: float) -> float:
    """Bring a threshold between -1 and 1, since rounding may carry an inner product of unit vectors past 1."""
    return float(min(1.0, max(-1.0, threshold)))


# Question keys of documents' facts: those that people asked for, and those of all facts where a keyset has
# them.
#
# A question that a person wrote gets a key in every keyset. Questions of an annotator get keys only where a
# keyset is asked for them: once it has one, every later rekey makes them for all its facts.
#
# To find that there is none, the index of all keys is read, tens of thousands of pages among ten million. So it is
# noted up to which key there was none, and only later keys are read.

_FEW = 10_000  # keys since, up to which each is looked at; of more the whole index takes less, as it leaves out rows
_NOTED_EACH = 500  # keys, so that not each fact that is added writes a note


def asked_by_person_condition() -> Any:
    """Build a condition (SQL): a person wrote this fact's question, or marked the fact.

    A former question that an undo brought back counts.
    """
    asked_otherwise = FactPastRow.question.is_distinct_from(FactRow.question)
    changed = exists().where(FactPastRow.fact_id == FactRow.id, asked_otherwise)
    marked = exists().where(ChangeRow.seq == FactRow.created_seq, ChangeRow.kind == "insert")
    of_document = FactRow.document_id.is_not(None), FactRow.question.is_not(None)
    return and_(*of_document, or_(changed.correlate(FactRow), marked.correlate(FactRow)))


def mended_or_marked() -> Any:
    """Build a statement (SQL) that lists the few facts for which `asked_by_person_condition` may hold."""
    marking = ChangeRow.kind == "insert", ChangeRow.payload.has_key("places")
    marked = select(func.unnest(ChangeRow.fact_ids).label("fact_id")).where(*marking)
    return select(FactPastRow.fact_id).union(marked)


def asked_by_people(session: Session, among: Sequence[int] | None = None) -> list[int]:
    """List the ids of documents' facts whose questions people wrote, only those in `among` where that is given."""
    which = FactRow.id.in_(mended_or_marked()) if among is None else FactRow.id == func.any(list(among))
    return list(session.scalars(select(FactRow.id).where(which, asked_by_person_condition())))


def has_question_keys(session: Session, keyset_id: int) -> bool:
    """Tell whether this keyset has question keys of documents' facts, other than of questions that people wrote."""
    return _seek_question_keys(session, keyset_id).found


def seek_question_keys(session: Session, keyset_id: int) -> bool:
    """Tell the same as `has_question_keys`; where there are none, store now and then the last key that was checked."""
    sought = _seek_question_keys(session, keyset_id)
    if not sought.found and sought.since > _NOTED_EACH:
        note = update(KeysetRow).where(KeysetRow.id == keyset_id)
        session.execute(note.values(no_question_keys_upto=sought.last))
    return sought.found


def question_keys(keyset_id: Any) -> Any:
    """Build a condition (SQL): a keyset has question keys of documents' facts whose questions no person wrote."""
    generated = select(FactRow.id).where(FactRow.document_id.is_not(None), ~asked_by_person_condition())
    of_documents = FactKeyRow.fact_id.in_(generated)
    return exists().where(FactKeyRow.keyset_id == keyset_id, FactKeyRow.kind == "question", of_documents)


@dataclass(frozen=True, slots=True)
class _KeySearch:
    """A search's result: whether a question key was `found`, the `last` key id, and how far past the note it is."""

    found: bool
    last: int
    since: int


def _seek_question_keys(session: Session, keyset_id: int) -> _KeySearch:
    # Keys get their ids while the log is locked, so that none below the last one is still to be committed.
    last = select(func.max(FactKeyRow.id)).where(FactKeyRow.keyset_id == keyset_id).scalar_subquery()
    ids = select(func.coalesce(last, 0), KeysetRow.no_question_keys_upto).where(KeysetRow.id == keyset_id)
    newest, upto = session.execute(ids).one_or_none() or (0, None)
    since, which = newest - (upto or 0), question_keys(keyset_id)
    if upto is not None and since <= _FEW:
        which = which.where(FactKeyRow.id > upto)
    return _KeySearch(bool(session.scalar(select(which))), newest, since)
