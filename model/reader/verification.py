"""Verification of generated questions: one is kept where the reader comes back with it to the span it was written for.

The reader gets the document as it gets it where questions are answered: sentences, each with the one before it. Of a
long document it reads the windows that hold the span, and of the others those that share most words with the question,
so that a question costs the same in a document of any length.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import log

from colmlm.kb.answers.reading import Passage, Reader
from colmlm.kb.corpus.format import AnnotatedDocument, FactSpan
from colmlm.model.annotate.bio import Span
from colmlm.model.annotate.checks import Fault
from colmlm.model.annotate.words import telling
from colmlm.model.reader.windows import sentences_of, windows_of

MARGIN = 4.0  # see docs/annotation.md
COMMON = 0.3  # of the mean length of answer and span: a whole sentence comes back to none of its facts
OTHERS = 4


@dataclass(frozen=True, slots=True)
class Verifier:
    """Verifies questions by this reader; `margin` is how far an answer must be above "not in here", in logits."""

    reader: Reader
    margin: float = MARGIN

    def of(self, document: AnnotatedDocument) -> DocumentVerifier:
        """Gives what verifies the questions of a document."""
        windows = windows_of(sentences_of(document.text))
        said = [telling(document.text[start:end]) for start, end in windows]
        return DocumentVerifier(self, document, windows, said)


@dataclass(frozen=True, slots=True)
class DocumentVerifier:
    """Verifies the questions of one document, whose windows say these words."""

    verifier: Verifier
    document: AnnotatedDocument
    windows: Sequence[Span]
    said: Sequence[frozenset[str]]

    def __call__(self, span: FactSpan) -> Fault | None:
        """Reads a span's question in the document; finds a fault where it leads elsewhere, or nowhere."""
        text, title = self.document.text, self.document.title or ""
        chosen = self._chosen(span)
        passages = [Passage(title, text[start:end]) for start, end in chosen]
        readings = self.verifier.reader.read(span.question or "", passages)
        found = [
            (reading.margin, start + reading.spans[0][0], start + reading.spans[0][1])
            for (start, _), reading in zip(chosen, readings, strict=True)
            if reading.spans
        ]
        margin, start, end = max(found, default=(float("-inf"), 0, 0))
        if margin < self.verifier.margin:
            return Fault(
                "unverified", "Read with this question, the text gives no answer that is sure enough."
            )
        common = min(end, span.end) - max(start, span.start)
        if common < COMMON * (end - start + span.end - span.start) / 2:
            return Fault("unverified", f"Read with this question, the text answers {text[start:end]!r}.")
        return None

    def _chosen(self, span: FactSpan) -> list[Span]:
        """Gives the windows that hold a part of the span, and the `OTHERS` that share most with its question."""
        holding = [window for window in self.windows if window[0] < span.end and span.start < window[1]]
        asked = telling(span.question or "")
        weight = self._weights(asked)
        shared = sorted(
            (-sum(weight[word] for word in asked & said), window)
            for window, said in zip(self.windows, self.said, strict=True)
            if window not in holding
        )
        return holding + [window for _, window in shared[:OTHERS]]

    def _weights(self, asked: frozenset[str]) -> dict[str, float]:
        """Weighs words: the fewer windows say one, the more it tells."""
        times = Counter(word for said in self.said for word in asked & said)
        return {word: log(1 + len(self.said) / (1 + times[word])) for word in asked}
