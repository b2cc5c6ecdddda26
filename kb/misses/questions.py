"""The questions of misses: read from the outputs that asked them, since no miss holds a text. Session first."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from sqlalchemy import ColumnElement, exists, func, select, tuple_
from sqlalchemy.orm import Session, aliased

from colmlm.kb.lookup.options import READER
from colmlm.kb.misses.records import WHOLE
from colmlm.kb.tables import AttributionRow, GenerationRow
from colmlm.kb.texts.asked import question_of

Texts = tuple[str, str]  # a prompt and its output
ShowTexts = Callable[[Session, Mapping[int, Texts]], Mapping[int, Texts]]


class MissPlace(NamedTuple):
    """A lookup of an output, or with the ordinal -1 the output as a whole."""

    generation_id: int
    ordinal: int


def questions(
    session: Session, places: Collection[MissPlace], show: ShowTexts | None = None
) -> dict[MissPlace, str]:
    """Gives what was asked at these places; `show` withholds from prompts and outputs, by output, what is past."""
    ids = {place.generation_id for place in places}
    stored = session.execute(_STORED.where(GenerationRow.id == func.any(list(ids)))).all()
    modes = {row.id: row.mode for row in stored}
    said: Mapping[int, Texts] = {row.id: (row.prompt, row.output) for row in stored}
    said = show(session, said) if show else said
    starts = _starts(session, [place for place in places if place.ordinal != WHOLE])
    return {
        place: question_of(modes[place.generation_id], prompt, output[:start], is_read=is_read)
        for place in places
        if place.generation_id in said
        for prompt, output in (said[place.generation_id],)
        for start, is_read in (starts.get(place, (0, False)),)
    }


_STORED = select(GenerationRow.id, GenerationRow.mode, GenerationRow.prompt, GenerationRow.output)


def was_read() -> ColumnElement[bool]:
    """Select whether the reader was asked the prompt's question: no lookup before this one had found a fact."""
    earlier = aliased(AttributionRow)
    found = exists().where(
        earlier.generation_id == AttributionRow.generation_id,
        earlier.ordinal < AttributionRow.ordinal,
        earlier.outcome == "hit",
    )
    return (GenerationRow.ranking == READER) & ~found


def _starts(session: Session, places: Collection[MissPlace]) -> dict[MissPlace, tuple[int, bool]]:
    if not places:
        return {}
    place = (AttributionRow.generation_id, AttributionRow.ordinal)
    statement = (
        select(*place, AttributionRow.output_start, was_read())
        .join(GenerationRow, GenerationRow.id == AttributionRow.generation_id)
        .where(tuple_(*place).in_(places))
    )
    return {MissPlace(*row[:2]): (row[2], row[3]) for row in session.execute(statement)}
