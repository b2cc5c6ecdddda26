"""The residual network behind a linear map."""

from __future__ import annotations

import numpy as np

from colmlm.model.evaluate.recall import fit_residual


def units(rows: np.ndarray) -> np.ndarray:
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def test_it_learns_what_a_linear_map_cannot_and_never_begins_worse() -> None:
    random = np.random.default_rng(3)
    old = units(random.standard_normal((1200, 12)))
    start = old.copy()
    new = units(old + 0.8 * np.abs(old))
    predict = fit_residual(old[:1000], start[:1000], new[:1000])
    made = predict(old[1000:], start[1000:])
    before, after = (float(np.einsum("nd,nd->n", rows, new[1000:]).mean()) for rows in (start[1000:], made))
    assert after > before + 0.05 and np.allclose(np.linalg.norm(made, axis=1), 1, atol=1e-5)


def test_where_there_is_nothing_to_learn_the_linear_map_stays() -> None:
    random = np.random.default_rng(4)
    old = units(random.standard_normal((60, 12)))
    made = fit_residual(old, old, old)(old, old)
    assert np.einsum("nd,nd->n", made, old).min() > 0.9999
