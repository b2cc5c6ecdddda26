"""Parts: the facts in an answer, with the part of its value that it says of each, and where its document says that."""

from __future__ import annotations

from colmlm.kb.answers.records import SaidPart
from colmlm.kb.answers.windows import FactInWindow, SaidWindow


def parts_of(window: SaidWindow, start: int, end: int) -> tuple[SaidPart, ...]:
    """Gives the facts that a span of the window's text says, whole or in part, in order. All of them must be live."""
    return tuple(_part(window, fact, start, end) for fact in window.overlapping(start, end))


def _part(window: SaidWindow, fact: FactInWindow, start: int, end: int) -> SaidPart:
    first, last = max(fact.start, start), min(fact.end, end)
    begins = fact.value.index(window.text[fact.start : fact.end])  # not 0 where the window cuts the fact
    shift, place = begins - fact.start, window.source_of(first, last)
    return SaidPart(
        fact_id=fact.fact_id,
        version=fact.said.version,
        start=first - start,
        end=last - start,
        part_start=first + shift,
        part_end=last + shift,
        quoted_start=place.start if place else None,
        quoted_end=place.end if place else None,
    )
