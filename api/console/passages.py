"""Cuts texts at marked spans: an output at its splices, a document at its facts, a passage around one fact."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from colmlm.kb.evidence.records import OutputTrace, TracedSplice
from colmlm.kb.facts.records import FactFound, FactRecord, FoundIn

AROUND = 280  # characters of a document before and after a span
BLOCK = 10_000  # characters of a document that are drawn together
BEFORE, SHOWN = 80, 240  # characters before the first word that was found, and in all


@dataclass(frozen=True, slots=True)
class OutputPiece:
    """A piece of an output: plain text, or a lookup.

    `number` counts the hits from 1; it is None where nothing was spliced.
    """

    text: str
    splice: TracedSplice | None = None
    number: int | None = None


@dataclass(frozen=True, slots=True)
class SpanPassage:
    """A span of a document and the text around it.

    `cut_before` and `cut_after` tell whether the document has more there.
    """

    before: str
    span: str
    after: str
    cut_before: bool
    cut_after: bool


@dataclass(frozen=True, slots=True)
class DocumentPart:
    """A part of a document: plain text, or a fact's span."""

    text: str
    fact: FactRecord | None = None


def pieces(trace: OutputTrace) -> list[OutputPiece]:
    """Cuts an output at its lookups, in order. Offsets count code points, as Python's do."""
    found, at, number = [], 0, 0
    for splice in trace.splices:
        found.append(OutputPiece(trace.output[at : splice.output_start]))
        number += splice.outcome == "hit"
        text = trace.output[splice.output_start : splice.output_end]
        found.append(OutputPiece(text, splice, number if splice.outcome == "hit" else None))
        at = splice.output_end
    found.append(OutputPiece(trace.output[at:]))
    return [piece for piece in found if piece.text or piece.splice]


def became_of(splice: TracedSplice) -> str:
    """Gives the present state of a spliced fact: current, corrected, deleted or erased; or why nothing was spliced."""
    if splice.outcome != "hit":
        return splice.outcome
    if splice.erased:
        return "erased"
    if not splice.live:
        return "deleted"
    return "current" if splice.is_current else "corrected"


def passage(text: str, start: int, end: int) -> SpanPassage:
    first, last = max(0, start - AROUND), min(len(text), end + AROUND)
    return SpanPassage(text[first:start], text[start:end], text[end:last], first > 0, last < len(text))


def stretches(text: str, facts: Iterable[FactRecord]) -> list[DocumentPart]:
    """Cuts a document at the spans of its facts; of spans that overlap, the first counts."""
    found: list[DocumentPart] = []
    at = 0
    for fact in _by_place(facts):
        assert fact.source is not None
        if fact.source.start < at:
            continue
        found += [
            DocumentPart(text[at : fact.source.start]),
            DocumentPart(text[fact.source.start : fact.source.end], fact),
        ]
        at = fact.source.end
    return [*found, DocumentPart(text[at:])]


def blocks(parts: Iterable[DocumentPart]) -> list[list[DocumentPart]]:
    """Groups the parts of a document into blocks that end with a line, so that a browser draws what is in sight."""
    found: list[list[DocumentPart]] = [[]]
    length = 0
    for part in parts:
        end = part.text.rfind("\n") + 1
        length += len(part.text)
        if part.fact is not None or length < BLOCK or not end:
            found[-1].append(part)
            continue
        found[-1].append(DocumentPart(part.text[:end]))
        found.append([DocumentPart(part.text[end:])])
        length = len(part.text) - end
    return found


def excerpts(fact: FactFound) -> dict[str, list[tuple[str, bool]]]:
    """Gives an excerpt of each text that the fact was found in."""
    return {found.place: _excerpt(found) for found in fact.found}


def _excerpt(found: FoundIn) -> list[tuple[str, bool]]:
    """Cuts a text in which words were found, around the first of them, into pieces with whether they were sought."""
    marks = found.marks
    first = max(0, marks[0].start - BEFORE)
    pieces, at, last = [("…", False)] if first else [], first, min(len(found.said), first + SHOWN)
    for mark in marks:
        if mark.end <= last:
            pieces += [(found.said[at : mark.start], False), (found.said[mark.start : mark.end], True)]
            at = mark.end
    return [*pieces, (found.said[at:last], False), *([("…", False)] if last < len(found.said) else [])]


def _by_place(facts: Iterable[FactRecord]) -> Sequence[FactRecord]:
    return sorted(
        (fact for fact in facts if fact.source),
        key=lambda f: (f.source.start, f.fact_id) if f.source else (0, 0),
    )
