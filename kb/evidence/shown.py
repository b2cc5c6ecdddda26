"""Shows a knowledge base to a caller: all of it, or to a caller without the right to audit only what is current.

Where past values appear in what is shown, as in the text of a document, `kb.evidence.withholding` replaces them by
marks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Unpack

from colmlm.kb.corpus.format import AnnotatedDocument
from colmlm.kb.evidence import kept_questions, withholding
from colmlm.kb.evidence.outputs import Outputs
from colmlm.kb.evidence.records import FactTrace, GenerationRecord, ImpactedOutput, OutputTrace, Thumb
from colmlm.kb.evidence.withholding import Listed
from colmlm.kb.facts.compared import ComparedPart, Kind, PairPage, PairsSought, StalePage
from colmlm.kb.facts.comparisons import Comparisons
from colmlm.kb.facts.corpora import Corpora
from colmlm.kb.facts.documents import StoredDocuments
from colmlm.kb.facts.facts import Facts
from colmlm.kb.facts.records import DocumentRecord, FactPage, FactRecord, FactSearch
from colmlm.kb.lookup.searchable import SearchableStore
from colmlm.kb.questions.records import AskedItem, KeptQuestion, RunComparison
from colmlm.kb.review.records import Inbox, InboxSought
from colmlm.kb.review.review import FactReview

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
        """Searches facts; without `past` nothing is found by what is withheld."""
        found = Facts(self.store).search(nearest=nearest, past=self.past, **sought)
        return found if self.past else replace(found, facts=tuple(self.facts(found.facts)))

    def inbox(self, **sought: Unpack[InboxSought]) -> Inbox:
        found = FactReview(self.store).inbox(**sought)
        if self.past:
            return found
        with self.store.sessions() as session:
            return replace(found, items=tuple(withholding.inbox(session, found.items)))

    def pairs(self, kind: Kind, **sought: Unpack[PairsSought]) -> PairPage:
        """Lists pairs of facts as `Comparisons` does."""
        found = Comparisons(self.store).pairs(kind, **sought)
        shown = iter(self.facts([fact for pair in found.pairs for fact in (pair.fact, pair.other)]))
        pairs = tuple(replace(pair, fact=next(shown), other=next(shown)) for pair in found.pairs)
        return replace(found, pairs=pairs)

    def stale(self, **part: Unpack[ComparedPart]) -> StalePage:
        """Lists stale facts as `Comparisons` does."""
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
        """Gives a document, and its text."""
        found, text = StoredDocuments(self.store).read(document_id)
        (document,) = self.documents([found])
        return document, text if self.past else self.document_text(document_id)

    def document_text(self, document_id: int) -> str:
        if self.past:
            return StoredDocuments(self.store).text(document_id)
        with self.store.sessions() as session:
            return withholding.text(session, document_id)

    def export(self, corpus: str) -> Iterator[AnnotatedDocument]:
        """Exports a corpus with its live facts; without `past`, with those that say what the text says."""
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
        """Gives the work list of misses; `asks` answers questions again."""
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
            return kept_questions.questions(session, found)

    def asked(self, found: Sequence[AskedItem]) -> list[AskedItem]:
        if self.past:
            return list(found)
        with self.store.sessions() as session:
            return kept_questions.items(session, found)

    def compared(self, found: RunComparison) -> RunComparison:
        if self.past:
            return found
        with self.store.sessions() as session:
            return kept_questions.comparison(session, found)
