"""The span annotator on any text: its spans are verbatim, and the same alone as in a batch."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from colmlm.kb.corpus.format import FactSpan, check_spans
from colmlm.model.annotate.annotators import SpanAnnotator
from colmlm.model.lm.config import CheckpointError
from tests.strategies import texts
from tests.tiny_annotators import tiny_question_generator, tiny_span_annotator

LONG = "In 1911 the explorer (a man of 35) came to the old city in Peru; it cost $10.50. " * 6
quick = settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


@quick
@given(texts)
def test_spans_of_any_text_are_verbatim_apart_and_never_blank(annotator: SpanAnnotator, text: str):
    (spans,) = annotator.spans([text])
    facts = [FactSpan(start, end, text[start:end]) for start, end in spans]
    assert check_spans("any", text, facts) == (tuple(facts), ())


def test_some_words_are_marked_and_some_are_not(annotator: SpanAnnotator):
    (spans,) = annotator.spans([LONG])
    marked = sum(end - start for start, end in spans)
    assert 0.05 * len(LONG) < marked < 0.95 * len(LONG)
    assert all(a[1] <= b[0] for a, b in pairwise(spans))


def test_a_text_is_tagged_alone_as_in_a_batch(annotator: SpanAnnotator):
    several = [LONG, "Lima", "", "the old city of 1911", LONG[:40]]
    together = annotator.tag(several)
    for text, tagged in zip(several, together, strict=True):
        (alone,) = annotator.tag([text])
        assert alone.words == tagged.words
        np.testing.assert_allclose(alone.log_probs_N3, tagged.log_probs_N3, atol=1e-4)


def test_the_words_of_a_long_text_all_have_probabilities(annotator: SpanAnnotator):
    (tagged,) = annotator.tag([LONG])
    np.testing.assert_allclose(np.exp(tagged.log_probs_N3).sum(axis=1), 1, atol=1e-5)
    assert len(tagged.words) == len(tagged.log_probs_N3) > 100


def test_a_word_reads_the_same_window_wherever_its_text_stands(annotator: SpanAnnotator, tmp_path: Path):
    """Checks that a short text in a window of its own size is read whole, however small the windows are."""
    wide = SpanAnnotator.load(tiny_span_annotator(tmp_path, window=64, overlap=8), precision="fp32")
    short = "the old city"
    (narrow_tags,), (wide_tags,) = annotator.tag([short]), wide.tag([short])
    np.testing.assert_allclose(narrow_tags.log_probs_N3, wide_tags.log_probs_N3, atol=1e-5)


def test_the_threshold_of_a_call_overrides_the_annotators_own(annotator: SpanAnnotator):
    (tagged,) = annotator.tag([LONG])
    assert annotator.spans([LONG])[0] == tagged.spans(0.5)
    assert sum(e - s for s, e in tagged.spans(0.9)) < sum(e - s for s, e in tagged.spans(0.1))


def test_another_annotator_a_damaged_one_and_none_are_refused(tmp_path: Path):
    with pytest.raises(CheckpointError, match="makes questions, not spans"):
        SpanAnnotator.load(tiny_question_generator(tmp_path / "questions"))
    with pytest.raises(CheckpointError, match=r"no annotator\.json is there"):
        SpanAnnotator.load(tmp_path)
    damaged = tiny_span_annotator(tmp_path / "spans")
    weights = bytearray((damaged / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (damaged / "model.safetensors").write_bytes(weights)
    with pytest.raises(CheckpointError, match="not the file that was written"):
        SpanAnnotator.load(damaged)
    (damaged / "annotator.json").write_text("{}")
    with pytest.raises(CheckpointError, match="cannot be read"):
        SpanAnnotator.load(damaged)
