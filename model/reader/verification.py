"""Verification of generated questions: one is kept where the reader comes back with it to the span it was written for.

The reader gets the document as it gets it where questions are answered: sentences, each with the one before it. Of a
long document it reads the windows that hold the span, and of the others those that share most words with the question,
so that a question costs the same in a document of any length. Training draws its windows here, too.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import log

from colmlm.kb.answers.reading import Passage, Reader
from colmlm.kb.corpus.format import AnnotatedDocument, FactSpan
from colmlm.kb.texts.sentences import sentence_ends
from colmlm.model.annotate.checks import Fault, telling_words
from colmlm.model.text.markup import Span

# Windows of a text as they are read: a sentence with the one before it, and other cuts around a value.


def sentences_of(text: str) -> list[Span]:
    """Give the sentences of a text without outer blanks; blank ones are left out."""
    bounds = zip((0, *(ends := sentence_ends(text))), ends, strict=False)
    stripped = (_strip_blanks(text, start, end) for start, end in bounds)
    return [span for span in stripped if span[0] < span[1]]


def windows_of(sentences: Sequence[Span]) -> list[Span]:
    """Give the window of each sentence: from the beginning of the one before it to its own end."""
    return [(sentences[max(0, n - 1)][0], end) for n, (_, end) in enumerate(sentences)]


def usual_window(sentences: Sequence[Span], gold: Span) -> Span:
    """Give the window of the sentence that holds `gold`, or of the sentences."""
    first, last = _sentences_holding(sentences, gold)
    return sentences[max(0, first - 1)][0], sentences[last][1]


def window_around(text: str, sentences: Sequence[Span], gold: Span, rng: random.Random) -> Span:
    """Draw a window that holds `gold`: mostly its sentence with the one before it.

    The others are cuts that a search may make as well: the sentence alone, with the one after it, with both, or a
    stretch that begins and ends at any word.
    """
    first, last = _sentences_holding(sentences, gold)
    before, after = max(0, first - 1), min(len(sentences) - 1, last + 1)
    drawn = rng.random()
    if drawn < 0.55:
        return usual_window(sentences, gold)
    if drawn < 0.70:
        return sentences[first][0], sentences[after][1]
    if drawn < 0.80:
        return sentences[first][0], sentences[last][1]
    if drawn < 0.90:
        return sentences[before][0], sentences[after][1]
    start = text.rfind(" ", 0, max(0, gold[0] - rng.randrange(300))) + 1
    end = text.find(" ", min(len(text), gold[1] + rng.randrange(300)))
    return start, len(text) if end < 0 else end


def _sentences_holding(sentences: Sequence[Span], gold: Span) -> tuple[int, int]:
    """Give the first and the last sentence that hold a part of `gold`."""
    held = [n for n, (start, end) in enumerate(sentences) if start < gold[1] and end > gold[0]]
    return held[0], held[-1]


def _strip_blanks(text: str, start: int, end: int) -> Span:
    said = text[start:end]
    return start + len(said) - len(said.lstrip()), end - len(said) + len(said.rstrip())


# The verification of a document's questions.

MARGIN = 4.0  # see docs/annotation.md
COMMON = 0.3  # of the mean length of answer and span: a whole sentence comes back to none of its facts
OTHERS = 4


@dataclass(frozen=True, slots=True)
class Verifier:
    """Verifies questions by this reader; `margin` is how far an answer must be above "not in here", in logits."""

    reader: Reader
    margin: float = MARGIN

    def of(self, document: AnnotatedDocument) -> DocumentVerifier:
        """Give what verifies the questions of a document."""
        windows = windows_of(sentences_of(document.text))
        said = [telling_words(document.text[start:end]) for start, end in windows]
        return DocumentVerifier(self, document, windows, said)


@dataclass(frozen=True, slots=True)
class DocumentVerifier:
    """Verifies the questions of one document, whose windows say these words."""

    verifier: Verifier
    document: AnnotatedDocument
    windows: Sequence[Span]
    said: Sequence[frozenset[str]]

    def __call__(self, span: FactSpan) -> Fault | None:
        """Read a span's question in the document; find a fault where it leads elsewhere, or nowhere."""
        text, title = self.document.text, self.document.title or ""
        chosen = self._choose_windows(span)
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

    def _choose_windows(self, span: FactSpan) -> list[Span]:
        """Give the windows that hold a part of the span, and the `OTHERS` that share most with its question."""
        holding = [window for window in self.windows if window[0] < span.end and span.start < window[1]]
        asked = telling_words(span.question or "")
        weight = self._weights(asked)
        shared = sorted(
            (-sum(weight[word] for word in asked & said), window)
            for window, said in zip(self.windows, self.said, strict=True)
            if window not in holding
        )
        return holding + [window for _, window in shared[:OTHERS]]

    def _weights(self, asked: frozenset[str]) -> dict[str, float]:
        """Weigh words: the fewer windows say one, the more it tells."""
        times = Counter(word for said in self.said for word in asked & said)
        return {word: log(1 + len(self.said) / (1 + times[word])) for word in asked}
