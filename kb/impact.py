"""Impact: every stored output that a fact was spliced into, and whether what it says still holds."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from sqlalchemy import select

from kb import facts
from kb.errors import FactNotFound
from kb.tables import Attribution, Fact, Generation

if TYPE_CHECKING:
    from kb.service import KnowledgeBase


@dataclass(frozen=True, slots=True)
class ImpactedOutput:
    """A use: ``output[output_start:output_end]`` is version `version` of the fact.

    `since` is what became of that: current, corrected (another version is live), deleted or erased.
    """

    generation_id: int
    prompt: str
    output: str
    output_start: int
    output_end: int
    version: int
    seq: int
    at: datetime
    since: str


@dataclass(frozen=True, slots=True)
class Impact:
    """A fact and its uses, oldest first."""

    fact_id: int
    is_live: bool
    erased_seq: int | None
    outputs: tuple[ImpactedOutput, ...]


def impact_of(kb: KnowledgeBase, fact_id: int) -> Impact:
    """What a fact was used for. Raises `FactNotFound`."""
    with kb.sessions() as session:
        fact = session.get(Fact, fact_id) if 0 < fact_id <= facts.MAX_ID else None
        if fact is None:
            raise FactNotFound([fact_id])
        record = facts.fact_records(session, [fact_id]).get(fact_id)
        uses = session.execute(
            select(Attribution, Generation)
            .join(Generation, Generation.id == Attribution.generation_id)
            .where(Attribution.fact_id == fact_id)
            .order_by(Attribution.generation_id, Attribution.ordinal)
        ).all()
        live_value = record.value if record and record.deleted_seq is None else None
        return Impact(
            fact_id=fact_id,
            is_live=fact.deleted_seq is None,
            erased_seq=fact.erased_seq,
            outputs=tuple(_output(used, stored, fact, live_value) for used, stored in uses),
        )


def _output(used: Attribution, stored: Generation, fact: Fact, live_value: str | None) -> ImpactedOutput:
    assert used.fact_version is not None, "a hit without a version cannot be stored"
    said = stored.output[used.output_start : used.output_end]
    if fact.erased_seq is not None:
        since = "erased"
    elif fact.deleted_seq is not None:
        since = "deleted"
    else:
        since = "current" if said == live_value else "corrected"
    return ImpactedOutput(
        generation_id=stored.id,
        prompt=stored.prompt,
        output=stored.output,
        output_start=used.output_start,
        output_end=used.output_end,
        version=used.fact_version,
        seq=stored.seq,
        at=stored.at.astimezone(UTC),
        since=since,
    )
