"""The sentence baseline reads the sentence that holds the span."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

from kb.corpus import AnnotatedDocument, FactSpan
from model.evaluate.minilm import PACKAGE, SentenceEncoder, sentence_of
from tests.kb.corpora import PERU

TEXT = 'He left. "It rose to 3.14 m in 1981!" (She saw St. Louis.) then nothing'


def around(value: str, text: str = TEXT) -> str:
    start = text.index(value)
    return sentence_of(text, FactSpan(start, start + len(value), value))


@pytest.mark.parametrize(
    "value, sentence",
    [
        ("left", "He left."),
        ("3.14", '"It rose to 3.14 m in 1981!"'),
        ("1981", '"It rose to 3.14 m in 1981!"'),
        ("nothing", "(She saw St. Louis.) then nothing"),  # no capital begins that sentence
        ("St. Louis", "(She saw St. Louis.) then nothing"),
    ],
)
def test_the_sentence_is_the_one_around_the_span(value: str, sentence: str):
    assert around(value) == sentence


def test_a_text_of_one_sentence_is_that_sentence():
    assert around("Lima", "Lima") == "Lima"
    assert around("b", "a b\nc") == "a b\nc"


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec(PACKAGE) is None, reason=f"{PACKAGE} is not installed")
def test_vectors_are_unit_and_do_not_depend_on_the_batch():
    encoder = SentenceEncoder()
    facts, none = encoder.encode_documents([PERU, AnnotatedDocument("none", "No facts.")])
    assert facts.shape == (3, 384) and none.shape == (0, 384)
    np.testing.assert_allclose(np.linalg.norm(facts, axis=1), 1, atol=1e-5)
    together = encoder.encode_questions(["Who?", "word " * 400, "Where is the capital of Peru?"])
    np.testing.assert_allclose(together[0], encoder.encode_questions(["Who?"])[0], atol=1e-4)
