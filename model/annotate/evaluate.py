"""The quality of annotators, measured against annotated documents that neither has seen.

Spans are compared *exactly*, since a span is a value that will be spliced unchanged, and by *overlap*, since a set of
questions such as SQuAD's marks one of several good bounds. Such a set marks only what somebody asked about, so its
precision is a lower bound: most of the other spans found are facts, too. Questions are judged by their use (*round
trip*): does the state at a question's ``<FACT-q>`` find its own fact's key among all facts of the documents?
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from colmlm.kb.corpus.format import AnnotatedDocument, FactSpan, check_spans
from colmlm.model.annotate.bio import Span
from colmlm.model.annotate.questions import GeneratedQuestion, QuestionGenerator, SpannedText
from colmlm.model.evaluate.recall import Encodes, Recall, recall

THRESHOLDS = (
    0.05,
    0.1,
    0.15,
    0.2,
    0.25,
    0.3,
    0.35,
    0.4,
    0.45,
    0.5,
    0.55,
    0.6,
    0.65,
    0.7,
    0.75,
    0.8,
    0.85,
    0.9,
)
Questions = Sequence[Sequence[GeneratedQuestion | None]]


@dataclass(frozen=True, slots=True)
class Agreement:
    """Shares in [0, 1]: of found spans that are marked, of marked spans that are found, and their harmonic mean."""

    precision: float
    recall: float
    f1: float


@dataclass(frozen=True, slots=True)
class SpanQuality:
    """`marked` spans of the documents against `found` ones.

    `verbatim` is the share of the found spans that a corpus accepts: a stretch of the text, not blank, that overlaps no
    other.
    """

    marked: int
    found: int
    exact: Agreement
    overlap: Agreement
    verbatim: float


def span_quality(documents: Sequence[AnnotatedDocument], found: Sequence[Sequence[Span]]) -> SpanQuality:
    """Compares found spans with those that the documents mark."""
    marked = [[(span.start, span.end) for span in document.facts] for document in documents]
    num_marked, num_found = sum(map(len, marked)), sum(map(len, found))
    exact = sum(len(set(m) & set(f)) for m, f in zip(marked, found, strict=True))
    met = sum(_met(f, m) for m, f in zip(marked, found, strict=True))
    reached = sum(_met(m, f) for m, f in zip(marked, found, strict=True))
    held = sum(_verbatim(document, spans) for document, spans in zip(documents, found, strict=True))
    return SpanQuality(
        marked=num_marked,
        found=num_found,
        exact=_agreement(exact, num_found, exact, num_marked),
        overlap=_agreement(met, num_found, reached, num_marked),
        verbatim=_share(held, num_found),
    )


def round_trip(
    encoder: Encodes,
    documents: Sequence[AnnotatedDocument],
    questions: Questions,
    keys_KD: NDArray[np.float32],
) -> Recall:
    """Measures how often a written question finds its own fact among those of all documents (keys `keys_KD`)."""
    written = [question for asked in questions for question in asked]
    rows = [row for row, question in enumerate(written) if question is not None]
    queries_QD = encoder.encode_questions([q.question for q in written if q is not None])
    values = [span.value for document in documents for span in document.facts]
    return recall(queries_QD, np.array(rows, dtype=np.int64), keys_KD, values)


@dataclass(frozen=True, slots=True)
class PrefixGain:
    """The time saved by reading a document once for all its spans: seconds with and without, on the same documents.

    `same` is the share of spans whose question is the same either way.
    """

    spans: int
    shared_seconds: float
    separate_seconds: float
    gain: float
    same: float


def prefix_gain(generator: QuestionGenerator, passages: Sequence[SpannedText]) -> PrefixGain:
    """Asks about every span of the passages, a document at a time, with the prefix shared and without."""
    generator.annotate(passages[:1])  # the first forward allocates memory
    shared, shared_seconds = _timed(lambda: [generator.annotate([p])[0] for p in passages])
    separate, separate_seconds = _timed(
        lambda: [generator.annotate([p], share_prefix=False)[0] for p in passages]
    )
    pairs = [pair for s, o in zip(shared, separate, strict=True) for pair in zip(s, o, strict=True)]
    return PrefixGain(
        spans=len(pairs),
        shared_seconds=round(shared_seconds, 2),
        separate_seconds=round(separate_seconds, 2),
        gain=round(separate_seconds / shared_seconds, 2),
        same=_share(sum(a == b for a, b in pairs), len(pairs)),
    )


def passage(document: AnnotatedDocument) -> SpannedText:
    """Gives a document as the question generator takes it, with the spans that it marks."""
    return SpannedText(document.text, [(span.start, span.end) for span in document.facts], document.title)


def _timed(work: Callable[[], list[list[GeneratedQuestion | None]]]) -> tuple[Questions, float]:
    started = perf_counter()
    return work(), perf_counter() - started


def _met(spans: Sequence[Span], others: Sequence[Span]) -> int:
    """Counts the `spans` that share a character with one of `others`. Both are sorted and do not overlap."""
    met = at = 0
    for start, end in spans:
        while at < len(others) and others[at][1] <= start:
            at += 1
        met += at < len(others) and others[at][0] < end
    return met


def _verbatim(document: AnnotatedDocument, spans: Sequence[Span]) -> int:
    facts = [FactSpan(start, end, document.text[start:end]) for start, end in spans]
    return len(check_spans(document.external_id, document.text, facts)[0])


def _agreement(right_found: int, found: int, right_marked: int, marked: int) -> Agreement:
    precision, reached = _share(right_found, found), _share(right_marked, marked)
    total = precision + reached
    return Agreement(precision, reached, round(2 * precision * reached / total, 4) if total else 0.0)


def _share(part: int, whole: int) -> float:
    return round(part / whole, 4) if whole else 0.0
