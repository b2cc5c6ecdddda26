"""Answers are scored as the paper says, with and without spliced values, and an interrupted run is resumed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from colmlm.model.decoding.decoder import DecodedOutput
from colmlm.model.decoding.rows import SpliceRecord
from colmlm.model.evaluate.answers import (
    AskedQuestion,
    ScoredOutput,
    Share,
    exact_match,
    score,
    share,
    summarise,
    without_values,
)

CAPITAL = AskedQuestion("q1", "What is the capital of Peru?", ("Lima", "Ciudad de los Reyes"), fact_id=7)


def generation(output: str, *splices: SpliceRecord) -> DecodedOutput:
    return DecodedOutput(CAPITAL.prompt, output, splices, 5, "auto", 9, "length")


def hit(start: int, end: int, fact_id: int) -> SpliceRecord:
    return SpliceRecord(start, end, "hit", fact_id, 1, 0.9)


@pytest.mark.parametrize(
    "output, matches",
    [
        (" It is LIMA.", True),
        ("Ciudad  de los Reyes", False),
        ("the ciudad de los reyes", True),
        ("x" * 96 + "Lima", True),
        ("x" * 97 + "Lima", False),
        ("", False),
    ],
)
def test_any_answer_within_the_first_hundred_characters_matches(output: str, matches: bool):
    assert exact_match(output, CAPITAL.answers) is matches


def test_an_empty_answer_matches_nothing():
    assert not exact_match("Lima", ("", " "))


def test_a_spliced_answer_counts_with_the_values_and_not_without_them():
    output = "Peru: Lima, in 1535 Lima"
    splices = (hit(6, 10, 7), SpliceRecord(12, 12, "no_match", score=0.1), hit(15, 19, 8))
    assert without_values(output, splices) == "Peru: , in  Lima"
    row = score(CAPITAL, generation(output, *splices), str)
    assert row.exact_match and row.exact_match_without_values and row.right_fact and row.right_value
    assert (row.lookups, row.hits, row.no_matches, row.abstained) == (3, 2, 1, 0)
    assert (row.values, row.fact_ids) == (["Lima", "1535"], [7, 8])
    alone = score(CAPITAL, generation("Peru: Lima", hit(6, 10, 9)), str)
    assert alone.exact_match and not alone.exact_match_without_values
    assert alone.right_value and not alone.right_fact


def test_a_statement_must_be_completed_within_its_first_tokens():
    statement = AskedQuestion("s1", "The capital of Peru is", ("Lima",), is_statement=True)
    assert statement.prompt == "The capital of Peru is"
    found = [
        score(statement, generation(output), lambda said: said[:12]).exact_match
        for output in (" the city Lima", " Lima, a city")
    ]
    assert found == [False, True]
    assert score(CAPITAL, generation(" the city Lima"), lambda said: said[:5]).exact_match


def test_a_right_value_is_the_whole_value():
    assert score(CAPITAL, generation("LIMA ", hit(0, 5, 9)), str).right_value
    assert not score(CAPITAL, generation("Lima Norte", hit(0, 10, 9)), str).right_value


def test_intervals_are_those_of_the_bootstrap_and_the_same_every_time():
    holds = [True] * 30 + [False] * 70
    found = share(holds)
    drawn = [np.random.default_rng(n).choice(holds, 100).mean() for n in range(3000)]
    assert found.share == 0.3 and found == share(holds)
    assert (found.low, found.high) == pytest.approx(np.quantile(drawn, [0.025, 0.975]), abs=0.021)
    assert share([False] * 14) == Share(0.0, 0.0, 0.2316) and share([True] * 14) == Share(1.0, 0.7684, 1.0)
    with pytest.raises(ValueError, match="no questions"):
        share([])


def rows(count: int) -> list[ScoredOutput]:
    """Makes rows of which every second looked up and found the fact, and every third has the answer."""
    made = []
    for n in range(count):
        asked = replace(CAPITAL, question_id=f"q{n}")
        splices = [hit(0, 4, 7)] if n % 2 == 0 else []
        made.append(score(asked, generation("xxxx Lima" if n % 3 == 0 else "xxxx", *splices), str))
    return made


def test_a_summary_counts_all_and_the_right_fact_where_one_is_known():
    summary = summarise(rows(6), ["q0", "q1", "q2"])
    assert (summary.questions, summary.hits, summary.lookups, summary.num_with_fact) == (6, 3, 3, 3)
    assert summary.exact_match.share == summary.exact_match_without_values.share == round(1 / 3, 4)
    assert summary.right_fact is not None and summary.right_fact.share == round(2 / 3, 4)
    assert summary.looked_up.share == 0.5 and summary.right_value.share == 0
    assert summary.finishes == {"length": 6} and summary.content_tokens == 54
    assert summarise(rows(2), []).right_fact is None
