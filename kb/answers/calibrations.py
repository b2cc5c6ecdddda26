"""Stored calibrations: the score from which a base answers, what was measured, and what speaks against it by now."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Unpack

import msgspec
from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from colmlm.kb.answers.reading import Confidence, JudgedReader
from colmlm.kb.answers.records import AnswerCalibration, AnswerThreshold, MeasuredAnswers
from colmlm.kb.errors import count_of
from colmlm.kb.keys.calibration import has_question_keys
from colmlm.kb.keys.keysets import active_keyset_id
from colmlm.kb.log import audit
from colmlm.kb.log.records import OnRecord
from colmlm.kb.store.store import Store
from colmlm.kb.store.waits import retry_on_contention
from colmlm.kb.tables import AnswerCalibrationRow, ChangeRow

KIND = "answer-threshold"
_NEWEST = select(AnswerCalibrationRow).order_by(AnswerCalibrationRow.id.desc()).limit(1)


def confidence_of_base(session: Session, reader: JudgedReader) -> Confidence:
    """Give the reader's confidence with this base's own threshold, if one was measured with this reader."""
    row = session.scalar(_NEWEST)
    if row is None or row.reader != reader.digest:
        return reader.confidence
    return replace(reader.confidence, threshold=row.threshold)


@dataclass(frozen=True, slots=True)
class AnswerCalibrations:
    """The calibrations of a store. `reader` is the digest of the present reader, `shipped` its own threshold."""

    store: Store
    reader: str
    shipped: float

    def standing(self) -> AnswerThreshold:
        """Give the threshold of answers in force, with the stored calibration and the doubts about it."""
        with self.store.sessions() as session:
            row = session.scalar(_NEWEST)
            if row is None:
                return AnswerThreshold(self.shipped, False, self.shipped, None)
            kept = msgspec.convert({**row.report, "reader": row.reader, "seq": row.seq}, AnswerCalibration)
            is_ours = row.reader == self.reader
            threshold = row.threshold if is_ours else self.shipped
            return AnswerThreshold(
                threshold, is_ours, self.shipped, kept, tuple(_doubts(session, kept, is_ours))
            )

    @retry_on_contention
    def store_measured(
        self,
        measured: MeasuredAnswers,
        *,
        given: int,
        corpora: tuple[str, ...],
        seconds: float,
        question_set: str | None = None,
        **who: Unpack[OnRecord],
    ) -> int:
        """Store the measured threshold, from which every process answers from now on; give the change's number."""
        with self.store.sessions.begin() as session:
            pending = audit.begin_change(session, **who)
            keyset_id = active_keyset_id(session)
            report = {
                "measured": asdict(measured), "given": given, "corpora": corpora, "seconds": seconds,
                "question_set": question_set,
                "keyset_id": keyset_id,
                "question_keys": keyset_id is not None and has_question_keys(session, keyset_id),
            }  # fmt: skip
            threshold = measured.here.threshold
            session.add(
                AnswerCalibrationRow(seq=pending.seq, reader=self.reader, threshold=threshold, report=report)
            )
            # Numbers are stored as text, since JSON may give a float back in another spelling, which breaks the hash.
            return audit.append_change(
                session, pending, KIND, payload=_floats_as_text({"threshold": threshold, **report})
            )

    @retry_on_contention
    def drop(self, **who: Unpack[OnRecord]) -> AnswerThreshold:
        """Return to the shipped threshold, and give the one in force; log nothing if none was stored."""
        with self.store.sessions.begin() as session:
            if session.scalar(_NEWEST) is not None:
                pending = audit.begin_change(session, **who)
                session.execute(delete(AnswerCalibrationRow))
                audit.append_change(session, pending, KIND, payload={"threshold": None})
        return self.standing()


def _floats_as_text(said: Any) -> Any:
    if isinstance(said, dict):
        return {name: _floats_as_text(value) for name, value in said.items()}
    return repr(said) if isinstance(said, float) else said


def _doubts(session: Session, kept: AnswerCalibration, is_ours: bool) -> Iterator[str]:
    if not is_ours:
        yield "It was made with another reader and does not count."
    keyset_id = active_keyset_id(session)
    has_questions = keyset_id is not None and has_question_keys(session, keyset_id)
    if (keyset_id, has_questions) != (kept.keyset_id, kept.question_keys):
        yield "It was made with other keys."
    ingests = select(func.count()).where(ChangeRow.seq > kept.seq, ChangeRow.kind == "ingest")
    if number := session.scalar(ingests):
        yield f"Documents were added since, in {count_of(number, 'change')}."
