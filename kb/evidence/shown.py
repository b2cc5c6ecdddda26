"""Shows a knowledge base to a caller: all of it, or to a caller without the right to audit only what is current.

Past are the values of facts that were deleted or corrected since, and the questions and answers they had before; the
question and answer of a deleted fact, and the answer of one that was corrected; and the whole text of a document that
a newer one replaced. Where they appear in what is shown, as in the text of a document, each of their characters is
shown as U+2588, like erased text, so that every offset stays right. The functions take the session first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, TypeVar, Unpack

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from colmlm.kb.corpus.format import AnnotatedDocument
from colmlm.kb.evidence import attribution
from colmlm.kb.evidence.outputs import Outputs
from colmlm.kb.evidence.records import (
    FactTrace,
    GenerationRecord,
    ImpactedOutput,
    OutputTrace,
    Thumb,
    TracedSplice,
)
from colmlm.kb.facts.comparisons import Comparisons
from colmlm.kb.facts.corpora import Corpora, StoredDocuments
from colmlm.kb.facts.facts import Facts
from colmlm.kb.facts.reading import document_text
from colmlm.kb.facts.records import (
    ComparedPart,
    DocumentRecord,
    FactPage,
    FactRecord,
    FactSearch,
    Kind,
    PairPage,
    PairsSought,
    StalePage,
)
from colmlm.kb.facts.redaction import MARK, STRETCH, blank_out, marked_spans, spans_apart, spans_touch
from colmlm.kb.lookup.searchable import SearchableStore
from colmlm.kb.principal import Principal, current_origin
from colmlm.kb.questions import reading
from colmlm.kb.questions.records import AskedItem, KeptQuestion, RunComparison
from colmlm.kb.review.records import Inbox, InboxItem, InboxSought
from colmlm.kb.review.review import FactReview
from colmlm.kb.tables import (
    AttributionRow,
    DocumentRow,
    FactPastRow,
    FactRow,
    FactVersionRow,
    GenerationRow,
)
from colmlm.kb.texts.wording import Phrases, Span, normalise_wording

if TYPE_CHECKING:
    from colmlm.kb.misses.listing import Asks
    from colmlm.kb.misses.misses import Misses


Texts = tuple[str, str]  # a prompt and its output
T = TypeVar("T")
Listed = TypeVar("Listed", bound=FactRecord)
Stored = TypeVar("Stored", GenerationRecord, ImpactedOutput)


@dataclass(frozen=True, slots=True)
class _FactTexts:
    """The texts of a fact: the value that its document `said`, the value `now` (None: deleted), and all past texts."""

    said: str
    now: str | None
    past: tuple[str, ...]

    @property
    def is_as_said(self) -> bool:
        return self.now == self.said

    def is_current(self, text: str, first: int | None, last: int | None) -> bool:
        """Tell whether `text` is ``now[first:last]`` of the current value; False for a deleted fact."""
        return self.now is not None and text == self.now[first:last]

    def shown_value(self, value: str) -> str:
        return value if value == self.now else MARK * len(value)

    def shown_said(self, said: str | None) -> str | None:
        return None if said is None else self.shown_value(said)


def withhold_facts(session: Session, records: Sequence[Listed]) -> list[Listed]:
    """Give the records of facts with past texts withheld, in the same order."""
    fact_texts = _read_fact_texts(session, [record.fact_id for record in records])
    return [_fact(record, fact_texts[record.fact_id]) for record in records]


def _fact(record: Listed, texts: _FactTexts) -> Listed:
    shown = replace(
        record,
        value=texts.shown_value(record.value),
        question=record.question if texts.now is not None else None,
        answer=record.answer if texts.is_as_said else None,
    )
    return record if shown == record else replace(shown, withheld=True)


def withhold_trace(session: Session, traced: FactTrace) -> FactTrace:
    """Give the trace of a fact with past texts withheld, and without the weights trained on its document."""
    (fact,) = withhold_facts(session, [traced.fact])
    standing = _read_fact_texts(session, [fact.fact_id])[fact.fact_id]
    context = traced.context
    if context is not None and (source := fact.source) is not None:
        context = attribution.sentence_around(
            withheld_text(session, source.document_id), source.start, source.end
        )
    versions = tuple(
        replace(
            one,
            value=standing.shown_value(one.value),
            document_says=standing.shown_said(one.document_says),
            question=one.question if one.question in (None, fact.question) else MARK * len(one.question),
        )
        for one in traced.versions
    )
    return replace(traced, fact=fact, context=context, versions=versions, lineage=())


def withheld_text(session: Session, document_id: int) -> str:
    """Give a document's text with past values masked that touch no current one; all masked if it has a newer text."""
    found = document_text(session, document_id)
    if session.scalar(select(DocumentRow.replaced_seq).where(DocumentRow.id == document_id)) is not None:
        return MARK * len(found)
    of_document = select(FactRow.id, FactRow.span_start, FactRow.span_end).where(
        FactRow.document_id == document_id, FactRow.span_start.is_not(None)
    )
    rows = session.execute(of_document).all()
    fact_texts = _read_fact_texts(session, [row.id for row in rows])
    spans = [(fact_texts[row.id].is_as_said, (row.span_start, row.span_end)) for row in rows]
    return _blank_past_spans(found, spans)


def withhold_inbox(session: Session, items: Sequence[InboxItem]) -> Iterator[InboxItem]:
    """Yield facts to review with past texts withheld, also in the documents' texts around them."""
    shown = withhold_facts(session, [item.fact for item in items])
    texts = {
        document_id: withheld_text(session, document_id)
        for document_id in {item.around.document_id for item in items if item.around}
    }
    for item, fact in zip(items, shown, strict=True):
        around = item.around
        if around is not None:
            said = texts[around.document_id][around.offset :][: len(around.text)]
            around = replace(around, text=said)
        yield replace(item, fact=fact, around=around)


def _blank_past_spans(found: str, spans: Sequence[tuple[bool, Span]]) -> str:
    """Mask the past spans of a text that touch no current span; each span comes with whether it is current."""
    standing = [span for stands, span in spans if stands]
    return blank_out(
        found, [span for stands, span in spans if not stands and not spans_touch(span, standing)]
    )


def withhold_documents(session: Session, records: Sequence[DocumentRecord]) -> list[DocumentRecord]:
    """Give the records of documents with the SHA-256 of shown texts, as that of a whole text would confirm a guess."""
    ended = select(FactVersionRow.fact_id).where(
        FactVersionRow.fact_id == FactRow.id, FactVersionRow.to_seq.is_not(None)
    )
    ids = [record.document_id for record in records if record.replaced_seq is None]
    having = (
        select(FactRow.document_id).where(FactRow.document_id == func.any(ids), ended.exists()).distinct()
    )
    touched = set(session.scalars(having)) | {one.document_id for one in records} - set(ids)
    return [
        replace(record, sha256=_digest(withheld_text(session, record.document_id)))
        if record.document_id in touched
        else record
        for record in records
    ]


def _digest(shown: str) -> str:
    return hashlib.sha256(shown.encode()).hexdigest()


def withhold_corpus(exported: Iterable[AnnotatedDocument]) -> Iterator[AnnotatedDocument]:
    """Yield exported documents without their deleted and corrected facts, and with the spans of these masked."""
    for document in exported:
        spans = [(not fact.deleted and fact.current is None, fact) for fact in document.facts]
        shown = _blank_past_spans(document.text, [(stands, (fact.start, fact.end)) for stands, fact in spans])
        yield replace(document, text=shown, facts=tuple(fact for stands, fact in spans if stands))


def principal_if_own(asked: GenerationRecord | OutputTrace) -> Principal | None:
    """Give the principal that asked for an output if it is the caller's, else None: others need the right `audit`."""
    return asked.principal if asked.principal == current_origin().principal else None


def withhold_output(session: Session, traced: OutputTrace) -> OutputTrace:
    """Give the trace of an output with the past texts of its spliced facts withheld.

    Comments and values of its feedback may contain them too, so of feedback only the thumbs are shown.
    """
    said = {traced.generation_id: (traced.prompt, traced.output)}
    prompt, shown = withhold_past_texts(session, said)[traced.generation_id]
    fact_texts = _read_fact_texts(session, [one.fact_id for one in traced.splices if one.fact_id is not None])
    documents = {one.source.document_id for one in traced.splices if one.sentence and one.source}
    texts = {document_id: withheld_text(session, document_id) for document_id in documents}
    splices = tuple(_splice(splice, shown, fact_texts, texts) for splice in traced.splices)
    thumbs = tuple(replace(one, comment=None, value=None) for one in traced.feedback)
    return replace(
        traced,
        prompt=prompt,
        output=shown,
        splices=splices,
        feedback=thumbs,
        principal=principal_if_own(traced),
    )


def _splice(
    splice: TracedSplice, shown: str, fact_texts: Mapping[int, _FactTexts], texts: Mapping[int, str]
) -> TracedSplice:
    if (fact := fact_texts.get(splice.fact_id or 0)) is None:
        return splice
    said, value = fact.shown_said(splice.document_says), shown[splice.output_start : splice.output_end]
    sentence, source = splice.sentence, splice.source
    if sentence and source is not None:
        sentence = attribution.sentence_around(texts[source.document_id], source.start, source.end)
    told = replace(splice, document_says=said, sentence=sentence)
    return told if value == splice.value else replace(told, value=value, withheld=True)


def withhold_outputs(session: Session, found: Sequence[Stored]) -> list[Stored]:
    """Give stored outputs with the past texts of their spliced facts withheld."""
    shown = withhold_past_texts(
        session, {stored.generation_id: (stored.prompt, stored.output) for stored in found}
    )
    return [_showing(stored, *shown[stored.generation_id]) for stored in found]


def _showing(stored: Stored, prompt: str, output: str) -> Stored:
    return replace(stored, prompt=prompt, output=output)


def withhold_past_texts(session: Session, said: Mapping[int, Texts]) -> dict[int, Texts]:
    """Mask past values in prompts and outputs, given by output id: their splices, and other mentions of a past text.

    In outputs that quote a document, it also masks what is masked in the document.
    """
    hits = select(AttributionRow).where(
        AttributionRow.generation_id == func.any(list(said)), AttributionRow.outcome == "hit"
    )
    spliced = session.scalars(hits.order_by(AttributionRow.generation_id)).all()
    fact_texts = _read_fact_texts(session, [one.fact_id for one in spliced if one.fact_id is not None])
    by_output = {one: list(group) for one, group in groupby(spliced, lambda one: one.generation_id)}
    shown = {one: _withheld_texts(*said[one], splices, fact_texts) for one, splices in by_output.items()}
    return dict(said) | shown | _quotations(session, dict(said) | shown, by_output)


def _quotations(
    session: Session, said: Mapping[int, Texts], by_output: Mapping[int, Sequence[AttributionRow]]
) -> dict[int, Texts]:
    """Mask in outputs that quote a document, between their splices, what is masked in it; give these outputs alone."""
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
        stands = _blank_past_spans(stands, spans.get(stored.id, []))
        prompt, output = said[stored.id]
        marks = marked_spans(
            len(output), (stored.quoted_start, stored.quoted_end), by_output.get(stored.id, ()), stands
        )
        shown[stored.id] = prompt, blank_out(output, marks)
    return shown


def _spans_in(session: Session, generation_ids: Sequence[int]) -> dict[int, list[tuple[bool, Span]]]:
    """Give the facts in the stretch that an output quotes, by output id: whether the fact still has the value that the
    document says, and its span in the stretch.
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
    fact_texts = _read_fact_texts(session, [row.fact_id for row in rows])
    found: dict[int, list[tuple[bool, Span]]] = {}
    for row in rows:
        stands = fact_texts[row.fact_id].is_as_said
        found.setdefault(row.id, []).append((stands, (row.first, row.last)))
    return found


def _withheld_texts(
    prompt: str, output: str, splices: Sequence[AttributionRow], fact_texts: Mapping[int, _FactTexts]
) -> Texts:
    standing: list[Span] = []
    gone: list[Span] = []
    past: list[str] = []
    for splice in splices:
        span = (splice.output_start, splice.output_end)
        fact = fact_texts.get(splice.fact_id or 0)
        if fact is None or fact.is_current(output[slice(*span)], splice.part_start, splice.part_end):
            standing.append(span)
        else:
            gone.append(span)
            past += (*fact.past, output[slice(*span)])
    said = Phrases(past)
    return blank_out(prompt, said.spans(prompt)), blank_out(
        output, (*gone, *spans_apart(said.spans(output), standing))
    )


def texts_of(session: Session, fact_ids: Sequence[int]) -> dict[int, tuple[str | None, tuple[str, ...]]]:
    """Give the current value (None: deleted) and the past texts of each fact, by fact id."""
    return {one: (found.now, found.past) for one, found in _read_fact_texts(session, fact_ids).items()}


def _read_fact_texts(session: Session, fact_ids: Sequence[int]) -> dict[int, _FactTexts]:
    """Read the texts of facts, by fact id; an erased fact has no past texts to withhold."""
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
        fact.id: _sort_fact_texts(fact, [row.FactVersionRow for row in group], past.get(fact.id, ()))
        for fact, group in by_fact
    }


def _sort_fact_texts(fact: FactRow, versions: Sequence[FactVersionRow], asked: Sequence[str]) -> _FactTexts:
    """Sort a fact's texts into current and past; `asked` are the questions and answers of its earlier versions."""
    said, last = next(one.value for one in versions if one.version == fact.said_version), versions[-1]
    if fact.erased_seq is not None:
        return _FactTexts(said, last.value, ())
    now = last.value if last.to_seq is None else None
    past = [one.value for one in versions if one.value != now]
    past += [text for text in asked if now is None or text not in (fact.question, fact.answer)]
    past += [text for text in (fact.answer,) if text and now != said]
    past += [text for text in (fact.question,) if text and now is None]
    return _FactTexts(said, now, tuple(dict.fromkeys(past)))


@dataclass(frozen=True, slots=True)
class CallerView:
    """A base as a caller may see it. Without `past`, deleted and corrected texts are withheld."""

    store: SearchableStore
    past: bool

    def fact(self, fact_id: int) -> FactRecord:
        (fact,) = self.facts([Facts(self.store).show(fact_id)])
        return fact

    def facts(self, found: Sequence[Listed]) -> list[Listed]:
        return self._withheld(withhold_facts, list(found))

    def search(self, *, nearest: Sequence[int] | None = None, **sought: Unpack[FactSearch]) -> FactPage:
        """Search facts; without `past` no withheld text is found or shown."""
        found = Facts(self.store).search(nearest=nearest, past=self.past, **sought)
        return found if self.past else replace(found, facts=tuple(self.facts(found.facts)))

    def inbox(self, **sought: Unpack[InboxSought]) -> Inbox:
        found = FactReview(self.store).inbox(**sought)
        if self.past:
            return found
        with self.store.sessions() as session:
            return replace(found, items=tuple(withhold_inbox(session, found.items)))

    def pairs(self, kind: Kind, **sought: Unpack[PairsSought]) -> PairPage:
        """List pairs of facts as `Comparisons.pairs` does; without `past`, past texts are withheld."""
        found = Comparisons(self.store).pairs(kind, **sought)
        shown = iter(self.facts([fact for pair in found.pairs for fact in (pair.fact, pair.other)]))
        pairs = tuple(replace(pair, fact=next(shown), other=next(shown)) for pair in found.pairs)
        return replace(found, pairs=pairs)

    def stale(self, **part: Unpack[ComparedPart]) -> StalePage:
        """List stale facts as `Comparisons.stale` does; without `past`, past texts are withheld."""
        found = Comparisons(self.store).stale(**part)
        return replace(found, facts=tuple(self.facts(found.facts)))

    def trace_fact(self, fact_id: int) -> FactTrace:
        return self._withheld(withhold_trace, Outputs(self.store).trace_fact(fact_id))

    def uses(self, fact_id: int) -> tuple[ImpactedOutput, ...]:
        found = list(Outputs(self.store).impact(fact_id).outputs)
        shown: list[ImpactedOutput] = self._withheld(withhold_outputs, found)
        return tuple(shown)

    def documents(self, found: list[DocumentRecord]) -> list[DocumentRecord]:
        return self._withheld(withhold_documents, found)

    def document(self, document_id: int) -> tuple[DocumentRecord, str]:
        """Give the record of a document and its text."""
        found, text = StoredDocuments(self.store).read(document_id)
        (document,) = self.documents([found])
        return document, text if self.past else self.document_text(document_id)

    def document_text(self, document_id: int) -> str:
        if self.past:
            return StoredDocuments(self.store).text(document_id)
        with self.store.sessions() as session:
            return withheld_text(session, document_id)

    def export(self, corpus: str) -> Iterator[AnnotatedDocument]:
        """Yield the documents of a corpus with their live facts; without `past`, without corrected ones."""
        if self.past:
            return Corpora(self.store).export(corpus, live_only=True)
        return withhold_corpus(Corpora(self.store).export(corpus, live_only=False))

    def trace_output(self, generation_id: int) -> OutputTrace:
        return self.output(Outputs(self.store).trace(generation_id))

    def output(self, traced: OutputTrace) -> OutputTrace:
        return self._withheld(withhold_output, traced)

    def misses(self, asks: Asks | None = None) -> Misses:
        """Give the verbs of misses; `asks` answers their questions again."""
        from colmlm.kb.misses.misses import Misses

        return Misses(self.store, asks, None if self.past else withhold_past_texts)

    def generations(
        self, after: int = 0, limit: int = 50, thumb: Thumb | None = None, principal: str | None = None
    ) -> list[GenerationRecord]:
        """List stored outputs as `Outputs.find` does; without `past` the principals of others' outputs are hidden."""
        found = Outputs(self.store).find(after=after, limit=limit, thumb=thumb, principal=principal)
        shown = self._withheld(withhold_outputs, found)
        return shown if self.past else [replace(one, principal=principal_if_own(one)) for one in shown]

    def questions(self, found: Sequence[KeptQuestion]) -> list[KeptQuestion]:
        return self._withheld(withhold_questions, list(found))

    def asked_items(self, found: Sequence[AskedItem]) -> list[AskedItem]:
        return self._withheld(withhold_items, list(found))

    def comparison(self, found: RunComparison) -> RunComparison:
        return self._withheld(withhold_comparison, found)

    def _withheld(self, withhold: Callable[[Session, T], T], found: T) -> T:
        """Apply `withhold` to what was found, unless the caller may see the past."""
        if self.past:
            return found
        with self.store.sessions() as session:
            return withhold(session, found)


# Withholds the past in kept questions and in what runs were answered, by the facts that answered them.
#
# A value is past where one of its facts is deleted, or says something else by now. Past texts are withheld
# wherever the question or the expected values say them, but for what the facts still say.

_Texts = Mapping[int, tuple[str | None, tuple[str, ...]]]


def withhold_questions(session: Session, found: Sequence[KeptQuestion]) -> list[KeptQuestion]:
    """Give kept questions with the past texts of the facts that answered them withheld."""
    texts = texts_of(session, [fact_id for one in found for fact_id in one.fact_ids])
    return [_question(one, _Past.of(texts, one.fact_ids)) for one in found]


def withhold_items(session: Session, found: Sequence[AskedItem]) -> list[AskedItem]:
    """Give the items of a run with the past texts of all facts that ever answered their questions withheld."""
    answered = reading.facts_of_questions(session, [one.question_id for one in found])
    facts = {one.question_id: {*answered.get(one.question_id, ()), *one.fact_ids} for one in found}
    texts = texts_of(session, [fact_id for every in facts.values() for fact_id in every])
    return [_item(one, texts, sorted(facts[one.question_id])) for one in found]


def withhold_comparison(session: Session, found: RunComparison) -> RunComparison:
    """Give a comparison of two runs with past texts withheld from its items."""
    both = [item for one in found.items for item in (one.before, one.after) if item is not None]
    shown = iter(withhold_items(session, both))
    return replace(
        found,
        items=tuple(
            replace(one, before=one.before and next(shown), after=one.after and next(shown))
            for one in found.items
        ),
    )


@dataclass(frozen=True, slots=True)
class _Past:
    """Phrases of past texts to mask (`gone`), except where they overlap phrases of current texts (`stays`)."""

    gone: Phrases
    stays: Phrases

    @classmethod
    def of(cls, texts: _Texts, fact_ids: Sequence[int], *also: str) -> _Past:
        known = [texts[fact_id] for fact_id in fact_ids if fact_id in texts]
        past = [said for _, every in known for said in every]
        return cls(Phrases([*past, *also]), Phrases(now for now, _ in known if now is not None))

    def shown_text(self, text: str) -> str:
        return (
            blank_out(text, spans_apart(self.gone.spans(text), self.stays.spans(text))) if self.gone else text
        )


def _question(one: KeptQuestion, past: _Past) -> KeptQuestion:
    return replace(
        one, question=past.shown_text(one.question), expected=tuple(map(past.shown_text, one.expected))
    )


def _item(one: AskedItem, texts: _Texts, fact_ids: Sequence[int]) -> AskedItem:
    is_past = one.value is not None and any(
        not _is_still_said(texts[fact_id][0], one.value) for fact_id in one.fact_ids if fact_id in texts
    )
    past = _Past.of(texts, fact_ids, *([one.value] if is_past and one.value else []))
    return replace(
        one,
        question=past.shown_text(one.question),
        expected=tuple(map(past.shown_text, one.expected)),
        value=MARK * len(one.value) if is_past and one.value else one.value,
    )


def _is_still_said(now: str | None, value: str) -> bool:
    """Tell whether a fact's current value contains `value`, or is contained in it; False for a deleted fact."""
    if now is None:
        return False
    said, current = f" {normalise_wording(value)} ", f" {normalise_wording(now)} "
    return said in current or current in said
