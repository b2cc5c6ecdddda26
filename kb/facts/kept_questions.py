"""Redacts kept questions, their expected values, and what runs were answered. Session first; nothing commits."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from colmlm.kb.facts.erased_texts import ErasedTexts, TextOrigin
from colmlm.kb.facts.redaction import MARK, redacted_columns
from colmlm.kb.tables import FactRow, QuestionOutcomeRow, QuestionRow, content_of
from colmlm.kb.texts.wording import Finder, Phrases, Together

FinderOf = Callable[[TextOrigin], Finder]
RedactedRows = Iterator[
    tuple[Any, dict[str, Any]]
]  # rows that say an erased fact, and their redacted columns

_AT_ONCE = 1000


def redact_kept_questions(session: Session, finder_of: FinderOf) -> RedactedRows:
    statement = select(QuestionRow).order_by(QuestionRow.id)
    for row in session.scalars(statement.execution_options(populate_existing=True)):
        said = TextOrigin(frozenset(row.fact_ids), at=row.at)
        if values := redacted_columns(row, content_of(QuestionRow), finder_of(said)):
            yield row, values


def redact_kept_outcomes(session: Session, finder_of: FinderOf, gone: Collection[int]) -> RedactedRows:
    """Yields outcomes of runs. Where one of these facts answered, the value is redacted, however little it says."""
    statement = select(QuestionOutcomeRow).order_by(QuestionOutcomeRow.id)
    options = {"populate_existing": True, "yield_per": _AT_ONCE}
    for row in session.scalars(statement.execution_options(**options)):
        if values := _of_outcome(row, finder_of, gone):
            yield row, values


def _of_outcome(row: QuestionOutcomeRow, finder_of: FinderOf, gone: Collection[int]) -> dict[str, Any]:
    finder = finder_of(TextOrigin(frozenset(row.fact_ids), seq=row.seq))
    if row.value and any(fact_id in gone for fact_id in row.fact_ids):
        finder = Together(finder, Phrases([row.value.replace(MARK, " ")]))
    return redacted_columns(row, content_of(QuestionOutcomeRow), finder)


def erased_lately(session: Session, fact_ids: Collection[int]) -> Finder:
    """Gives a finder of what must not be stored now in a question that names these facts.

    The transaction must hold erasures off.
    """
    said = TextOrigin(frozenset(fact_ids), at=datetime.now(UTC))
    return ErasedTexts.counting(session, said).within(said)


def redact_outcomes(session: Session, rows: Sequence[QuestionOutcomeRow]) -> None:
    """Redacts outcomes of a run that are about to be stored, of what was erased since it began."""
    used = {fact_id for row in rows for fact_id in row.fact_ids}
    is_erased = FactRow.id == func.any(sorted(used)), FactRow.erased_seq.is_not(None)
    gone = set(session.scalars(select(FactRow.id).where(*is_erased)))
    since = min((row.seq for row in rows), default=0)
    texts = ErasedTexts.counting(session, TextOrigin(frozenset(gone), seq=since))
    if not (gone or texts):
        return
    for row in rows:
        for name, value in _of_outcome(row, texts.within, gone).items():
            setattr(row, name, value)
