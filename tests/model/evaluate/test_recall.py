"""Recall equals its definition: the rank of the asked fact, with ties ranked against it."""

from __future__ import annotations

import numpy as np
import pytest

from colmlm.model.evaluate.recall import (
    best_scores,
    decoder_queries,
    document_keys,
    in_batches,
    measure_recall,
)
from colmlm.model.lm.checkpoint import Checkpoint
from colmlm.model.lm.encoder import KeyEncoder
from tests.fakes import FakeEncoder
from tests.kb.corpora import PERU, numbered


def vectors(count: int, seed: int, dim: int = 6) -> np.ndarray:
    made = np.random.default_rng(seed).standard_normal((count, dim)).astype(np.float32)
    return made / np.linalg.norm(made, axis=1, keepdims=True)


def naive_ranks(queries: np.ndarray, target: np.ndarray, keys: np.ndarray) -> list[int]:
    ranks = []
    for query, wanted in zip(queries, target, strict=True):
        scores = [float(query @ key) for key in keys]
        ranks.append(1 + sum(s >= scores[wanted] for k, s in enumerate(scores) if k != wanted))
    return ranks


@pytest.mark.parametrize("count", [1, 40, 1200])
def test_recall_is_the_share_of_ranks(count: int):
    keys = vectors(60, 1)
    target = np.random.default_rng(2).integers(0, 60, count)
    queries = keys[target] + 0.6 * vectors(count, 3)
    ranks = np.array(naive_ranks(queries, target, keys))
    found = measure_recall(queries, target, [keys], [f"v{i}" for i in range(60)])
    assert (found.facts, found.questions) == (60, count)
    assert found.recall_at_1 == pytest.approx(np.mean(ranks == 1), abs=2e-3)
    assert found.recall_at_10 == pytest.approx(np.mean(ranks <= 10), abs=2e-3)
    assert found.mrr == pytest.approx(np.mean(1 / ranks), abs=2e-3)
    assert found.value_at_1 == found.recall_at_1
    assert found.mean_true_score == pytest.approx(
        float((queries * keys[target]).sum(axis=1).mean()), abs=1e-3
    )


def test_one_key_for_all_facts_finds_none():
    keys = np.tile(vectors(1, 1), (20, 1))
    found = measure_recall(keys[:5], np.arange(5), [keys], ["v"] * 20)
    assert (found.recall_at_1, found.recall_at_10, found.mrr) == (0.0, 0.0, 0.05)


def test_keys_that_are_no_numbers_find_none():
    keys = np.full((20, 6), np.nan, np.float32)
    found = measure_recall(vectors(5, 1), np.arange(5), [keys], ["v"] * 20)
    assert (found.recall_at_1, found.recall_at_10) == (0.0, 0.0)


def test_another_fact_with_the_same_value_counts_as_the_value():
    keys = np.eye(4, dtype=np.float32)
    found = measure_recall(keys[[1, 2]], np.array([0, 2]), [keys], ["New  York", "new york", "Lima", "x"])
    assert found.recall_at_1 == 0.5 and found.value_at_1 == 1.0


def test_a_fact_scores_as_its_best_key_and_one_without_any_comes_last():
    first = np.eye(4, dtype=np.float32)
    second = np.roll(first, 1, axis=0)
    second[0] = first[2] = np.nan
    second[2] = np.nan
    scores = best_scores(np.eye(4, dtype=np.float32), [first, second])
    expected = np.array([[1, 1, -np.inf, 0], [0, 1, -np.inf, 0], [0, 0, -np.inf, 1], [0, 0, -np.inf, 1]])
    np.testing.assert_array_equal(scores, expected)
    found = measure_recall(
        np.eye(4, dtype=np.float32)[[1, 2]], np.array([1, 2]), [first, second], list("abcd")
    )
    assert (found.recall_at_1, found.mrr, found.mean_true_score) == (0.5, 0.625, 1.0)


def test_no_questions_are_an_error_that_says_so():
    with pytest.raises(ValueError, match="no questions"):
        measure_recall(
            np.zeros((0, 4), np.float32), np.zeros(0, np.int64), [np.eye(4, dtype=np.float32)], ["v"] * 4
        )


def test_batches_tell_how_much_is_done_and_keep_the_order():
    encoder, heard = FakeEncoder(), list[int]()
    questions = [f"q{'x' * (i % 3)}{i}" for i in range(7)]
    encoded = in_batches(lambda batch: encoder.encode_questions(batch), questions, heard.append, size=3)
    np.testing.assert_array_equal(encoded, encoder.encode_questions(questions))
    assert heard == [3, 3, 1]
    documents = [*numbered(3), PERU]
    facts = document_keys(encoder, documents, heard.append, size=2)
    np.testing.assert_array_equal(facts, np.concatenate(encoder.encode_documents(documents)))
    assert heard == [3, 3, 1, 2, 4]


def test_the_decoders_queries_do_not_know_the_answer(checkpoint: Checkpoint):
    encoder = KeyEncoder(checkpoint)
    queries = decoder_queries(encoder, ["Who?", "Where is it?"], lambda _: None)
    assert queries.shape == (2, 64)
    np.testing.assert_allclose(np.linalg.norm(queries, axis=1), 1, atol=1e-5)
