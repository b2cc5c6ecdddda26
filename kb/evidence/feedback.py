"""Feedback: what people say of outputs, a thumb with a comment and the value that is right. Session first.

Each person has one thumb for an output, and the last one counts. An output that somebody calls wrong is a miss.
"""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.orm import Session

from colmlm.kb.errors import GenerationNotFound, InvalidValue
from colmlm.kb.evidence.records import Feedback, NewFeedback
from colmlm.kb.facts import edits, suppression
from colmlm.kb.facts.erased_texts import TextOrigin
from colmlm.kb.facts.quotations import redacted_since
from colmlm.kb.log import audit
from colmlm.kb.misses import noting
from colmlm.kb.tables import AttributionRow, FeedbackRow, GenerationRow, thumbs

MOST_CHARACTERS = 2_000


def give(session: Session, generation_id: int, made: NewFeedback, actor: str, on_behalf_of: str) -> Feedback:
    """Keeps what somebody says of an output, without what was erased of the facts in it.

    Raises `GenerationNotFound` or `InvalidValue`.
    """
    _check(made, actor, on_behalf_of)
    suppression.hold_off_erasure(session)
    if made.thumb == "up":  # the lock of groups is taken before an output's
        noting.lock_groups(session)
    _lock(session, generation_id)
    origin = TextOrigin(_facts(session, generation_id), at=datetime.now(UTC))
    said = {name: redacted_since(session, getattr(made, name), origin) for name in ("comment", "value")}
    values = {"thumb": made.thumb, **said, "at": func.now()}
    behalf = redacted_since(session, on_behalf_of, origin)
    who = {"generation_id": generation_id, "actor": actor, "on_behalf_of": behalf}
    statement = upsert(FeedbackRow).values({**who, **values})
    kept = session.scalars(
        statement.on_conflict_do_update(index_elements=list(who), set_=values).returning(FeedbackRow),
        execution_options={"populate_existing": True},
    ).one()
    _note(session, generation_id)
    return as_record(kept)


def _lock(session: Session, generation_id: int) -> None:
    """Lets one thumb at a time be given to an output, since each decides by all of them whether that is a miss."""
    output = select(GenerationRow.id).where(GenerationRow.id == generation_id)
    is_storable = 0 < generation_id <= edits.MAX_ID
    if not is_storable or session.scalar(output.with_for_update(key_share=True)) is None:
        raise GenerationNotFound(generation_id)


def _check(made: NewFeedback, actor: str, on_behalf_of: str) -> None:
    if made.thumb not in thumbs:
        raise InvalidValue("thumb", f"{made.thumb!r} is not one of {', '.join(thumbs)}")
    for name in ("comment", "value"):
        if (said := getattr(made, name)) is not None:
            audit.check_text(name, said, blank=False, limit=MOST_CHARACTERS)
    audit.check_name("actor", actor)
    if on_behalf_of:
        audit.check_name("name on whose behalf this is said", on_behalf_of)


def _note(session: Session, generation_id: int) -> None:
    """Makes an output a miss, or no longer one, as somebody calls it wrong or nobody does."""
    down = select(FeedbackRow.id).where(
        FeedbackRow.generation_id == generation_id, FeedbackRow.thumb == "down"
    )
    if session.scalars(down.limit(1)).first() is None:
        noting.forget_wrong(session, generation_id)
    else:
        noting.note_wrong(session, generation_id)


def _facts(session: Session, generation_id: int) -> frozenset[int]:
    spliced = select(AttributionRow.fact_id).where(
        AttributionRow.generation_id == generation_id, AttributionRow.fact_id.is_not(None)
    )
    return frozenset(fact_id for fact_id in session.scalars(spliced) if fact_id is not None)


def of_output(session: Session, generation_id: int) -> tuple[Feedback, ...]:
    """Gives what was said of an output, oldest first."""
    said = select(FeedbackRow).where(FeedbackRow.generation_id == generation_id).order_by(FeedbackRow.at)
    return tuple(map(as_record, session.scalars(said)))


def as_record(kept: FeedbackRow) -> Feedback:
    return Feedback(
        generation_id=kept.generation_id,
        thumb=kept.thumb,
        comment=kept.comment,
        value=kept.value,
        actor=kept.actor,
        on_behalf_of=kept.on_behalf_of or None,
        at=kept.at.astimezone(UTC),
    )
