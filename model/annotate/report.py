"""Measurements of annotators on a set of documents, and the threshold calibrated on documents held out of training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from time import perf_counter

from colmlm.kb.corpus.format import AnnotatedDocument
from colmlm.model.annotate.checkpoint import AnnotatorConfig
from colmlm.model.annotate.coverage import Coverage, coverage, coverage_curve, threshold_for
from colmlm.model.annotate.evaluate import (
    THRESHOLDS,
    Agreement,
    PrefixGain,
    SpanQuality,
    passage,
    prefix_gain,
    round_trip,
    span_quality,
)
from colmlm.model.annotate.prompts import GeneratedQuestion
from colmlm.model.annotate.questions import QuestionGenerator
from colmlm.model.annotate.spans import SpanAnnotator
from colmlm.model.evaluate.recall import Recall, document_keys
from colmlm.model.lm.checkpoint import Checkpoint
from colmlm.model.lm.encoder import KeyEncoder

PREFIX_DOCUMENTS = 12  # the number of documents that are also asked about for each span separately
TOGETHER = 8  # the number of documents whose questions are decoded as one batch
OnDocuments = Callable[[int, int | None], None]


@dataclass(frozen=True, slots=True)
class SpanReport:
    """Figures of the span annotator. `exact_by_threshold` has those of other thresholds.

    `coverage` says how much of what is marked is a fact, at its own threshold and at those of other numbers of facts.
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


def measure(
    documents: Sequence[AnnotatedDocument],
    checkpoint: Checkpoint,
    cache: Path,
    *,
    span_annotator: Path | None,
    question_generator: Path | None,
    on_documents: OnDocuments,
) -> AnnotatorMeasures:
    """Measures the annotators in these directories; None leaves one out. Questions are asked about the marked spans."""
    tokens = sum(len(checkpoint.tokenizer.encode(document.text)) for document in documents)
    spans = span_annotator and _spans(SpanAnnotator.load(span_annotator, cache), documents, tokens)
    questions = question_generator and _questions(
        QuestionGenerator.load(question_generator, cache), documents, checkpoint, tokens, on_documents
    )
    return AnnotatorMeasures(
        len(documents), sum(len(d.facts) for d in documents), tokens, spans or None, questions or None
    )


def calibrate(
    directory: Path, cache: Path, documents: Sequence[AnnotatedDocument], per_100_words: float
) -> float:
    """Sets the threshold of the span annotator in `directory` to so many facts, in documents it was not trained on."""
    tagged = SpanAnnotator.load(directory, cache).tag([document.text for document in documents])
    threshold = threshold_for(tagged, per_100_words)
    config = AnnotatorConfig.load(directory)
    reading = config.reading | {"threshold": threshold}
    training = config.training | {"threshold_documents": len(documents)}
    replace(config, reading=reading, training=training).save(directory)
    return threshold


def _spans(annotator: SpanAnnotator, documents: Sequence[AnnotatedDocument], tokens: int) -> SpanReport:
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
        coverage=[coverage(texts, marked, found, annotator.threshold), *coverage_curve(marked, tagged)],
        seconds_per_1000_tokens=round(1000 * seconds / tokens, 3),
    )


def _questions(
    generator: QuestionGenerator,
    documents: Sequence[AnnotatedDocument],
    checkpoint: Checkpoint,
    tokens: int,
    on_documents: OnDocuments,
) -> QuestionReport:
    asked: list[list[GeneratedQuestion | None]] = []
    started = perf_counter()
    for at in range(0, len(documents), TOGETHER):
        asked += generator.annotate([passage(document) for document in documents[at : at + TOGETHER]])
        on_documents(len(asked), len(documents))
    seconds = perf_counter() - started
    own = [
        [GeneratedQuestion(span.question, span.value) if span.question else None for span in document.facts]
        for document in documents
    ]
    encoder = KeyEncoder(checkpoint)
    keys_KD = document_keys(encoder, documents, lambda _: None)
    trips = [
        round_trip(encoder, documents, questions, keys_KD) if _any(questions) else None
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


def _any(questions: Sequence[Sequence[GeneratedQuestion | None]]) -> bool:
    return any(question is not None for asked in questions for question in asked)
