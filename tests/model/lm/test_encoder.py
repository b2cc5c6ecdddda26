"""Keys: unit rows that depend on the text before the span and on nothing else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from colmlm.kb.corpus.format import AnnotatedDocument
from colmlm.model.lm.checkpoint import Checkpoint, load
from colmlm.model.lm.encoder import KeyEncoder
from colmlm.model.lm.language_model import unit
from colmlm.model.text.tokens import FactTokenizer
from tests.kb.corpora import CAPITAL, PERU, document, numbered
from tests.strategies import documents
from tests.tiny import states_of

LONG = document(
    "long",
    *[piece for n in range(150) for piece in (f"Part {n} says ", (f"value {n}", f"Question {n}?"), ". ")],
)


@pytest.fixture
def encoder(checkpoint: Checkpoint) -> KeyEncoder:
    return KeyEncoder(checkpoint)


def close(ours: np.ndarray, theirs: np.ndarray) -> None:
    assert ours.shape == theirs.shape
    np.testing.assert_allclose(ours, theirs, atol=1e-5)


def keys(encoder: KeyEncoder, one: AnnotatedDocument) -> np.ndarray:
    return encoder.encode_documents([one])[0]


def test_keys_do_not_depend_on_the_batch(encoder: KeyEncoder, checkpoint: Checkpoint):
    corpus = [PERU, *numbered(12), LONG, AnnotatedDocument("none", "No facts.")]
    together = KeyEncoder(checkpoint, batch_tokens=1024).encode_documents(corpus)
    backwards = encoder.encode_documents(corpus[::-1])[::-1]
    for one, first, second in zip(corpus, together, backwards, strict=True):
        assert first.shape == (len(one.facts), 64) and first.dtype == np.float32
        close(first, keys(encoder, one))
        close(first, second)
        close(np.linalg.norm(first, axis=1), np.ones(len(one.facts)))


def test_questions_do_not_depend_on_the_batch(encoder: KeyEncoder):
    questions = [CAPITAL, "?", "", "word " * 100, CAPITAL, "<FACT-q>", "é🏔️"]
    together = encoder.encode_questions(questions)
    close(together, np.concatenate([encoder.encode_questions([q]) for q in questions]))
    close(np.linalg.norm(together, axis=1), np.ones(len(questions)))
    close(together[0], together[4])
    assert encoder.encode_questions([]).shape == (0, 64)


def test_a_key_is_the_state_at_its_marker(encoder: KeyEncoder, checkpoint: Checkpoint):
    encoded = checkpoint.tokenizer.document(PERU)
    (states,) = states_of(checkpoint.lm, [encoded])
    close(keys(encoder, PERU), unit(states[list(encoded.fact_positions)]).numpy())


@pytest.mark.parametrize("space_inside", [True, False])
def test_a_context_asks_what_a_document_has_there_as_key(checkpoint: Checkpoint, space_inside: bool):
    tokenizer = FactTokenizer(checkpoint.tokenizer.tokenizer, space_inside=space_inside)
    encoder = KeyEncoder(replace(checkpoint, tokenizer=tokenizer))
    texts = ["Its capital is ", "Its capital is", "<FACT>", "", "é🏔️ "]
    asked = encoder.encode_contexts(texts)
    close(asked, np.concatenate([keys(encoder, document("a", text, ("Lima", "q"))) for text in texts]))
    assert bool(np.abs(asked[0] - asked[1]).max() < 1e-5) == space_inside
    long = "word " * 5000
    close(encoder.encode_contexts([long]), encoder.encode_contexts([f"other {long}"]))
    assert encoder.encode_contexts([]).shape == (0, 64)


def test_documents_without_facts_have_no_keys(encoder: KeyEncoder):
    assert encoder.encode_documents([]) == []
    none, empty = encoder.encode_documents(
        [AnnotatedDocument("a", "text"), AnnotatedDocument("b", "<FACT>x</FACT>")]
    )
    assert none.shape == empty.shape == (0, 64)


def test_a_key_does_not_know_its_value_nor_what_follows(encoder: KeyEncoder):
    before = keys(encoder, document("a", "Its capital is ", ("Lima", "q"), " and more. ", ("x", "q"), "."))
    others = [
        document("a", "Its capital is ", ("Santiago de Chile 🏔️", "q"), " and more. ", ("x", "q"), "."),
        document("a", "Its capital is ", ("Lima", "another question"), ", or so they say."),
        document("a", "Its capital is ", ("<FACT>", None)),
    ]
    for other in others:
        close(keys(encoder, other)[:1], before[:1])
    moved = keys(encoder, document("a", "Its capitol is ", ("Lima", "q")))
    assert np.abs(moved[0] - before[0]).max() > 1e-3


def test_a_fact_further_on_knows_the_values_before_it(encoder: KeyEncoder):
    one, two = (
        keys(encoder, document("a", "It is ", (v, "q"), " and ", ("x", "q"))) for v in ("Lima", "Rome")
    )
    close(one[0], two[0])
    assert np.abs(one[1] - two[1]).max() > 1e-3


def test_a_title_is_part_of_the_context(encoder: KeyEncoder):
    plain = document("a", "It is ", ("x", "q"))
    titled = AnnotatedDocument("a", plain.text, plain.facts, title="Peru")
    assert np.abs(keys(encoder, plain) - keys(encoder, titled)).max() > 1e-3


@pytest.mark.parametrize("window", [512, 64, 100, 33])
def test_a_long_document_is_read_in_windows_with_half_of_one_before_every_fact(
    checkpoint: Checkpoint, window: int
):
    encoder = KeyEncoder(checkpoint, window=window)
    whole = checkpoint.tokenizer.document(LONG)
    windows = encoder._windows_of([LONG])
    seen = sorted(fact for w in windows for fact in w.facts)
    assert seen == list(range(150))
    for w in windows:
        assert len(w.encoded) <= window
        for fact, position in zip(w.facts, w.positions, strict=True):
            assert w.encoded.ids[position] == checkpoint.tokenizer.fact
            start = whole.fact_positions[fact] - position
            assert whole.ids[start : start + len(w.encoded)] == w.encoded.ids
            assert position >= window // 2 or start == 0
    found = keys(encoder, LONG)
    assert found.shape == (150, 64)
    close(np.linalg.norm(found, axis=1), np.ones(150))


def test_the_windows_of_a_long_document_give_what_their_text_gives(checkpoint: Checkpoint):
    short, long = KeyEncoder(checkpoint, window=100), KeyEncoder(checkpoint, window=512)
    close(keys(short, LONG)[:2], keys(long, LONG)[:2])
    (last,) = [w for w in short._windows_of([LONG]) if 149 in w.facts]
    (states,) = states_of(checkpoint.lm, [last.encoded])
    close(keys(short, LONG)[list(last.facts)], unit(states[list(last.positions)]).numpy())


@pytest.mark.parametrize(("trained", "window"), [(512, 2_048), (4_096, 4_096), (None, 2_048)])
def test_a_window_is_as_long_as_the_sequences_of_the_training(
    checkpoint: Checkpoint, trained: int | None, window: int
):
    training = {} if trained is None else {"config": {"max_length": trained}}
    taught = load(checkpoint.path, checkpoint.path)
    taught.lm.causal.config.max_position_embeddings = 8_192
    taught = replace(taught, config=replace(taught.config, training=training))
    assert KeyEncoder(taught).window == window


def test_a_window_is_never_longer_than_the_models_context(checkpoint: Checkpoint):
    encoder = KeyEncoder(checkpoint, window=100_000)
    assert max(len(w.encoded) for w in encoder._windows_of([LONG])) <= 512


@settings(max_examples=25, deadline=None)
@given(document=documents(), batch=st.lists(documents(), max_size=3))
def test_any_document_has_one_key_for_each_fact(
    checkpoint: Checkpoint, document: AnnotatedDocument, batch: list[AnnotatedDocument]
):
    encoder = KeyEncoder(checkpoint)
    together = encoder.encode_documents([*batch, document])
    assert [len(k) for k in together] == [len(d.facts) for d in (*batch, document)]
    close(together[-1], keys(encoder, document))
    assert isinstance(checkpoint.tokenizer, FactTokenizer)
