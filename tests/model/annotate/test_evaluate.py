"""Measures of the annotators, on cases small enough to count by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from colmlm.kb.corpus.format import AnnotatedDocument, FactSpan
from colmlm.model.annotate.annotators import GeneratedQuestion, QuestionGenerator
from colmlm.model.evaluate.annotators import (
    Agreement,
    passage,
    prefix_gain,
    round_trip,
    span_quality,
)

TEXT = "Lima is old. Cusco is older. 1981 is late."
LIMA, CUSCO, YEAR = (0, 4), (13, 18), (29, 33)


def document(*spans: tuple[int, int], text: str = TEXT) -> AnnotatedDocument:
    facts = tuple(FactSpan(s, e, text[s:e], f"What is {text[s:e]}?", text[s:e]) for s, e in spans)
    return AnnotatedDocument("a", text, facts)


def test_spans_are_compared_exactly_and_by_overlap():
    quality = span_quality([document(LIMA, CUSCO, YEAR), document(LIMA)], [[LIMA, (13, 21), (24, 27)], []])
    assert (quality.marked, quality.found, quality.verbatim) == (4, 3, 1.0)
    assert quality.exact == Agreement(0.3333, 0.25, 0.2857)
    assert quality.overlap == Agreement(0.6667, 0.5, 0.5714)


def test_one_long_span_over_two_reaches_both_and_is_one():
    quality = span_quality([document(LIMA, CUSCO)], [[(0, 20)]])
    assert quality.overlap == Agreement(1.0, 1.0, 1.0) and quality.exact.f1 == 0.0


def test_spans_that_touch_do_not_overlap_and_none_found_is_no_error():
    assert span_quality([document(LIMA)], [[(4, 7)]]).overlap == Agreement(0.0, 0.0, 0.0)
    assert span_quality([document(LIMA)], [[]]).exact == Agreement(0.0, 0.0, 0.0)


def test_a_span_that_a_corpus_would_refuse_is_not_verbatim():
    wrong = [(4, 5), (8, 20), (13, 18), (40, 99)]  # blank, sound, overlapping, outside
    assert span_quality([document(LIMA)], [wrong]).verbatim == 0.25


class ByLetter:
    """Gives every value an axis of its own; a question's vector is that of the value it names."""

    def encode_documents(self, documents: Sequence[AnnotatedDocument]) -> list[np.ndarray]:
        return [self.encode_questions([span.value for span in d.facts]) for d in documents]

    def encode_questions(self, questions: Sequence[str]) -> np.ndarray:
        rows = [[1.0 if name in q else 0.0 for name in ("Lima", "Cusco", "1981")] for q in questions]
        return np.array(rows, dtype=np.float32)


def test_a_round_trip_asks_each_question_among_the_facts_of_all_documents():
    documents = [document(LIMA, CUSCO), document(YEAR)]
    keys_KD = np.concatenate(ByLetter().encode_documents(documents))
    asked = [[GeneratedQuestion("Lima?", "a"), None], [GeneratedQuestion("Cusco?", "a")]]
    trip = round_trip(ByLetter(), documents, asked, keys_KD)
    assert (trip.facts, trip.questions, trip.recall_at_1) == (3, 2, 0.5)
    with pytest.raises(ValueError, match="no questions"):
        round_trip(ByLetter(), documents, [[None, None], [None]], keys_KD)


def test_the_gain_of_a_shared_prefix_is_measured_on_the_same_questions(generator: QuestionGenerator):
    gain = prefix_gain(generator, [passage(document(LIMA, CUSCO, YEAR)), passage(document(LIMA))])
    assert (gain.spans, gain.same) == (4, 1.0)
    assert gain.gain > 0 and gain.shared_seconds >= 0
