"""Withholding: hides past texts from callers who may read what the base says now, and not what it said before.

Past are the values of facts that were deleted or corrected since, and the questions and answers they had before; the
question and answer of a deleted fact, and the answer of one that was corrected; and the whole text of a document that
a newer one replaced.
Each of its characters is shown as U+2588, like erased text, so that every offset stays right. Session first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TypeVar

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from colmlm.kb.corpus.format import AnnotatedDocument
from colmlm.kb.evidence import attribution
from colmlm.kb.evidence.records import FactTrace, GenerationRecord, ImpactedOutput, OutputTrace, TracedSplice
from colmlm.kb.facts.reading import document_text
from colmlm.kb.facts.records import DocumentRecord, FactRecord
from colmlm.kb.facts.redaction import MARK, STRETCH, blank_out, marked, spans_touch, split_apart
from colmlm.kb.review.records import InboxItem
from colmlm.kb.tables import (
    AttributionRow,
    DocumentRow,
    FactPastRow,
    FactRow,
    FactVersionRow,
    GenerationRow,
)
from colmlm.kb.texts.wording import Phrases, Span

Texts = tuple[str, str]  # a prompt and its output
Listed = TypeVar("Listed", bound=FactRecord)
Stored = TypeVar("Stored", GenerationRecord, ImpactedOutput)


@dataclass(frozen=True, slots=True)
class _Standing:
    """The value its document says, the one a fact has `now` (None: it is deleted), and all its texts that are past."""

    said: str
    now: str | None
    past: tuple[str, ...]

    @property
    def is_as_said(self) -> bool:
        return self.now == self.said

    def says(self, said: str, first: int | None, last: int | None) -> bool:
        """Say whether this is what it says now, between two offsets of the value, or (None) in all of it."""
        return self.now is not None and said == self.now[first:last]

    def shown(self, value: str) -> str:
        return value if value == self.now else MARK * len(value)


def facts(session: Session, records: Sequence[Listed]) -> list[Listed]:
    """Give the records with past texts withheld."""
    standings = _standings(session, [record.fact_id for record in records])
    return [_fact(record, standings[record.fact_id]) for record in records]


def _fact(record: Listed, standing: _Standing) -> Listed:
    shown = replace(
        record,
        value=standing.shown(record.value),
        question=record.question if standing.now is not None else None,
        answer=record.answer if standing.is_as_said else None,
    )
    return record if shown == record else replace(shown, withheld=True)


def trace(session: Session, traced: FactTrace) -> FactTrace:
    """Give the trace of a fact with its changes, and its past values withheld."""
    (fact,) = facts(session, [traced.fact])
    standing = _standings(session, [fact.fact_id])[fact.fact_id]
    context = traced.context
    if context is not None and (source := fact.source) is not None:
        context = attribution.sentence_around(text(session, source.document_id), source.start, source.end)
    versions = tuple(
        replace(
            one,
            value=standing.shown(one.value),
            question=one.question if one.question in (None, fact.question) else MARK * len(one.question),
        )
        for one in traced.versions
    )
    return replace(traced, fact=fact, context=context, versions=versions)


def text(session: Session, document_id: int) -> str:
    """Give a document's text with past values withheld, except where the span of a current fact overlaps."""
    found = document_text(session, document_id)
    if session.scalar(select(DocumentRow.replaced_seq).where(DocumentRow.id == document_id)) is not None:
        return MARK * len(found)
    of_document = select(FactRow.id, FactRow.span_start, FactRow.span_end).where(
        FactRow.document_id == document_id, FactRow.span_start.is_not(None)
    )
    rows = session.execute(of_document).all()
    standings = _standings(session, [row.id for row in rows])
    spans = [(standings[row.id].is_as_said, (row.span_start, row.span_end)) for row in rows]
    return _blotted(found, spans)


def inbox(session: Session, items: Sequence[InboxItem]) -> Iterator[InboxItem]:
    """Give facts to review with past texts withheld, also in what documents say around them."""
    shown = facts(session, [item.fact for item in items])
    texts = {
        document_id: text(session, document_id)
        for document_id in {item.around.document_id for item in items if item.around}
    }
    for item, fact in zip(items, shown, strict=True):
        around = item.around
        if around is not None:
            said = texts[around.document_id][around.offset :][: len(around.text)]
            around = replace(around, text=said)
        yield replace(item, fact=fact, around=around)


def _blotted(found: str, spans: Sequence[tuple[bool, Span]]) -> str:
    """Withhold the past spans of a text; each span comes with whether it is current."""
    standing = [span for stands, span in spans if stands]
    return blank_out(
        found, [span for stands, span in spans if not stands and not spans_touch(span, standing)]
    )


def documents(session: Session, records: Sequence[DocumentRecord]) -> list[DocumentRecord]:
    """Give the records with digests of the texts as shown, since a digest of the whole text would confirm a guess."""
    ended = select(FactVersionRow.fact_id).where(
        FactVersionRow.fact_id == FactRow.id, FactVersionRow.to_seq.is_not(None)
    )
    ids = [record.document_id for record in records if record.replaced_seq is None]
    having = (
        select(FactRow.document_id).where(FactRow.document_id == func.any(ids), ended.exists()).distinct()
    )
    touched = set(session.scalars(having)) | {one.document_id for one in records} - set(ids)
    return [
        replace(record, sha256=_digest(text(session, record.document_id)))
        if record.document_id in touched
        else record
        for record in records
    ]


def _digest(shown: str) -> str:
    return hashlib.sha256(shown.encode()).hexdigest()


def corpus(exported: Iterable[AnnotatedDocument]) -> Iterator[AnnotatedDocument]:
    """Withhold, in documents exported with every fact, all facts that are deleted or do not say what the text says."""
    for document in exported:
        spans = [(not fact.deleted and fact.current is None, fact) for fact in document.facts]
        shown = _blotted(document.text, [(stands, (fact.start, fact.end)) for stands, fact in spans])
        yield replace(document, text=shown, facts=tuple(fact for stands, fact in spans if stands))


def output(session: Session, traced: OutputTrace) -> OutputTrace:
    """Give the trace of an output with the past texts of the facts that it spliced withheld.

    What people wrote of it may say them too, so of that only the thumbs are shown.
    """
    said = {traced.generation_id: (traced.prompt, traced.output)}
    prompt, shown = texts(session, said)[traced.generation_id]
    splices = tuple(_splice(splice, shown) for splice in traced.splices)
    thumbs = tuple(replace(one, comment=None, value=None) for one in traced.feedback)
    return replace(traced, prompt=prompt, output=shown, splices=splices, feedback=thumbs)


def _splice(splice: TracedSplice, shown: str) -> TracedSplice:
    value = shown[splice.output_start : splice.output_end]
    return splice if value == splice.value else replace(splice, value=value, withheld=True)


def outputs(session: Session, found: Sequence[Stored]) -> list[Stored]:
    """Give stored outputs with the past texts of the facts that they spliced withheld."""
    shown = texts(session, {stored.generation_id: (stored.prompt, stored.output) for stored in found})
    return [_showing(stored, *shown[stored.generation_id]) for stored in found]


def _showing(stored: Stored, prompt: str, output: str) -> Stored:
    return replace(stored, prompt=prompt, output=output)


def texts(session: Session, said: Mapping[int, Texts]) -> dict[int, Texts]:
    """Withhold, in prompts and outputs by generation, splices whose value is past, and every other mention of it.

    Of what outputs quote it withholds what is withheld in the document.
    """
    hits = select(AttributionRow).where(
        AttributionRow.generation_id == func.any(list(said)), AttributionRow.outcome == "hit"
    )
    spliced = session.scalars(hits.order_by(AttributionRow.generation_id)).all()
    standings = _standings(session, [one.fact_id for one in spliced if one.fact_id is not None])
    by_output = {one: list(group) for one, group in groupby(spliced, lambda one: one.generation_id)}
    shown = {one: _withheld_texts(*said[one], splices, standings) for one, splices in by_output.items()}
    return dict(said) | shown | _quotations(session, dict(said) | shown, by_output)


def _quotations(
    session: Session, said: Mapping[int, Texts], by_output: Mapping[int, Sequence[AttributionRow]]
) -> dict[int, Texts]:
    """Withhold in those outputs that quote a document what is withheld there, between their splices."""
    quoting = (
        select(GenerationRow, DocumentRow.replaced_seq, STRETCH.label("stretch"))
        .join(DocumentRow, DocumentRow.id == GenerationRow.document_id)
        .where(GenerationRow.id == func.any(list(said)))
    )
    rows = session.execute(quoting).all()
    spans = _spans_in(session, [row.GenerationRow.id for row in rows])
    shown: dict[int, Texts] = {}
    for stored, replaced_seq, stretch in rows:
        stands = stretch if replaced_seq is None else MARK * len(stretch)
        stands = _blotted(stands, spans.get(stored.id, []))
        prompt, output = said[stored.id]
        marks = marked(
            len(output), (stored.quoted_start, stored.quoted_end), by_output.get(stored.id, ()), stands
        )
        shown[stored.id] = prompt, blank_out(output, marks)
    return shown


def _spans_in(session: Session, generation_ids: Sequence[int]) -> dict[int, list[tuple[bool, Span]]]:
    """Give, for each output that quotes, the facts that its document has in the stretch: whether each is as it came,
    and where it is in the stretch.
    """
    start, end = GenerationRow.quoted_start, GenerationRow.quoted_end
    overlapping = (
        select(
            GenerationRow.id,
            FactRow.id.label("fact_id"),
            (func.greatest(FactRow.span_start, start) - start).label("first"),
            (func.least(FactRow.span_end, end) - start).label("last"),
        )
        .join(FactRow, FactRow.document_id == GenerationRow.document_id)
        .where(GenerationRow.id == func.any(list(generation_ids)))
        .where(FactRow.span_start < end, FactRow.span_end > start)
    )
    rows = session.execute(overlapping).all()
    standings = _standings(session, [row.fact_id for row in rows])
    found: dict[int, list[tuple[bool, Span]]] = {}
    for row in rows:
        stands = standings[row.fact_id].is_as_said
        found.setdefault(row.id, []).append((stands, (row.first, row.last)))
    return found


def _withheld_texts(
    prompt: str, output: str, splices: Sequence[AttributionRow], standings: Mapping[int, _Standing]
) -> Texts:
    standing: list[Span] = []
    gone: list[Span] = []
    past: list[str] = []
    for splice in splices:
        span = (splice.output_start, splice.output_end)
        fact = standings.get(splice.fact_id or 0)
        if fact is None or fact.says(output[slice(*span)], splice.part_start, splice.part_end):
            standing.append(span)
        else:
            gone.append(span)
            past += (*fact.past, output[slice(*span)])
    said = Phrases(past)
    return blank_out(prompt, said.spans(prompt)), blank_out(
        output, (*gone, *split_apart(said.spans(output), standing))
    )


def texts_of(session: Session, fact_ids: Sequence[int]) -> dict[int, tuple[str | None, tuple[str, ...]]]:
    """Give, for each of these facts, its value (None: it is deleted) and all its texts that are past."""
    return {one: (found.now, found.past) for one, found in _standings(session, fact_ids).items()}


def _standings(session: Session, fact_ids: Sequence[int]) -> dict[int, _Standing]:
    """Read the first and current values and the past texts of these facts; erased facts have nothing to withhold."""
    statement = (
        select(FactRow, FactVersionRow)
        .join(FactVersionRow, FactVersionRow.fact_id == FactRow.id)
        .where(FactRow.id == func.any(list(set(fact_ids))))
        .order_by(FactRow.id, FactVersionRow.version)
    )
    rows = session.execute(statement.execution_options(populate_existing=True))
    by_fact = groupby(rows, lambda row: row.FactRow)
    past: dict[int, list[str]] = {}
    asked = select(FactPastRow).where(FactPastRow.fact_id == func.any(list(set(fact_ids))))
    for row in session.scalars(asked):
        past.setdefault(row.fact_id, []).extend(filter(None, (row.question, row.answer)))
    return {
        fact.id: _standing(fact, [row.FactVersionRow for row in group], past.get(fact.id, ()))
        for fact, group in by_fact
    }


def _standing(fact: FactRow, versions: Sequence[FactVersionRow], asked: Sequence[str]) -> _Standing:
    """Sort what a fact said and says; `asked` are the questions and answers it had before it was mended."""
    said, last = next(one.value for one in versions if one.version == fact.said_version), versions[-1]
    if fact.erased_seq is not None:
        return _Standing(said, last.value, ())
    now = last.value if last.to_seq is None else None
    past = [one.value for one in versions if one.value != now]
    past += [text for text in asked if now is None or text not in (fact.question, fact.answer)]
    past += [text for text in (fact.answer,) if text and now != said]
    past += [text for text in (fact.question,) if text and now is None]
    return _Standing(said, now, tuple(dict.fromkeys(past)))
