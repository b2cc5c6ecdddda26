"""Impact: lists the stored outputs that facts were spliced into, and whether the spliced values are still current."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC

from sqlalchemy import func, select, tuple_
from sqlalchemy.orm import Session

from colmlm.kb.errors import FactNotFound
from colmlm.kb.evidence.records import Impact, ImpactedOutput, SelectedImpact
from colmlm.kb.facts import edits as facts
from colmlm.kb.facts import reading
from colmlm.kb.selectors import Selector, select_facts
from colmlm.kb.tables import AttributionRow, FactRow, GenerationRow

Place = tuple[int, int]  # the place of a lookup: the output's id, and the lookup's ordinal in it


def impact_of(session: Session, fact_id: int, *, after: Place = (0, 0), limit: int | None = None) -> Impact:
    """Lists the splices of a fact, past `after`. Raises `FactNotFound`."""
    fact = session.get(FactRow, fact_id) if 0 < fact_id <= facts.MAX_ID else None
    if fact is None:
        raise FactNotFound([fact_id])
    return Impact(
        fact_id=fact_id,
        is_live=fact.deleted_seq is None,
        erased_seq=fact.erased_seq,
        outputs=_uses(session, [fact_id], after, limit),
    )


def impact_of_selection(
    session: Session, selector: Selector, *, after: Place = (0, 0), limit: int | None = None
) -> SelectedImpact:
    """Lists the splices of the live facts that a selector chooses, past `after`. Choosing none is no error."""
    fact_ids = select_facts(session, selector, allow_empty=True)
    used = select(func.count(AttributionRow.generation_id.distinct()))
    return SelectedImpact(
        num_facts=len(fact_ids),
        num_outputs=session.scalar(used.where(AttributionRow.fact_id == func.any(fact_ids))) or 0,
        outputs=_uses(session, fact_ids, after, limit),
    )


def _uses(
    session: Session, fact_ids: Sequence[int], after: Place, limit: int | None
) -> tuple[ImpactedOutput, ...]:
    statement = (
        select(AttributionRow, GenerationRow, FactRow)
        .join(GenerationRow, GenerationRow.id == AttributionRow.generation_id)
        .join(FactRow, FactRow.id == AttributionRow.fact_id)
        .where(AttributionRow.fact_id == func.any(list(fact_ids)))
        .where(tuple_(AttributionRow.generation_id, AttributionRow.ordinal) > after)
        .order_by(AttributionRow.generation_id, AttributionRow.ordinal)
        .limit(limit)
    )
    uses = session.execute(statement).all()
    records = reading.fact_records(session, sorted({fact.id for _, _, fact in uses}))
    live = {fact_id: record.value for fact_id, record in records.items() if record.deleted_seq is None}
    return tuple(_output(used, stored, fact, live.get(fact.id)) for used, stored, fact in uses)


def _output(
    used: AttributionRow, stored: GenerationRow, fact: FactRow, live_value: str | None
) -> ImpactedOutput:
    assert used.fact_version is not None, "a hit without a version cannot be stored"
    said = stored.output[used.output_start : used.output_end]
    if fact.erased_seq is not None:
        since = "erased"
    elif fact.deleted_seq is not None:
        since = "deleted"
    else:
        now = None if live_value is None else live_value[used.part_start : used.part_end]
        since = "current" if said == now else "corrected"
    return ImpactedOutput(
        fact_id=fact.id,
        generation_id=stored.id,
        ordinal=used.ordinal,
        prompt=stored.prompt,
        output=stored.output,
        output_start=used.output_start,
        output_end=used.output_end,
        version=used.fact_version,
        seq=stored.seq,
        at=stored.at.astimezone(UTC),
        since=since,
    )
