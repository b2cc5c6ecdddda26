"""Lists the attributions of single lookups of stored outputs, by fact, by output or by document."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import func, select, tuple_
from sqlalchemy.orm import Session

from colmlm.kb.tables import AttributionRow, FactRow, GenerationRow


@dataclass(frozen=True, slots=True)
class AttributionRecord:
    """Lookup `ordinal` of an output. `value` is what it spliced, ``output[output_start:output_end]``.

    The value is empty where there was no hit. `document_id` is the document of the fact, if that has one. It stands in
    a list over many outputs, so it names its output, and has no history, which would be read for each.
    """

    generation_id: int
    ordinal: int
    output_start: int
    output_end: int
    outcome: str
    value: str
    fact_id: int | None
    version: int | None
    document_id: int | None
    score: float | None
    seq: int
    at: datetime


def attributions(
    session: Session,
    *,
    fact_id: int | None = None,
    generation_id: int | None = None,
    document_id: int | None = None,
    after: tuple[int, int] = (0, 0),
    limit: int = 50,
) -> list[AttributionRecord]:
    """Lists the lookups that match every given filter, by output and ordinal, past the place `after`."""
    length = AttributionRow.output_end - AttributionRow.output_start
    value = func.substr(GenerationRow.output, AttributionRow.output_start + 1, length).label("value")
    statement = (
        select(AttributionRow, value, GenerationRow.seq, GenerationRow.at, FactRow.document_id)
        .join(GenerationRow, GenerationRow.id == AttributionRow.generation_id)
        .outerjoin(FactRow, FactRow.id == AttributionRow.fact_id)
        .where(tuple_(AttributionRow.generation_id, AttributionRow.ordinal) > after)
        .order_by(AttributionRow.generation_id, AttributionRow.ordinal)
        .limit(limit)
    )
    for column, wanted in (
        (AttributionRow.fact_id, fact_id),
        (AttributionRow.generation_id, generation_id),
        (FactRow.document_id, document_id),
    ):
        if wanted is not None:
            statement = statement.where(column == wanted)
    return [
        AttributionRecord(
            generation_id=looked_up.generation_id,
            ordinal=looked_up.ordinal,
            output_start=looked_up.output_start,
            output_end=looked_up.output_end,
            outcome=looked_up.outcome,
            value=said,
            fact_id=looked_up.fact_id,
            version=looked_up.fact_version,
            document_id=read_from,
            score=looked_up.score,
            seq=seq,
            at=at.astimezone(UTC),
        )
        for looked_up, said, seq, at, read_from in session.execute(statement)
    ]
