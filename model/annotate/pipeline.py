"""Annotates raw documents with the two light annotators (section 3.3): spans, then a question for each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Protocol

from colmlm.kb.corpus.format import AnnotatedDocument, FactSpan, check_spans
from colmlm.model.annotate.checks import Fault, Rejected, Reviewed, review

BATCH = 8  # the number of documents whose spans are found together

Offsets = tuple[int, int]


class QuestionAndAnswer(Protocol):
    """A question about a span, and the answer as a snippet."""

    @property
    def question(self) -> str: ...

    @property
    def answer(self) -> str: ...


class SpanFinder(Protocol):
    """Finds the fact spans of texts as offsets in code points, sorted and without overlap (`model.annotate.spans`)."""

    def spans(self, texts: Sequence[str]) -> Sequence[Sequence[Offsets]]: ...


class QuestionWriter(Protocol):
    """Writes a question and an answer for each span of a text, or None (`model.annotate.questions`)."""

    def questions(
        self, text: str, spans: Sequence[Offsets], title: str | None
    ) -> Sequence[QuestionAndAnswer | None]: ...


class QuestionVerifier(Protocol):
    """Gives, for a document, what finds that a span's question leads elsewhere (`model.reader.verification`)."""

    def of(self, document: AnnotatedDocument) -> Callable[[FactSpan], Fault | None]: ...


@dataclass(frozen=True, slots=True)
class Annotator:
    """Annotates documents; without a question generator their facts have no questions.

    Every question goes through `model.annotate.checks.review`, and where there is a `verifier` must lead it back to its
    span. `drop_unquestioned` drops the facts whose question was
    rejected or not written; without it they stay, and are found by their context.
    """

    span_annotator: SpanFinder
    question_generator: QuestionWriter | None = None
    drop_unquestioned: bool = False
    verifier: QuestionVerifier | None = None

    def annotate(
        self, documents: Iterable[AnnotatedDocument], skip: Callable[[AnnotatedDocument], bool] | None = None
    ) -> Iterator[Reviewed]:
        """Yields the documents with their facts, in order; facts that they had before are discarded.

        Documents for which `skip` is true are left out. The spans of a batch are found together, and batches are made
        of all documents, so that a document gets the same facts whichever of its neighbours were done before.
        """
        remaining = iter(documents)
        while batch := list(islice(remaining, BATCH)):
            wanted = [document for document in batch if skip is None or not skip(document)]
            if not wanted:
                continue
            found = self.span_annotator.spans([document.text for document in batch])
            for document, spans in zip(batch, found, strict=True):
                if document in wanted:
                    yield self._document(document, spans)

    def _document(self, document: AnnotatedDocument, found: Sequence[Offsets]) -> Reviewed:
        text = document.text
        spans = [FactSpan(start, end, text[start:end]) for start, end in found]
        sound, refusals = check_spans(document.external_id, text, spans)
        rejected = tuple(
            Rejected(r.document, r.offset, r.offset, "span", f"The span is refused: {r.reason}.")
            for r in refusals
        )
        asked = replace(document, facts=tuple(self._asked(document, sound)))
        reviewed = review(
            asked,
            drop_unquestioned=self.drop_unquestioned and self.question_generator is not None,
            verify=self.verifier.of(asked) if self.verifier else lambda _: None,
        )
        return Reviewed(reviewed.document, rejected + reviewed.rejected)

    def _asked(self, document: AnnotatedDocument, spans: Sequence[FactSpan]) -> Iterator[FactSpan]:
        """Yields the spans, each with a question and an answer if they were written."""
        if self.question_generator is None or not spans:
            yield from spans
            return
        offsets = [(span.start, span.end) for span in spans]
        written = self.question_generator.questions(document.text, offsets, document.title)
        for span, one in zip(spans, written, strict=True):
            if one is None:
                yield span
            else:
                yield replace(span, question=one.question.strip() or None, answer=one.answer.strip() or None)
