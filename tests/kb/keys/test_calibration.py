from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from colmlm.kb.errors import InvalidValue
from colmlm.kb.keys.calibration import calibrate_threshold, normalise_value, score_pairs

AXES = np.eye(4, dtype=np.float32)


Case = tuple[np.ndarray, list[str], list[tuple[list[str], np.ndarray]]]


def told(
    asking: np.ndarray, asked: list[int], keys: np.ndarray, ids: list[int], values: dict[int, str]
) -> Case:
    """The queries with the values they ask for, and the keys with theirs, three at a time."""
    said = [values[fact_id] for fact_id in ids]
    batches = [(said[start : start + 3], keys[start : start + 3]) for start in range(0, len(ids), 3)]
    return asking, [values[fact_id] for fact_id in asked], batches


def queries(*cosines: tuple[float, float]) -> np.ndarray:
    """Queries with these inner products with the first two axes."""
    return np.array([[a, b, 0, 0] for a, b in cosines], dtype=np.float32)


def test_an_impostor_is_the_best_fact_of_another_value() -> None:
    genuine, impostor = score_pairs(
        *told(queries((0.9, 0.5)), [1], AXES[:2], [1, 2], {1: "Lima", 2: "Quito"})
    )
    assert genuine == pytest.approx([0.9]) and impostor == pytest.approx([0.5])


def test_a_restatement_of_the_asked_fact_is_no_impostor() -> None:
    values = {1: "Lima", 2: " lima.", 3: "Quito"}
    genuine, impostor = score_pairs(*told(queries((0.4, 0.9)), [1], AXES[:3], [1, 2, 3], values))
    assert genuine == pytest.approx([0.9]) and impostor == pytest.approx([0.0])


def test_separable_scores_get_a_threshold_without_errors() -> None:
    result = calibrate_threshold(
        *told(queries((0.9, 0.2), (0.3, 0.8)), [1, 2], AXES[:2], [1, 2], {1: "Lima", 2: "Quito"})
    )
    assert 0.3 < result.threshold < 0.8
    assert (result.false_accept_rate, result.false_reject_rate, result.right_first) == (0, 0, 1)
    assert result.num_questions == 2


def mixed(seed: int = 5, n: int = 200) -> Case:
    """Unit keys and noisy queries for them: some questions are hard, as with a real model."""
    rng = np.random.default_rng(seed)
    keys = rng.standard_normal((n, 16)).astype(np.float32)
    keys /= np.linalg.norm(keys, axis=1, keepdims=True)
    asking = keys + 0.15 * rng.standard_normal(keys.shape).astype(np.float32)
    asking /= np.linalg.norm(asking, axis=1, keepdims=True)
    ids = list(range(1, n + 1))
    return told(asking, ids, keys, ids, {i: f"value {i}" for i in ids})


def test_no_threshold_balances_both_errors_better() -> None:
    case = mixed()
    genuine, impostor = score_pairs(*case)
    best = calibrate_threshold(*case)
    for threshold in np.linspace(-1, 1, 401):
        errors = np.mean(genuine < threshold) + np.mean(impostor >= threshold)
        assert best.false_reject_rate + best.false_accept_rate <= errors + 1e-12


def test_questions_that_hardly_tell_facts_apart_refuse_a_third_of_them_at_most() -> None:
    genuine = [0.9, 0.8, 0.45, 0.4, 0.3, 0.2]  # two stand out: refusing all others has the fewest errors
    impostor = [0.6] * 6
    case = told(
        queries(*zip(genuine, impostor, strict=True)), [1] * 6, AXES[:2], [1, 2], {1: "Lima", 2: "Quito"}
    )
    best = calibrate_threshold(*case)
    assert best.false_reject_rate == pytest.approx(1 / 3) and 0.3 < best.threshold <= 0.4


@pytest.mark.parametrize("rate", [0.0, 0.05, 0.5, 1.0])
def test_a_stated_rate_is_kept_by_the_lowest_threshold_that_keeps_it(rate: float) -> None:
    case = mixed()
    result = calibrate_threshold(*case, false_accept_rate=rate)
    _, impostor = score_pairs(*case)
    assert np.mean(impostor >= result.threshold) == result.false_accept_rate <= rate
    lower = result.threshold - 1e-6
    assert rate == 1.0 or np.mean(impostor >= lower) > rate


def test_impostors_of_one_score_are_refused_together() -> None:
    case = told(queries(*[(0.9, 0.5)] * 4), [1] * 4, AXES[:2], [1, 2], {1: "Lima", 2: "Quito"})
    assert calibrate_threshold(*case, false_accept_rate=0.5).false_accept_rate == 0


def test_facts_of_one_value_cannot_be_calibrated() -> None:
    with pytest.raises(InvalidValue):
        calibrate_threshold(*told(queries((0.9, 0.5)), [1], AXES[:2], [1, 2], {1: "Lima", 2: "Lima"}))


def test_no_questions_cannot_be_calibrated() -> None:
    with pytest.raises(InvalidValue):
        calibrate_threshold(
            *told(np.zeros((0, 4), np.float32), [], AXES[:2], [1, 2], {1: "Lima", 2: "Quito"})
        )


@given(st.text(alphabet="aA .,'\n"))
def test_normalising_twice_is_normalising_once(value: str) -> None:
    assert normalise_value(normalise_value(value)) == normalise_value(value)
