"""What share of questions is answered rightly, wrongly or not at all, at one threshold and over all of them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colmlm.kb.answers.calibration import RIGHT
from colmlm.kb.answers.records import PASSAGE
from colmlm.lab.methods.raw_documents import OUTCOMES, RawAnswer
from colmlm.model.evaluate.intervals import Draw, bootstrap, of_share

NAMES = ("exact", "right", *OUTCOMES[2:])
STEPS = 41
WRONG = 0.05
KEPT = ("threshold", "no_threshold", "at_5_wrong", "curve", "milliseconds")  # whatever the thresholds are

Answers = Sequence[RawAnswer]


def report(asked: Answers, absent: Answers, threshold: float, seed: int) -> dict[str, Any]:
    """Gives the shares at a threshold with their 95 % intervals, those without one, and those at `WRONG` wrong answers.

    Shares are of `asked`; a false alarm is an answer to a question of `absent`. Intervals are by bootstrap over the
    questions. A threshold of minus infinity is told as None.
    """
    intervals = _intervals(asked, absent, threshold, seed)
    return {
        "questions": len(asked),
        "unanswerable": len(absent),
        "threshold": threshold if np.isfinite(threshold) else None,
        **shares(asked, absent, threshold),
        "right_ci": intervals["right"],
        "intervals": intervals,
        "no_threshold": shares(asked, absent, -np.inf),
        "at_5_wrong": at_wrong(asked, absent, WRONG),
        "curve": curve(asked, absent),
        "milliseconds": 1000 * float(np.median([one.seconds for one in asked])),
    }


def at_shipped(said: Answers, said_absent: Answers, found: dict[str, Any], seed: int) -> dict[str, Any]:
    """Give a report whose shares are those of what was said at the shipped thresholds, of spans and of passages.

    `passage` is the share of the questions that got a passage. `no_threshold`, the curve and `at_5_wrong` stay those of
    `found`, which are of the best answers whatever their scores.
    """
    shipped = report(said, said_absent, 0.0, seed)
    kept = {name: found[name] for name in KEPT}
    passages = sum(one.said is not None and one.grain == PASSAGE for one in said)
    return shipped | kept | {"passage": passages / max(1, len(said))}


def shares(asked: Answers, absent: Answers, threshold: float) -> dict[str, float]:
    """Gives the share of each outcome at a threshold. `right` is exact or holding."""
    found = [one.at(threshold) for one in asked]
    by_name = {name: found.count(name) / max(1, len(found)) for name in OUTCOMES}
    by_name["right"] = sum(by_name[name] for name in RIGHT)
    alarms = sum(one.at(threshold) != "abstained" for one in absent)
    return {name: by_name[name] for name in NAMES} | {"false_alarm": alarms / max(1, len(absent))}


def at_wrong(asked: Answers, absent: Answers, most: float) -> dict[str, float]:
    """Gives the least threshold at which no more than `most` are wrong or made up, and the shares there.

    It is read off these very questions, so it compares ways of answering and promises nothing of others.
    """
    scores = sorted({one.score for one in asked})
    fewest = bisect_left(scores, True, key=lambda least: _wrong(asked, least) <= most)
    least = scores[fewest] if fewest < len(scores) else above(scores)
    return {"threshold": least, **shares(asked, absent, least)}


def _wrong(asked: Answers, threshold: float) -> float:
    return sum(one.at(threshold) in ("wrong", "made_up") for one in asked) / max(1, len(asked))


def curve(asked: Answers, absent: Answers) -> list[dict[str, float]]:
    """Gives the shares at thresholds between which about as many answers lie each time, the lowest first."""
    scores = [one.score for one in asked if one.said is not None]
    if not scores:
        return []
    levels = np.unique(np.quantile(scores, np.linspace(0, 1, STEPS), method="lower"))
    return [{"threshold": level, **shares(asked, absent, level)} for level in levels.tolist()]


def answering_as_many(asked: Answers, number: int) -> float:
    """Gives the threshold at which so many of the questions are answered, or more of equal scores."""
    falling = sorted((one.score for one in asked if one.said is not None), reverse=True)
    return falling[min(number, len(falling)) - 1] if number and falling else above(falling)


def above(scores: Sequence[float]) -> float:
    """Gives a threshold that none of these scores reaches."""
    return float(np.nextafter(max(scores, default=0.0), np.inf))


def answered(asked: Answers, threshold: float) -> int:
    return sum(one.at(threshold) != "abstained" for one in asked)


def _intervals(asked: Answers, absent: Answers, threshold: float, seed: int) -> dict[str, list[float]]:
    there = _indicators(asked, threshold)
    alarms_M = np.array([one.at(threshold) != "abstained" for one in absent], dtype=float)

    def measure(draw: Draw) -> dict[str, float]:
        rows = draw(len(asked))
        found = {name: float(is_N[rows].mean()) for name, is_N in there.items()}
        return found | {"false_alarm": float(alarms_M[draw(len(absent))].mean())} if len(absent) else found

    told, found = shares(asked, absent, threshold), bootstrap(measure, seed=seed)
    number = {"false_alarm": len(absent)}
    return {name: list(of_share(told[name], found[name], number.get(name, len(asked)))) for name in found}


def _indicators(asked: Answers, threshold: float) -> dict[str, NDArray[np.float64]]:
    outcomes = [one.at(threshold) for one in asked]
    names = {name: (name,) for name in NAMES} | {"right": RIGHT}
    return {name: np.array([one in which for one in outcomes], dtype=float) for name, which in names.items()}
