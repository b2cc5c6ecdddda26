"""Maps between key spaces."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from colmlm.kb.errors import InvalidValue
from colmlm.kb.keys.adapting import (
    best_map,
    fit_near_identity,
    fit_near_rotation,
    fit_rotation,
    measure_recall,
    unit_rows,
)

WIDTH, FACTS = 24, 400


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(5)


@pytest.fixture
def old(random: np.random.Generator) -> np.ndarray:
    return unit_rows(random.standard_normal((FACTS, WIDTH)) + 0.5)


def documents(number: int) -> list[int]:
    """Two facts a document."""
    return [n // 2 for n in range(number)]


def test_a_rotation_is_found_again_from_a_part(old: np.ndarray, random: np.random.Generator) -> None:
    turn, _ = np.linalg.qr(random.standard_normal((WIDTH, WIDTH)))
    new = unit_rows(old @ turn)
    made = fit_rotation(old[:100], new[:100])(old[100:])
    assert np.einsum("nd,nd->n", made, new[100:]).min() > 0.999
    assert np.allclose(np.linalg.norm(made, axis=1), 1, atol=1e-5)


def test_a_rotation_is_as_near_to_the_identity_as_few_facts_leave_it_open(old: np.ndarray) -> None:
    """Seven facts say nothing of seventeen of 24 dimensions, which another checkpoint of one lineage has as before."""
    turn = np.eye(WIDTH)
    turn[:2, :2] = [[0.8, 0.6], [-0.6, 0.8]]
    new = unit_rows(old @ turn)
    made = fit_rotation(old[:7], new[:7])
    assert np.einsum("nd,nd->n", made(old[:7]), new[:7]).min() > 0.999
    off, kept = (np.einsum("nd,nd->n", keys, new[7:]).mean() for keys in (old[7:], made(old[7:])))
    assert kept > 0.95 and kept > off - 0.02


def test_keys_of_another_width_are_predicted(old: np.ndarray, random: np.random.Generator) -> None:
    new = unit_rows(old @ random.standard_normal((WIDTH, 2 * WIDTH)))
    found = best_map("auto", old[:200], new[:200], documents(200))
    assert found.method.startswith("ridge") and "rotation" in found.method
    assert np.einsum("nd,nd->n", found.map(old[200:]), new[200:]).mean() > 0.98


def test_ridge_is_held_to_what_is_known_where_there_is_little_to_fit_on(
    old: np.ndarray, random: np.random.Generator
) -> None:
    new = unit_rows(old + 0.1 * random.standard_normal(old.shape))
    least = replace(fit_near_rotation(old[:12], new[:12]), strength=1e-9)(old[12:])
    held = replace(fit_near_identity(old[:12], new[:12]), strength=10.0)(old[12:])
    cosines = [float(np.einsum("nd,nd->n", made, new[12:]).mean()) for made in (least, held)]
    assert cosines[1] > 0.87 > 0.82 > cosines[0]
    assert "identity" in best_map("ridge", old[:12], new[:12], documents(12)).method


def test_a_correction_of_any_strength_is_that_of_least_squares(
    old: np.ndarray, random: np.random.Generator
) -> None:
    new = unit_rows(old @ random.standard_normal((WIDTH, WIDTH)))
    for number in (12, FACTS):
        x, y = old[:number] - old[:number].mean(axis=0), new[:number] - new[:number].mean(axis=0)
        gram = x.T @ x
        held = gram + 3.0 * np.trace(gram) / WIDTH * np.eye(WIDTH)
        weights = np.eye(WIDTH) + np.linalg.solve(held, x.T @ (y - x))
        made = replace(fit_near_identity(old[:number], new[:number]), strength=3.0)(old)
        meant = unit_rows((old - old[:number].mean(axis=0)) @ weights + new[:number].mean(axis=0))
        assert np.abs(made - meant).max() < 1e-4


def test_what_is_held_out_was_predicted_without_its_document(
    old: np.ndarray, random: np.random.Generator
) -> None:
    """Where new keys have nothing to do with the old ones, a map knows only those that it was fitted on."""
    new = unit_rows(random.standard_normal(old.shape))
    found = best_map("ridge", old[:20], new[:20], [n // 2 for n in range(20)])
    by_heart = replace(fit_near_rotation(old[:20], new[:20]), strength=1e-9)(old[:20])
    assert np.einsum("nd,nd->n", by_heart, new[:20]).mean() > 0.99
    assert (
        found.cosine < 0.4
        and abs(np.einsum("nd,nd->n", found.held_out_NE, new[:20]).mean() - found.cosine) < 1e-6
    )


def test_too_little_is_refused(old: np.ndarray) -> None:
    for number, groups in ((9, documents(9)), (40, [7] * 40)):
        with pytest.raises(InvalidValue, match="too few"):
            best_map("auto", old[:number], old[:number], groups)


def test_shares_found_count_ties_against_the_key() -> None:
    keys = np.array([[1, 0], [1, 0], [0, 1]], np.float32)
    assert measure_recall(keys, [0, 1, 2], keys) == {1: 1 / 3, 10: 1.0}
