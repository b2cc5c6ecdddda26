"""Learning rates at chosen points, as in the paper's tables."""

from __future__ import annotations

import pytest

from colmlm.model.training.loop import COSINE, Schedule


def test_the_papers_pre_training_schedule():
    schedule = Schedule(steps=100_000, peak=5e-4, final=0.0, warmup_steps=2_000, cooldown=0.1)
    rates = {step: schedule.rate(step, 1.0) for step in (0, 999, 1_999, 50_000, 90_000, 95_000, 99_999)}
    assert rates == pytest.approx(
        {0: 2.5e-7, 999: 2.5e-4, 1_999: 5e-4, 50_000: 5e-4, 90_000: 5e-4, 95_000: 2.5e-4, 99_999: 5e-8}
    )
    assert schedule.share_done(99_999, 1e9) < 1 <= schedule.share_done(100_000, 1.0)


def test_time_ends_a_run_and_cools_it_down_before_the_steps_do():
    schedule = Schedule(steps=1000, peak=1.0, final=0.2, warmup_steps=2, cooldown=0.5, max_seconds=100.0)
    assert [schedule.rate(10, seconds) for seconds in (0.0, 50.0, 75.0, 100.0)] == pytest.approx(
        [1.0, 1.0, 0.6, 0.2]
    )
    assert schedule.rate(750, 10.0) == pytest.approx(0.6)
    assert schedule.share_done(10, 99.0) < 1 <= schedule.share_done(10, 100.0)


def test_a_cosine_falls_to_its_final_rate():
    schedule = Schedule(kind=COSINE, steps=100, peak=1.0, final=0.1, warmup_steps=10)
    assert [schedule.rate(step, 0.0) for step in (0, 9, 10, 55, 100)] == pytest.approx(
        [0.1, 1.0, 1.0, 0.55, 0.1]
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "linear"},
        {"steps": 0},
        {"max_seconds": 0.0},
        {"final": 2.0},
        {"cooldown": 1.5},
        {"warmup_steps": -1},
    ],
)
def test_a_schedule_that_cannot_be_is_refused(wrong: dict[str, object]):
    with pytest.raises(ValueError, match=r"schedule|must"):
        Schedule(**{"steps": 10, "peak": 1.0} | wrong)
