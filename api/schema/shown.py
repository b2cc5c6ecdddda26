"""What a key is shown of the knowledge base: all of it, or without the right to audit only what stands.

To ask for the past is refused; where it is met on the way, as in the text of a document, marks stand for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from colmlm.api.errors import RightMissing
from colmlm.api.ports import Ports
from colmlm.api.routes.edits import WithKey
from colmlm.kb.access.api_keys import Right
from colmlm.kb.corpus.format import AnnotatedDocument
from colmlm.kb.evidence import withholding
from colmlm.kb.evidence.impact import ImpactedOutput, impact_of
from colmlm.kb.facts.documents import DocumentRecord, Documents
from colmlm.kb.records import FactRecord, FactTrace, GenerationRecord, OutputTrace
from colmlm.kb.service import KnowledgeBase


def require_past(request: WithKey) -> None:
    """Raise `RightMissing` unless the key may ask for what was deleted, corrected or replaced."""
    if not request.user.may(Right.audit):
        raise RightMissing(request.user.role, Right.audit)


def shown_to(request: WithKey, ports: Ports) -> Shown:
    """The knowledge base as this key may read it."""
    return Shown(ports.kb, past=request.user.may(Right.audit))


@dataclass(frozen=True, slots=True)
class Shown:
    """Reads a knowledge base for somebody; not `past`: without what the base says no more."""

    kb: KnowledgeBase
    past: bool

    def fact(self, fact_id: int) -> FactRecord:
        (fact,) = self.facts([self.kb.fact(fact_id)])
        return fact

    def facts(self, found: list[FactRecord]) -> list[FactRecord]:
        if self.past:
            return found
        with self.kb.sessions() as session:
            return withholding.facts(session, found)

    def trace_fact(self, fact_id: int) -> FactTrace:
        traced = self.kb.trace_fact(fact_id)
        if self.past:
            return traced
        with self.kb.sessions() as session:
            return withholding.trace(session, traced)

    def uses(self, fact_id: int) -> tuple[ImpactedOutput, ...]:
        found = impact_of(self.kb, fact_id).outputs
        if self.past:
            return found
        with self.kb.sessions() as session:
            return tuple(withholding.outputs(session, found))

    def documents(self, found: list[DocumentRecord]) -> list[DocumentRecord]:
        if self.past:
            return found
        with self.kb.sessions() as session:
            return withholding.documents(session, found)

    def document(self, document_id: int) -> tuple[DocumentRecord, str]:
        """A document, and its text."""
        found, text = Documents(self.kb).read(document_id)
        (document,) = self.documents([found])
        return document, text if self.past else self.document_text(document_id)

    def document_text(self, document_id: int) -> str:
        if self.past:
            return self.kb.document_text(document_id)
        with self.kb.sessions() as session:
            return withholding.text(session, document_id)

    def export(self, corpus: str) -> Iterator[AnnotatedDocument]:
        """The corpus with its live facts that the texts still say."""
        if self.past:
            return self.kb.export(corpus, live_only=True)
        return withholding.corpus(self.kb.export(corpus, live_only=False))

    def trace_output(self, generation_id: int) -> OutputTrace:
        traced = self.kb.trace_output(generation_id)
        if self.past:
            return traced
        with self.kb.sessions() as session:
            return withholding.output(session, traced)

    def generations(self, after: int = 0, limit: int = 50) -> list[GenerationRecord]:
        found = self.kb.generations(after=after, limit=limit)
        if self.past:
            return found
        with self.kb.sessions() as session:
            return withholding.outputs(session, found)
