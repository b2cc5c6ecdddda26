"""Takes a question from a stored output: what was asked, with what was said as the expected value."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from colmlm.kb.errors import GenerationNotFound, InvalidQuestions
from colmlm.kb.facts.redaction import MARK
from colmlm.kb.questions.reading import MAX_ID
from colmlm.kb.questions.records import DraftQuestion
from colmlm.kb.tables import AttributionRow, GenerationRow, answer_modes

_BEFORE, _BEHIND = "Question:", "Answer:"  # of a prompt that asks a question


def taken(session: Session, generation_id: int) -> tuple[DraftQuestion, tuple[int, ...]]:
    """Gives the question of an output with its answer, or of a text the first value in it, and the facts that said it.

    Where nothing was said, nothing is expected. Raises `GenerationNotFound`, and `InvalidQuestions` where a part of it
    was erased.
    """
    row = session.get(GenerationRow, generation_id) if 0 < generation_id <= MAX_ID else None
    if row is None:
        raise GenerationNotFound(generation_id)
    hits = session.scalars(
        select(AttributionRow)
        .where(AttributionRow.generation_id == generation_id, AttributionRow.outcome == "hit")
        .order_by(AttributionRow.ordinal)
    ).all()
    if row.mode in answer_modes:
        said = row.output
    else:
        hits = hits[:1]
        said = row.output[hits[0].output_start : hits[0].output_end] if hits else ""
    question = row.prompt.strip().removeprefix(_BEFORE).removesuffix(_BEHIND).strip()
    if MARK in question or MARK in said:
        raise InvalidQuestions(f"output {generation_id} said what was erased since; add the question by hand")
    facts = (hit.fact_id for hit in hits if hit.fact_id is not None)
    return DraftQuestion(question, (said.strip(),) if said.strip() else ()), tuple(facts)
