"""Shows a knowledge base to a caller: all of it, or to a caller without the right to audit only what is current.

Where past values appear in what is shown, as in the text of a document, `kb.evidence.withholding` replaces them by
marks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Unpack

from sqlalchemy.orm import Session

from colmlm.kb.corpus.format import AnnotatedDocument
from colmlm.kb.evidence import withholding
from colmlm.kb.evidence.outputs import Outputs
from colmlm.kb.evidence.records import FactTrace, GenerationRecord, ImpactedOutput, OutputTrace, Thumb
from colmlm.kb.evidence.withholding import Listed, texts_of
from colmlm.kb.facts.compared import ComparedPart, Kind, PairPage, PairsSought, StalePage
from colmlm.kb.facts.comparisons import Comparisons
from colmlm.kb.facts.corpora import Corpora, StoredDocuments
from colmlm.kb.facts.facts import Facts
from colmlm.kb.facts.records import DocumentRecord, FactPage, FactRecord, FactSearch
from colmlm.kb.facts.redaction import MARK, blank_out, split_apart
from colmlm.kb.lookup.searchable import SearchableStore
from colmlm.kb.questions import reading
from colmlm.kb.questions.records import AskedItem, KeptQuestion, RunComparison
from colmlm.kb.review.records import Inbox, InboxSought
from colmlm.kb.review.review import FactReview
from colmlm.kb.texts.wording import Phrases, normalise_wording

if TYPE_CHECKING:
    from colmlm.kb.misses.checking import Asks
    from colmlm.kb.misses.misses import Misses


@dataclass(frozen=True, slots=True)
class Shown:
    """Reads a store for a caller. Without `past`, what was deleted or corrected is withheld."""

    store: SearchableStore
    past: bool

    def fact(self, fact_id: int) -> FactRecord:
        (fact,) = self.facts([Facts(self.store).show(fact_id)])
        return fact

    def facts(self, found: Sequence[Listed]) -> list[Listed]:
        if self.past:
            return list(found)
        with self.store.sessions() as session:
            return withholding.facts(session, found)

    def search(self, *, nearest: Sequence[int] | None = None, **sought: Unpack[FactSearch]) -> FactPage:
        """Search facts; without `past` nothing is found by what is withheld."""
        found = Facts(self.store).search(nearest=nearest, past=self.past, **sought)
        return found if self.past else replace(found, facts=tuple(self.facts(found.facts)))

    def inbox(self, **sought: Unpack[InboxSought]) -> Inbox:
        found = FactReview(self.store).inbox(**sought)
        if self.past:
            return found
        with self.store.sessions() as session:
            return replace(found, items=tuple(withholding.inbox(session, found.items)))

    def pairs(self, kind: Kind, **sought: Unpack[PairsSought]) -> PairPage:
        """List pairs of facts as `Comparisons` does."""
        found = Comparisons(self.store).pairs(kind, **sought)
        shown = iter(self.facts([fact for pair in found.pairs for fact in (pair.fact, pair.other)]))
        pairs = tuple(replace(pair, fact=next(shown), other=next(shown)) for pair in found.pairs)
        return replace(found, pairs=pairs)

    def stale(self, **part: Unpack[ComparedPart]) -> StalePage:
        """List stale facts as `Comparisons` does."""
        found = Comparisons(self.store).stale(**part)
        return replace(found, facts=tuple(self.facts(found.facts)))

    def trace_fact(self, fact_id: int) -> FactTrace:
        traced = Outputs(self.store).trace_fact(fact_id)
        if self.past:
            return traced
        with self.store.sessions() as session:
            return withholding.trace(session, traced)

    def uses(self, fact_id: int) -> tuple[ImpactedOutput, ...]:
        found = Outputs(self.store).impact(fact_id).outputs
        if self.past:
            return found
        with self.store.sessions() as session:
            return tuple(withholding.outputs(session, found))

    def documents(self, found: list[DocumentRecord]) -> list[DocumentRecord]:
        if self.past:
            return found
        with self.store.sessions() as session:
            return withholding.documents(session, found)

    def document(self, document_id: int) -> tuple[DocumentRecord, str]:
        """Give a document, and its text."""
        found, text = StoredDocuments(self.store).read(document_id)
        (document,) = self.documents([found])
        return document, text if self.past else self.document_text(document_id)

    def document_text(self, document_id: int) -> str:
        if self.past:
            return StoredDocuments(self.store).text(document_id)
        with self.store.sessions() as session:
            return withholding.text(session, document_id)

    def export(self, corpus: str) -> Iterator[AnnotatedDocument]:
        """Export a corpus with its live facts; without `past`, with those that say what the text says."""
        if self.past:
            return Corpora(self.store).export(corpus, live_only=True)
        return withholding.corpus(Corpora(self.store).export(corpus, live_only=False))

    def trace_output(self, generation_id: int) -> OutputTrace:
        traced = Outputs(self.store).trace(generation_id)
        if self.past:
            return traced
        with self.store.sessions() as session:
            return withholding.output(session, traced)

    def misses(self, asks: Asks | None = None) -> Misses:
        """Give the work list of misses; `asks` answers questions again."""
        from colmlm.kb.misses.misses import Misses

        return Misses(self.store, asks, None if self.past else withholding.texts)

    def generations(
        self, after: int = 0, limit: int = 50, thumb: Thumb | None = None
    ) -> list[GenerationRecord]:
        found = Outputs(self.store).find(after=after, limit=limit, thumb=thumb)
        if self.past:
            return found
        with self.store.sessions() as session:
            return withholding.outputs(session, found)

    def questions(self, found: Sequence[KeptQuestion]) -> list[KeptQuestion]:
        if self.past:
            return list(found)
        with self.store.sessions() as session:
            return questions(session, found)

    def asked(self, found: Sequence[AskedItem]) -> list[AskedItem]:
        if self.past:
            return list(found)
        with self.store.sessions() as session:
            return items(session, found)

    def compared(self, found: RunComparison) -> RunComparison:
        if self.past:
            return found
        with self.store.sessions() as session:
            return comparison(session, found)


# Withholds the past in kept questions and in what runs were answered, by the facts that answered them.
#
# A value is past where one of its facts is deleted, or says something else by now. Past texts are withheld
# wherever the question or the expected values say them, but for what the facts still say.

_Texts = Mapping[int, tuple[str | None, tuple[str, ...]]]


def questions(session: Session, found: Sequence[KeptQuestion]) -> list[KeptQuestion]:
    """Give these questions with past texts withheld."""
    texts = texts_of(session, [fact_id for one in found for fact_id in one.fact_ids])
    return [_question(one, _Past.of(texts, one.fact_ids)) for one in found]


def items(session: Session, found: Sequence[AskedItem]) -> list[AskedItem]:
    """Give what came of questions with the past texts of all facts that ever answered them withheld."""
    answered = reading.facts_of(session, [one.question_id for one in found])
    facts = {one.question_id: {*answered.get(one.question_id, ()), *one.fact_ids} for one in found}
    texts = texts_of(session, [fact_id for every in facts.values() for fact_id in every])
    return [_item(one, texts, sorted(facts[one.question_id])) for one in found]


def comparison(session: Session, found: RunComparison) -> RunComparison:
    """Give a comparison with past texts withheld in both runs."""
    both = [item for one in found.items for item in (one.before, one.after) if item is not None]
    shown = iter(items(session, both))
    return replace(
        found,
        items=tuple(
            replace(one, before=one.before and next(shown), after=one.after and next(shown))
            for one in found.items
        ),
    )


@dataclass(frozen=True, slots=True)
class _Past:
    """Past texts, and the present ones that stay even where they are among these."""

    gone: Phrases
    stays: Phrases

    @classmethod
    def of(cls, texts: _Texts, fact_ids: Sequence[int], *also: str) -> _Past:
        known = [texts[fact_id] for fact_id in fact_ids if fact_id in texts]
        past = [said for _, every in known for said in every]
        return cls(Phrases([*past, *also]), Phrases(now for now, _ in known if now is not None))

    def shown(self, text: str) -> str:
        return (
            blank_out(text, split_apart(self.gone.spans(text), self.stays.spans(text))) if self.gone else text
        )


def _question(one: KeptQuestion, past: _Past) -> KeptQuestion:
    return replace(one, question=past.shown(one.question), expected=tuple(map(past.shown, one.expected)))


def _item(one: AskedItem, texts: _Texts, fact_ids: Sequence[int]) -> AskedItem:
    is_past = one.value is not None and any(
        not _says(texts[fact_id][0], one.value) for fact_id in one.fact_ids if fact_id in texts
    )
    past = _Past.of(texts, fact_ids, *([one.value] if is_past and one.value else []))
    return replace(
        one,
        question=past.shown(one.question),
        expected=tuple(map(past.shown, one.expected)),
        value=MARK * len(one.value) if is_past and one.value else one.value,
    )


def _says(now: str | None, value: str) -> bool:
    """Say whether a fact still says this value: all of it, a part, or more."""
    if now is None:
        return False
    said, current = f" {normalise_wording(value)} ", f" {normalise_wording(now)} "
    return said in current or current in said
