"""Verbatim: checks that an output that is to be stored says, at each place, what it claims to have from there."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import case, func, select
from sqlalchemy.orm import Session

from colmlm.kb.errors import InvalidSplice, InvalidValue
from colmlm.kb.evidence.records import NewOutput, Splice
from colmlm.kb.facts import edits as facts
from colmlm.kb.facts import quoted
from colmlm.kb.tables import FactRow, FactVersionRow

OUTCOMES = ("hit", "no_match", "abstained")


def check_splices(session: Session, generation: NewOutput) -> dict[int, int]:
    """Gives the changes that erased facts which the output names, by fact.

    Raises `InvalidSplice` where a span of the output is not the value that its splice names, or the part of it.
    """
    values, erased = _values(session, [s.fact_id for s in generation.splices if s.fact_id is not None])
    for ordinal, splice in enumerate(generation.splices):
        start, end = splice.output_start, splice.output_end
        if splice.outcome not in OUTCOMES:
            raise InvalidSplice(
                ordinal, f"its outcome is {splice.outcome!r}, not one of {', '.join(OUTCOMES)}"
            )
        if not 0 <= start <= end <= len(generation.output):
            raise InvalidSplice(ordinal, f"[{start}, {end}) is outside the output")
        if splice.outcome != "hit":
            if splice.fact_id is not None or splice.version is not None or start != end:
                raise InvalidSplice(ordinal, "no hit, and yet a fact, a version or a span")
        elif splice.fact_id is None or splice.version is None:
            raise InvalidSplice(ordinal, "a hit without a fact or a version")
        elif (splice.fact_id, splice.version) not in values:
            raise InvalidSplice(ordinal, f"version {splice.version} of fact {splice.fact_id} does not exist")
        elif (value := values[splice.fact_id, splice.version]) is None:
            continue
        elif not _is_part(splice, value) or splice.of(value) != generation.output[start:end]:
            said = "has another value than the output's span"
            raise InvalidSplice(ordinal, f"version {splice.version} of fact {splice.fact_id} {said}")
    return erased


def _is_part(splice: Splice, value: str) -> bool:
    """Says whether a splice is of the whole value, or names a part that the value has."""
    first, last = splice.part_start, splice.part_end
    if first is None or last is None:
        return first is last
    return 0 <= first < last <= len(value)


def check_quotation(session: Session, generation: NewOutput) -> None:
    """Raises `InvalidValue` where the words between the splices are not those of the stretch that the output quotes."""
    if (quotes := generation.quotes) is None:
        return
    place = (quotes.start, quotes.end)
    if not 0 <= quotes.start < quotes.end:
        raise InvalidValue("quotes", f"{place} is no stretch of a document")
    text = quoted.stretch(session, quotes.document_id, *place)
    if text is None or len(text) != quotes.end - quotes.start:
        raise InvalidValue("quotes", f"document {quotes.document_id} has no stretch {place}")
    if not quoted.is_quoted(generation.output, place, generation.splices, text):
        raise InvalidValue("quotes", f"document {quotes.document_id} does not say the output at {place}")


def _values(
    session: Session, fact_ids: Sequence[int]
) -> tuple[dict[tuple[int, int], str | None], dict[int, int]]:
    """Gives the values of these facts by fact and version, None where the fact is erased, and what erased facts."""
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
