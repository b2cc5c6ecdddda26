"""Made-up data: the same each time, of few dimensions, with answers that hold."""

from __future__ import annotations

import numpy as np

from colmlm.lab.bench.synthetic import (
    documents,
    exact_top1,
    fact_text,
    queries_near,
    synthetic_keys,
)


def test_keys_are_unit_vectors_and_the_same_for_the_same_seed() -> None:
    keys = synthetic_keys(300, 48, seed=5)
    assert keys.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(keys, axis=1), 1, rtol=1e-5)
    assert np.array_equal(keys, synthetic_keys(300, 48, seed=5))
    assert not np.allclose(keys, synthetic_keys(300, 48, seed=6))
    np.testing.assert_allclose(keys[:100], synthetic_keys(100, 48, seed=5), atol=1e-6)


def test_neighbours_lie_as_in_few_dimensions() -> None:
    few, many = (intrinsic_dimension(synthetic_keys(2000, 128, seed=1, intrinsic_dim=dim)) for dim in (4, 32))
    assert few < 10 < many < 45


def intrinsic_dimension(keys: np.ndarray) -> float:
    """TwoNN (Facco et al. 2017): from the ratio of the distances to the two nearest neighbours."""
    distances = np.sqrt(np.maximum(2 - 2 * keys @ keys.T, 0))
    np.fill_diagonal(distances, np.inf)
    first, second = np.partition(distances, 1, axis=1)[:, :2].T
    return float(len(keys) / np.log(second / first).sum())


def test_exact_top1_is_what_brute_force_finds_whatever_the_block() -> None:
    keys = synthetic_keys(500, 32, seed=2)
    queries = queries_near(keys, 40, seed=3)
    expected = [max(range(len(keys)), key=lambda i: float(keys[i] @ q)) for q in queries]
    assert exact_top1(keys, queries).tolist() == expected
    assert exact_top1(keys, queries, block=64).tolist() == expected


def test_more_noise_takes_queries_further_from_any_key() -> None:
    keys = synthetic_keys(500, 32, seed=2)
    scores = [
        float((queries * keys[exact_top1(keys, queries)]).sum(axis=1).mean())
        for queries in (queries_near(keys, 100, seed=4, noise=noise) for noise in (0.1, 0.6, 1.0))
    ]
    assert scores == sorted(scores, reverse=True)


def test_documents_hold_the_facts_in_order_and_verbatim() -> None:
    made = list(documents(45))
    assert [len(document.facts) for document in made] == [20, 20, 5]
    spans = [(document, span) for document in made for span in document.facts]
    for fact, (document, span) in enumerate(spans):
        text = fact_text(fact)
        assert document.text[span.start : span.end] == span.value == text.value
        assert span.question == text.question
        assert text.source in document.text
    assert len({span.question for _, span in spans}) == 45
