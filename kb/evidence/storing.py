"""Storing: keeps outputs with their splices, in as few statements as it can, since every output waits for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from sqlalchemy import Insert, case, func, insert, select
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.orm import Session

from colmlm.kb.errors import InvalidValue, refusals
from colmlm.kb.evidence.records import Feedback, NewFeedback, NewOutput, Splice
from colmlm.kb.facts import edits, suppression
from colmlm.kb.facts import edits as facts
from colmlm.kb.facts.redaction import is_quoted, marked_spans, stored_stretch
from colmlm.kb.facts.suppression import ErasedTexts, TextOrigin
from colmlm.kb.log import audit
from colmlm.kb.lookup.options import filter_of
from colmlm.kb.misses.listing import forget_wrong, lock_groups, note_miss, note_wrong
from colmlm.kb.principal import current_origin, scope_of_caller
from colmlm.kb.removal.quotations import redact_for_origin, without_quotations
from colmlm.kb.tables import (
    AttributionRow,
    FactRow,
    FactVersionRow,
    FeedbackRow,
    GenerationRow,
    KeysetRow,
    answer_modes,
    copy_columns,
    thumbs,
)
from colmlm.kb.texts.wording import Span


@dataclass(frozen=True, slots=True)
class StoredOutput:
    """The row of an output, and the rows of its lookups by ordinal."""

    output: GenerationRow
    lookups: Sequence[AttributionRow]


def record_output(session: Session, generation: NewOutput) -> StoredOutput:
    """Store an output with its splices. Raises `InvalidSplice` where a span is not its fact's value.

    Raises `InvalidValue` where the words between the splices are not those of the document that the output quotes.
    Splices of facts that were erased meanwhile are stored redacted: the output stays as evidence without the erased
    text. Their spans are not compared with the value, since the result would confirm a guess.
    """
    for name in ("prompt", "output"):
        audit.check_text(name, getattr(generation, name), limit=10_000_000)
    suppression.hold_off_erasure(session)
    erased = check_splices(session, generation)
    check_quotation(session, generation)
    generation, redacted_seq = redact_erased(session, generation, erased)
    output = session.scalars(_output(generation, redacted_seq).returning(GenerationRow)).one()
    rows = [_lookup_row(output.id, ordinal, splice) for ordinal, splice in enumerate(generation.splices)]
    lookups = session.scalars(_LOOKUPS, rows).all() if rows else ()
    missed = [n for n, splice in enumerate(generation.splices) if splice.outcome == "no_match"]
    note_miss(session, output.id, missed)
    return StoredOutput(output, sorted(lookups, key=lambda lookup: lookup.ordinal))


# Rows with and without a fact go in by one statement.
_LOOKUPS = insert(AttributionRow).returning(AttributionRow).execution_options(render_nulls=True)


def _output(made: NewOutput, redacted_seq: int | None) -> Insert:
    keyset = select(KeysetRow.id).where(
        KeysetRow.checkpoint_id == made.checkpoint_id, KeysetRow.state != "retired"
    )
    return insert(GenerationRow).values(
        prompt=made.prompt,
        output=made.output,
        checkpoint_id=made.checkpoint_id,
        keyset_id=keyset.limit(1).scalar_subquery(),
        seq=made.seq,
        mode=made.mode,
        redacted_seq=redacted_seq,
        document_id=made.quotes.document_id if made.quotes else None,
        quoted_start=made.quotes.start if made.quotes else None,
        quoted_end=made.quotes.end if made.quotes else None,
        ranking=made.ranking,
        is_scoped=scope_of_caller() is not None,
        principal=current_origin().principal.to_json(),
        **filter_of(made),
    )


def _lookup_row(generation_id: int, ordinal: int, splice: Splice) -> dict[str, object]:
    return {
        "generation_id": generation_id,
        "ordinal": ordinal,
        "output_start": splice.output_start,
        "output_end": splice.output_end,
        "outcome": splice.outcome,
        "fact_id": splice.fact_id,
        "fact_version": splice.version,
        "score": splice.score,
        "query": splice.query,
        "part_start": splice.part_start,
        "part_end": splice.part_end,
        "quoted_start": splice.quoted_start,
        "quoted_end": splice.quoted_end,
    }


# Redacts new outputs of what was erased while they were decoded.


def redact_erased(
    session: Session, made: NewOutput, erased: Mapping[int, int]
) -> tuple[NewOutput, int | None]:
    """Redact an output before it is stored; give it with the number of the last erasure that redacted it, or None.

    `hold_off_erasure` must have locked erasures out. It redacts splices of `erased` facts (id to erasing change), texts
    erased since the lookups, and what is redacted in the quoted document.
    """
    texts = ErasedTexts.forbidden_in(session, said := TextOrigin(frozenset(erased), seq=made.seq))
    marks = _redacted_spans(session, made)
    if not (erased or texts or marks):
        return made, None
    prompt, output = without_quotations(
        made.prompt, made.output, made.splices, erased.keys(), texts.finder_for(said), marks
    )
    if not erased and (prompt, output) == (made.prompt, made.output):
        return made, None
    # A query is made from what stands before it, and all lookups of an answer have the one of its question.
    all_go = prompt != made.prompt or (made.mode in answer_modes and bool(erased))
    splices = tuple(
        replace(s, query=None) if all_go or s.outcome != "hit" or s.fact_id in erased else s
        for s in made.splices
    )
    last = max(texts.last, *erased.values(), 0) or _last_erasure(session)
    return replace(made, prompt=prompt, output=output, splices=splices), last


def _redacted_spans(session: Session, made: NewOutput) -> list[Span]:
    """Give the spans of an output whose text is redacted in the document that it quotes; none if it quotes none."""
    if (quotes := made.quotes) is None:
        return []
    text = stored_stretch(session, quotes.document_id, quotes.start, quotes.end)
    return marked_spans(len(made.output), (quotes.start, quotes.end), made.splices, text or "")


def _last_erasure(session: Session) -> int | None:
    return session.scalar(select(func.max(FactRow.erased_seq)))


# Verbatim: checks that an output that is to be stored says, at each place, what it claims to have from there.

OUTCOMES = ("hit", "no_match", "abstained")


def check_splices(session: Session, generation: NewOutput) -> dict[int, int]:
    """Raise `InvalidSplice` for a wrong splice; give the erasing change of each erased fact in them, by its id."""
    values, erased = _values(session, [s.fact_id for s in generation.splices if s.fact_id is not None])
    for ordinal, splice in enumerate(generation.splices):
        start, end = splice.output_start, splice.output_end
        if splice.outcome not in OUTCOMES:
            raise refusals.invalid_splice(
                ordinal, f"its outcome is {splice.outcome!r}, not one of {', '.join(OUTCOMES)}"
            )
        if not 0 <= start <= end <= len(generation.output):
            raise refusals.invalid_splice(ordinal, f"[{start}, {end}) is outside the output")
        if splice.outcome != "hit":
            if splice.fact_id is not None or splice.version is not None or start != end:
                raise refusals.invalid_splice(ordinal, "it has a fact, a version or a span, but no hit")
        elif splice.fact_id is None or splice.version is None:
            raise refusals.invalid_splice(ordinal, "the hit has no fact or no version")
        elif (splice.fact_id, splice.version) not in values:
            raise refusals.invalid_splice(
                ordinal, f"version {splice.version} of fact {splice.fact_id} does not exist"
            )
        elif (value := values[splice.fact_id, splice.version]) is None:
            continue
        elif not _is_part(splice, value) or splice.part_of_value(value) != generation.output[start:end]:
            said = "has another value than the output's span"
            raise refusals.invalid_splice(
                ordinal, f"version {splice.version} of fact {splice.fact_id} {said}"
            )
    return erased


def _is_part(splice: Splice, value: str) -> bool:
    """Tell whether a splice names no part of its fact's value, or a part that lies within the value."""
    first, last = splice.part_start, splice.part_end
    if first is None or last is None:
        return first is last
    return 0 <= first < last <= len(value)


def check_quotation(session: Session, generation: NewOutput) -> None:
    """Raise `InvalidValue` where the words between the splices are not those of the stretch that the output quotes."""
    if (quotes := generation.quotes) is None:
        return
    place = (quotes.start, quotes.end)
    if not 0 <= quotes.start < quotes.end:
        raise InvalidValue("quotes", f"{place} is not a span of a document")
    text = stored_stretch(session, quotes.document_id, *place)
    if text is None:
        raise InvalidValue("quotes", f"there is no document {quotes.document_id}")
    if len(text) != quotes.end - quotes.start:
        raise InvalidValue("quotes", f"document {quotes.document_id} ends before character {quotes.end}")
    if not is_quoted(generation.output, place, generation.splices, text):
        raise InvalidValue("quotes", f"document {quotes.document_id} does not say the output at {place}")


def _values(
    session: Session, fact_ids: Sequence[int]
) -> tuple[dict[tuple[int, int], str | None], dict[int, int]]:
    """Give the values of facts by (fact, version), None for an erased fact, and the erasing changes by fact."""
    storable = [fact_id for fact_id in fact_ids if 0 < fact_id <= facts.MAX_ID]
    if not storable:
        return {}, {}
    value = case((FactRow.erased_seq.is_(None), FactVersionRow.value)).label("value")
    statement = select(FactVersionRow.fact_id, FactVersionRow.version, value, FactRow.erased_seq).join(
        FactRow, FactRow.id == FactVersionRow.fact_id
    )
    versions = session.execute(statement.where(FactVersionRow.fact_id == func.any(storable))).all()
    values = {(row.fact_id, row.version): row.value for row in versions}
    return values, {row.fact_id: row.erased_seq for row in versions if row.erased_seq is not None}


# Feedback: what people say of outputs, a thumb with a comment and the value that is right. Session first.
#
# Each person has one thumb for an output, and the last one counts. An output that somebody calls wrong is a
# miss.

MOST_CHARACTERS = 2_000


def give_feedback(
    session: Session, generation_id: int, made: NewFeedback, actor: str, on_behalf_of: str
) -> Feedback:
    """Store somebody's feedback on an output, with the erased texts of the output's facts redacted.

    Raises `GenerationNotFound`, and `InvalidValue` for an unknown thumb or a text that cannot be stored.
    """
    _check(made, actor, on_behalf_of)
    suppression.hold_off_erasure(session)
    if made.thumb == "up":  # the lock of groups is taken before an output's
        lock_groups(session)
    _lock_output(session, generation_id)
    origin = TextOrigin(_facts(session, generation_id), at=datetime.now(UTC))
    said = {name: redact_for_origin(session, getattr(made, name), origin) for name in ("comment", "value")}
    values = {"thumb": made.thumb, **said, "at": func.now()}
    behalf = redact_for_origin(session, on_behalf_of, origin)
    who = {"generation_id": generation_id, "actor": actor, "on_behalf_of": behalf}
    statement = upsert(FeedbackRow).values({**who, **values})
    kept = session.scalars(
        statement.on_conflict_do_update(index_elements=list(who), set_=values).returning(FeedbackRow),
        execution_options={"populate_existing": True},
    ).one()
    _update_miss(session, generation_id)
    return feedback_record(kept)


def _lock_output(session: Session, generation_id: int) -> None:
    """Lock an output, since feedback reads all its thumbs to decide if it is a miss. Raises `GenerationNotFound`."""
    output = select(GenerationRow.id).where(GenerationRow.id == generation_id)
    is_storable = 0 < generation_id <= edits.MAX_ID
    if not is_storable or session.scalar(output.with_for_update(key_share=True)) is None:
        raise refusals.generation_not_found(generation_id)


def _check(made: NewFeedback, actor: str, on_behalf_of: str) -> None:
    if made.thumb not in thumbs:
        raise InvalidValue("thumb", f"{made.thumb!r} is not one of {', '.join(thumbs)}")
    for name in ("comment", "value"):
        if (said := getattr(made, name)) is not None:
            audit.check_text(name, said, blank=False, limit=MOST_CHARACTERS)
    audit.check_name("actor", actor)
    if on_behalf_of:
        audit.check_name("name on whose behalf this is said", on_behalf_of)


def _update_miss(session: Session, generation_id: int) -> None:
    """Make an output a miss if any thumb on it is "down", else remove the miss that such a thumb made."""
    down = select(FeedbackRow.id).where(
        FeedbackRow.generation_id == generation_id, FeedbackRow.thumb == "down"
    )
    if session.scalars(down.limit(1)).first() is None:
        forget_wrong(session, generation_id)
    else:
        note_wrong(session, generation_id)


def _facts(session: Session, generation_id: int) -> frozenset[int]:
    spliced = select(AttributionRow.fact_id).where(
        AttributionRow.generation_id == generation_id, AttributionRow.fact_id.is_not(None)
    )
    return frozenset(fact_id for fact_id in session.scalars(spliced) if fact_id is not None)


def feedback_record(kept: FeedbackRow) -> Feedback:
    """Make the record of a feedback row."""
    return copy_columns(Feedback, kept, on_behalf_of=kept.on_behalf_of or None, at=kept.at.astimezone(UTC))
