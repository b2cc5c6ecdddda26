"""SimpleQA's and FActScore's figures equal those computed by hand, and judging works in threads."""

from __future__ import annotations

import math
import threading
from typing import Any

import pytest

from colmlm.model.evaluate.judge import ClaimCounts, fact_score, judge_each, simple_qa


def test_simple_qas_figures_are_those_of_its_definitions() -> None:
    found = simple_qa(["correct"] * 3 + ["incorrect"] * 2 + ["not_attempted"] * 5)
    assert (found["correct"], found["incorrect"], found["not_attempted"]) == (0.3, 0.2, 0.5)
    assert found["correct_given_attempted"] == pytest.approx(0.6)
    assert found["f_score"] == pytest.approx(2 * 0.3 * 0.6 / 0.9)
    for name, (low, high) in found["intervals"].items():
        assert 0 <= low < found[name] < high <= 1
    nothing = simple_qa(["not_attempted"] * 2)
    assert nothing["f_score"] == nothing["correct_given_attempted"] == 0
    assert simple_qa([]) == {"intervals": {}}


def test_fact_scores_figures_are_those_of_its_definitions() -> None:
    found = fact_score([ClaimCounts(20, 10), ClaimCounts(5, 5), ClaimCounts(0, 0), ClaimCounts(10, 1)])
    assert found["score"] == pytest.approx((0.5 + 1 + 0.1) / 3)
    assert found["score_with_length_penalty"] == pytest.approx((0.5 + math.exp(1 - 10 / 5) + 0.1) / 3)
    assert found["abstained"] == 0.25 and found["claims"] == pytest.approx(35 / 3)
    assert found["intervals"]["score"][0] < found["score"] < found["intervals"]["score"][1]


def test_what_was_judged_when_something_failed_is_kept() -> None:
    kept: dict[int, Any] = {}
    both, stopped = threading.Barrier(2), threading.Event()

    def judge(number: int) -> dict[str, Any]:
        both.wait()
        if number == 0:
            raise ValueError("no more")
        assert stopped.wait(10)
        return {"number": number}

    with pytest.raises(ValueError, match="no more"):
        judge_each(range(9), judge, kept.__setitem__, concurrency=2, stop=stopped.set)
    assert kept == {1: {"number": 1}}
