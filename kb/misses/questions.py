"""The questions of misses: read from the outputs that asked them, since no miss holds a text. Session first."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from sqlalchemy import func, select, tuple_
from sqlalchemy.orm import Session

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
        place: question_of(modes[place.generation_id], prompt, output[: starts.get(place, 0)])
        for place in places
        if place.generation_id in said
        for prompt, output in (said[place.generation_id],)
    }


_STORED = select(GenerationRow.id, GenerationRow.mode, GenerationRow.prompt, GenerationRow.output)


def _starts(session: Session, places: Collection[MissPlace]) -> dict[MissPlace, int]:
    if not places:
        return {}
    where = tuple_(AttributionRow.generation_id, AttributionRow.ordinal).in_(places)
    columns = (AttributionRow.generation_id, AttributionRow.ordinal, AttributionRow.output_start)
    return {MissPlace(*row[:2]): row.output_start for row in session.execute(select(*columns).where(where))}
