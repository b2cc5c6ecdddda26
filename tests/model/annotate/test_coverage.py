"""Coverage of asked values by facts, on a text small enough to count by hand."""

from __future__ import annotations

import numpy as np

from colmlm.model.annotate.annotators import TaggedText
from colmlm.model.annotate.spans import Wholes
from colmlm.model.evaluate.annotators import coverage_curve, measure_coverage, normalise_value, threshold_for

TEXT = "Lima is old. The Cusco is older. 1981 is late."
LIMA, THE_CUSCO, CUSCO, YEAR = (0, 4), (13, 22), (17, 22), (33, 37)


def tagged() -> TaggedText:
    begin = np.array([0.9, 0.62, 0.31])
    log_probs_N3 = np.log(np.stack([1 - begin, begin, np.full(3, 1e-9)], axis=1))
    return TaggedText(TEXT, [LIMA, CUSCO, YEAR], log_probs_N3, Wholes(TEXT))


def test_an_asked_value_is_a_fact_up_to_articles_overlaps_one_or_lies_in_one() -> None:
    asked = [[LIMA, THE_CUSCO, CUSCO, (33, 43)]]
    measured = measure_coverage([TEXT], asked, [[LIMA, CUSCO, YEAR]])
    assert (measured.asked, measured.exact, measured.verbatim) == (4, 0.75, 0.5)
    assert (measured.overlap, measured.inside, measured.per_100_words) == (1.0, 0.5, 30.0)


def test_a_fact_elsewhere_that_says_the_same_covers_nothing() -> None:
    text = "Lima or Lima"
    measured = measure_coverage([text], [[(0, 4)]], [[(8, 12)]])
    assert (measured.exact, measured.overlap) == (0.0, 0.0)


def test_nothing_asked_and_nothing_found_are_no_errors() -> None:
    assert measure_coverage([], [], []).exact == 0.0
    assert measure_coverage([TEXT], [[]], [[]]).per_100_words == 0.0


def test_a_threshold_is_found_for_so_many_facts() -> None:
    """Checks that of three words with the odds of a fact 0.9, 0.62 and 0.31 one, two and three are found."""
    found = {many: threshold_for([tagged()], 10.0 * many) for many in (1, 2, 3)}
    assert 0.62 <= found[1] < 0.9 and 0.31 <= found[2] < 0.62 and found[3] < 0.31
    one, two = coverage_curve([[LIMA, YEAR]], [tagged()], [10.0, 20.0])
    assert (one.exact, two.exact) == (0.5, 0.5) and one.threshold == found[1]


def test_values_are_compared_without_case_signs_and_articles() -> None:
    assert normalise_value("The “House” of a King,") == normalise_value("house of king") == "house of king"
