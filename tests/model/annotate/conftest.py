"""Tiny annotators, made once. The generator is in double precision, so that no order of a sum decides a token."""

from __future__ import annotations

from pathlib import Path

import pytest

from colmlm.model.annotate.annotators import QuestionGenerator, SpanAnnotator
from colmlm.model.annotate.checkpoint import QUESTIONS, LoadedAnnotator, load_annotator
from tests.tiny_annotators import tiny_line_writer, tiny_question_generator, tiny_span_annotator


@pytest.fixture(scope="session")
def annotator(tmp_path_factory: pytest.TempPathFactory) -> SpanAnnotator:
    """A span annotator with random weights and windows of 24 tokens: it marks about every third word."""
    return SpanAnnotator.load(tiny_span_annotator(tmp_path_factory.mktemp("spans")), precision="fp32")


@pytest.fixture(scope="session")
def generator(tmp_path_factory: pytest.TempPathFactory) -> QuestionGenerator:
    """A question generator with random weights: it writes twelve random bytes for each span."""
    path: Path = tiny_question_generator(tmp_path_factory.mktemp("questions"))
    loaded = QuestionGenerator.load(path, path, precision="fp32")
    loaded.model.double()
    return loaded


@pytest.fixture(scope="session")
def loaded_writer(tmp_path_factory: pytest.TempPathFactory) -> LoadedAnnotator:
    """Random weights that write a question and an answer of a few letters for each span."""
    path = tiny_line_writer(tmp_path_factory.mktemp("writer"))
    loaded = load_annotator(path, QUESTIONS, path, precision="fp32")
    loaded.model.double()
    return loaded


@pytest.fixture
def writer(loaded_writer: LoadedAnnotator) -> QuestionGenerator:
    return QuestionGenerator(loaded_writer)
