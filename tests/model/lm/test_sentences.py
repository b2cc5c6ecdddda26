"""The sentence encoder reads a fact's question, or the sentence that holds its span."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from colmlm.kb.corpus.format import AnnotatedDocument, FactSpan
from colmlm.model.lm.config import MINILM
from colmlm.model.lm.encoder import SentenceEncoder, sentence_of
from tests.kb.corpora import CAPITAL, PERU
from tests.tiny import tiny_sentence_model

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


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_sentence_model(tmp_path_factory.mktemp("sentences"))


def test_a_vector_is_unit_and_does_not_depend_on_its_neighbours(tiny: Path):
    encoder = SentenceEncoder(tiny, batch_tokens=64)
    texts = ["Who?", "word " * 200, "Where is the capital of Peru?", "Who was it?"]
    together = encoder.encode_questions(texts)
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1, atol=1e-5)
    alone = np.concatenate([encoder.encode_questions([text]) for text in texts])
    np.testing.assert_allclose(together, alone, atol=1e-4)
    assert (together @ together.T - np.eye(4)).max() < 0.999
    assert encoder.encode_questions([]).shape == (0, 32)


def test_keys_are_of_questions_or_of_sentences_and_these_are_two_spaces(tiny: Path):
    questions, sentences = SentenceEncoder(tiny, keys="question"), SentenceEncoder(tiny, keys="sentence")
    assert questions.checkpoint_id != sentences.checkpoint_id
    bare = AnnotatedDocument("bare", "Lima is old.", (FactSpan(0, 4, "Lima"),))
    asked, unasked = questions.encode_documents([PERU, bare])
    np.testing.assert_allclose(asked[0], questions.encode_questions([CAPITAL])[0], atol=1e-5)
    np.testing.assert_allclose(unasked[0], questions.encode_questions(["Lima is old."])[0], atol=1e-5)
    (said,) = sentences.encode_documents([PERU])
    np.testing.assert_allclose(said[0], sentences.encode_questions(["Its capital is Lima."])[0], atol=1e-5)
    with pytest.raises(ValueError, match="question, sentence"):
        SentenceEncoder(tiny, keys="paragraph")


def test_an_entity_and_a_relation_are_read_as_one_line(tiny: Path):
    encoder = SentenceEncoder(tiny, keys="question")
    span = FactSpan(0, 4, "Lima", "Peru\nCapital")
    (keys,) = encoder.encode_documents([AnnotatedDocument("d", "Lima is old.", (span,))])
    np.testing.assert_allclose(keys, encoder.encode_questions(["Peru Capital"]), atol=1e-5)


def test_before_a_lookup_only_the_last_sentence_is_asked(tiny: Path):
    encoder = SentenceEncoder(tiny)
    asked = encoder.encode_contexts(["He left. The capital of Peru is"])
    np.testing.assert_allclose(asked, encoder.encode_questions(["The capital of Peru is"]), atol=1e-5)


def test_other_weights_have_another_id(tiny: Path, tmp_path: Path):
    other = SentenceEncoder(tiny_sentence_model(tmp_path / "other", seed=4))
    assert other.checkpoint_id != SentenceEncoder(tiny).checkpoint_id


@pytest.mark.slow(reason="loads a sentence encoder of 90 MB")
@pytest.mark.skipif(
    importlib.util.find_spec(MINILM.package) is None, reason=f"{MINILM.package} is not installed"
)
def test_vectors_are_unit_and_do_not_depend_on_the_batch():
    encoder = SentenceEncoder()
    facts, none = encoder.encode_documents([PERU, AnnotatedDocument("none", "No facts.")])
    assert facts.shape == (3, 384) and none.shape == (0, 384)
    np.testing.assert_allclose(np.linalg.norm(facts, axis=1), 1, atol=1e-5)
    together = encoder.encode_questions(["Who?", "word " * 400, "Where is the capital of Peru?"])
    np.testing.assert_allclose(together[0], encoder.encode_questions(["Who?"])[0], atol=1e-4)
