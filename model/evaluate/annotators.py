"""The quality of annotators, measured against annotated documents that neither has seen.

Spans are compared *exactly*, since a span is a value that will be spliced unchanged, and by *overlap*, since a set of
questions such as SQuAD's marks one of several good bounds. Such a set marks only what somebody asked about, so its
precision is a lower bound: most of the other spans found are facts, too. Questions are judged by their use (*round
trip*): does the state at a question's ``<FACT-q>`` find its own fact's key among all facts of the documents?
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from colmlm.kb.corpus.format import AnnotatedDocument, FactSpan, check_spans
from colmlm.model.annotate.annotators import (
    GeneratedQuestion,
    QuestionGenerator,
    SpanAnnotator,
    TaggedText,
    documents_together,
)
from colmlm.model.annotate.checkpoint import AnnotatorConfig
from colmlm.model.annotate.spans import SpannedText
from colmlm.model.evaluate.recall import Encodes, Recall, document_keys, measure_recall
from colmlm.model.lm.checkpoint import Checkpoint
from colmlm.model.lm.encoder import KeyEncoder
from colmlm.model.text.markup import Span

THRESHOLDS = tuple(twentieths / 20 for twentieths in range(1, 19))
Questions = Sequence[Sequence[GeneratedQuestion | None]]


@dataclass(frozen=True, slots=True)
class Agreement:
    """Shares in [0, 1]: found spans that are marked, marked spans that are found, and the harmonic mean of both."""

    precision: float
    recall: float
    f1: float


@dataclass(frozen=True, slots=True)
class SpanQuality:
    """The agreement of found spans with those that documents mark; `marked` and `found` are the numbers of both.

    `verbatim` is the share of the found spans that a corpus accepts: a stretch of the text, not blank, that overlaps no
    other.
    """

    marked: int
    found: int
    exact: Agreement
    overlap: Agreement
    verbatim: float


def span_quality(documents: Sequence[AnnotatedDocument], found: Sequence[Sequence[Span]]) -> SpanQuality:
    """Compare the spans `found` in each document with the spans that the document marks."""
    marked = [[(span.start, span.end) for span in document.facts] for document in documents]
    num_marked, num_found = sum(map(len, marked)), sum(map(len, found))
    exact = sum(len(set(m) & set(f)) for m, f in zip(marked, found, strict=True))
    met = sum(_count_overlapping_spans(f, m) for m, f in zip(marked, found, strict=True))
    reached = sum(_count_overlapping_spans(m, f) for m, f in zip(marked, found, strict=True))
    held = sum(_count_verbatim(document, spans) for document, spans in zip(documents, found, strict=True))
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
    """Measure how often the generated questions, by document, find their own fact among all (keys `keys_KD`)."""
    written = [question for asked in questions for question in asked]
    rows = [row for row, question in enumerate(written) if question is not None]
    queries_QD = encoder.encode_questions([q.question for q in written if q is not None])
    values = [span.value for document in documents for span in document.facts]
    return measure_recall(queries_QD, np.array(rows, dtype=np.int64), keys_KD, values)


@dataclass(frozen=True, slots=True)
class PrefixGain:
    """The time saved by reading a document once for all its spans: seconds with and without, on the same documents.

    `gain` is the ratio of separate to shared seconds; `same` is the share of spans with the same question either way.
    """

    spans: int
    shared_seconds: float
    separate_seconds: float
    gain: float
    same: float


def prefix_gain(generator: QuestionGenerator, passages: Sequence[SpannedText]) -> PrefixGain:
    """Time the writing of questions for all spans, one passage at a time, with a shared prefix and without."""
    generator.annotate(passages[:1])  # the first forward allocates memory
    shared, shared_seconds = _time_work(lambda: [generator.annotate([p])[0] for p in passages])
    separate, separate_seconds = _time_work(
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
    """Make the question generator's input from a document: its text, its title and its facts' spans."""
    return SpannedText(document.text, [(span.start, span.end) for span in document.facts], document.title)


def _time_work(work: Callable[[], list[list[GeneratedQuestion | None]]]) -> tuple[Questions, float]:
    started = perf_counter()
    return work(), perf_counter() - started


def _count_overlapping_spans(spans: Sequence[Span], others: Sequence[Span]) -> int:
    """Count the `spans` that share a character with one of `others`. Both are sorted and do not overlap."""
    met = at = 0
    for start, end in spans:
        while at < len(others) and others[at][1] <= start:
            at += 1
        met += at < len(others) and others[at][0] < end
    return met


def _count_verbatim(document: AnnotatedDocument, spans: Sequence[Span]) -> int:
    facts = [FactSpan(start, end, document.text[start:end]) for start, end in spans]
    return len(check_spans(document.external_id, document.text, facts)[0])


def _agreement(right_found: int, found: int, right_marked: int, marked: int) -> Agreement:
    precision, reached = _share(right_found, found), _share(right_marked, marked)
    total = precision + reached
    return Agreement(precision, reached, round(2 * precision * reached / total, 4) if total else 0.0)


def _share(part: int, whole: int) -> float:
    return round(part / whole, 4) if whole else 0.0


# Measurements of annotators on a set of documents, and the threshold calibrated on documents held out of
# training.

PREFIX_DOCUMENTS = 12  # the number of documents that are also asked about for each span separately
OnDocuments = Callable[[int, int | None], None]


@dataclass(frozen=True, slots=True)
class SpanReport:
    """Figures of the span annotator. `exact_by_threshold` has the exact agreement at other thresholds.

    `coverage` is that of the marked spans by found facts, at its own threshold and at several densities of facts.
    """

    annotator: str
    threshold: float
    quality: SpanQuality
    exact_by_threshold: dict[str, Agreement]
    coverage: list[Coverage]
    seconds_per_1000_tokens: float


@dataclass(frozen=True, slots=True)
class QuestionReport:
    """Figures of the question generator.

    `round_trip` is that of the generated questions, `of_the_documents` that of the questions people wrote.
    """

    annotator: str
    written: int
    round_trip: Recall | None
    of_the_documents: Recall | None
    seconds_per_1000_tokens: float
    prefix: PrefixGain


@dataclass(frozen=True, slots=True)
class AnnotatorMeasures:
    """Figures of both annotators. `tokens` counts those of the documents' texts with the checkpoint's tokenizer."""

    documents: int
    facts: int
    tokens: int
    spans: SpanReport | None
    questions: QuestionReport | None


def measure_annotators(
    documents: Sequence[AnnotatedDocument],
    checkpoint: Checkpoint,
    cache: Path,
    *,
    span_annotator: Path | None,
    question_generator: Path | None,
    on_documents: OnDocuments,
) -> AnnotatorMeasures:
    """Measure the annotators in these directories (None: not that one). Questions are written for the marked spans."""
    tokens = sum(len(checkpoint.tokenizer.encode(document.text)) for document in documents)
    spans = span_annotator and _report_spans(SpanAnnotator.load(span_annotator, cache), documents, tokens)
    questions = question_generator and _report_questions(
        QuestionGenerator.load(question_generator, cache), documents, checkpoint, tokens, on_documents
    )
    return AnnotatorMeasures(
        len(documents), sum(len(d.facts) for d in documents), tokens, spans or None, questions or None
    )


def calibrate_threshold(
    directory: Path, cache: Path, documents: Sequence[AnnotatedDocument], per_100_words: float
) -> float:
    """Set the span annotator's threshold to the one that finds `per_100_words` facts in held-out documents; give it."""
    tagged = SpanAnnotator.load(directory, cache).tag([document.text for document in documents])
    threshold = threshold_for(tagged, per_100_words)
    config = AnnotatorConfig.load(directory)
    reading = config.reading | {"threshold": threshold}
    training = config.training | {"threshold_documents": len(documents)}
    replace(config, reading=reading, training=training).save(directory)
    return threshold


def _report_spans(
    annotator: SpanAnnotator, documents: Sequence[AnnotatedDocument], tokens: int
) -> SpanReport:
    texts = [document.text for document in documents]
    annotator.spans(texts[:1])  # the first forward allocates memory
    started = perf_counter()
    tagged = annotator.tag(texts)
    found = [text.spans(annotator.threshold) for text in tagged]
    seconds = perf_counter() - started
    curve = {str(t): span_quality(documents, [text.spans(t) for text in tagged]).exact for t in THRESHOLDS}
    marked = [[(span.start, span.end) for span in document.facts] for document in documents]
    return SpanReport(
        annotator=annotator.config.name,
        threshold=annotator.threshold,
        quality=span_quality(documents, found),
        exact_by_threshold=curve,
        coverage=[
            measure_coverage(texts, marked, found, annotator.threshold),
            *coverage_curve(marked, tagged),
        ],
        seconds_per_1000_tokens=round(1000 * seconds / tokens, 3),
    )


def _report_questions(
    generator: QuestionGenerator,
    documents: Sequence[AnnotatedDocument],
    checkpoint: Checkpoint,
    tokens: int,
    on_documents: OnDocuments,
) -> QuestionReport:
    asked: list[list[GeneratedQuestion | None]] = []
    started = perf_counter()
    together = documents_together(generator.device)
    for at in range(0, len(documents), together):
        asked += generator.annotate([passage(document) for document in documents[at : at + together]])
        on_documents(len(asked), len(documents))
    seconds = perf_counter() - started
    own = [
        [GeneratedQuestion(span.question, span.value) if span.question else None for span in document.facts]
        for document in documents
    ]
    encoder = KeyEncoder(checkpoint)
    keys_KD = document_keys(encoder, documents, lambda _: None)
    trips = [
        round_trip(encoder, documents, questions, keys_KD) if _has_question(questions) else None
        for questions in (asked, own)
    ]
    return QuestionReport(
        annotator=generator.config.name,
        written=sum(question is not None for questions in asked for question in questions),
        round_trip=trips[0],
        of_the_documents=trips[1],
        seconds_per_1000_tokens=round(1000 * seconds / tokens, 3),
        prefix=prefix_gain(generator, [passage(d) for d in islice(documents, PREFIX_DOCUMENTS)]),
    )


def _has_question(questions: Sequence[Sequence[GeneratedQuestion | None]]) -> bool:
    return any(question is not None for asked in questions for question in asked)


# How much of what people ask for is a fact: the coverage of asked values by facts, at so many facts per 100
# words.

PER_100_WORDS = (5.0, 10.0, 15.0, 20.0)
_ARTICLE = re.compile(r"\b(?:a|an|the)\b")
_SIGN = re.compile(r"[^\w\s]")
_LOWEST, _STEPS = 1e-4, 24  # the bisection for a threshold


@dataclass(frozen=True, slots=True)
class Coverage:
    """Shares of the asked values: those that are a fact, that overlap one, and that lie within one.

    `exact` is up to articles, case and punctuation, as SQuAD compares answers; `verbatim` is to the character.
    """

    per_100_words: float
    threshold: float | None
    asked: int
    exact: float
    verbatim: float
    overlap: float
    inside: float


def measure_coverage(
    texts: Sequence[str],
    asked: Sequence[Sequence[Span]],
    found: Sequence[Sequence[Span]],
    threshold: float | None = None,
) -> Coverage:
    """Compare the spans `asked` for in each text with the facts `found` in it, which are sorted, without overlap."""
    exact = verbatim = overlap = inside = 0
    for text, values, facts in zip(texts, asked, found, strict=True):
        ends = [end for _, end in facts]
        for start, end in values:
            met = []
            at = bisect_right(ends, start)
            while at < len(facts) and facts[at][0] < end:
                met.append(facts[at])
                at += 1
            said = normalise_value(text[start:end])
            overlap += bool(met)
            exact += any(normalise_value(text[a:b]) == said for a, b in met)
            verbatim += (start, end) in met
            inside += any(a <= start and end <= b for a, b in met)
    total = sum(map(len, asked))
    words = sum(len(text.split()) for text in texts)
    shares = [round(part / total, 4) if total else 0.0 for part in (exact, verbatim, overlap, inside)]
    return Coverage(round(100 * sum(map(len, found)) / max(1, words), 2), threshold, total, *shares)


def coverage_curve(
    asked: Sequence[Sequence[Span]], tagged: Sequence[TaggedText], densities: Sequence[float] = PER_100_WORDS
) -> list[Coverage]:
    """Measure the coverage of the spans `asked` for at each of these densities: numbers of facts per 100 words."""
    texts = [text.text for text in tagged]
    curve = []
    for density in densities:
        threshold = threshold_for(tagged, density)
        curve.append(measure_coverage(texts, asked, [text.spans(threshold) for text in tagged], threshold))
    return curve


def threshold_for(tagged: Sequence[TaggedText], per_100_words: float) -> float:
    """Find the threshold that gives about `per_100_words` facts per 100 words; the lowest one if none gives so many."""
    words = sum(len(text.text.split()) for text in tagged)
    low, high = _LOWEST, 1 - _LOWEST
    for _ in range(_STEPS):
        middle = (low * high) ** 0.5 if high < 0.1 else (low + high) / 2
        many = 100 * sum(len(text.spans(middle)) for text in tagged) > per_100_words * words
        low, high = (middle, high) if many else (low, middle)
    return round(high, 4)


def normalise_value(value: str) -> str:
    """Give a value as SQuAD compares answers: without case, punctuation and articles."""
    return " ".join(_ARTICLE.sub(" ", _SIGN.sub("", value.lower())).split())
