"""What is suggested to be asked is a question, and is answered by a value and little more."""

from __future__ import annotations

import pytest

from colmlm.cli.composition.adding import is_short_answer, questions_to_try
from tests.kb.corpora import document


def test_only_questions_are_tried_the_short_ones_first() -> None:
    told = document(
        "season",
        *(
            "There were ",
            ("twelve", "How many cyclones did the whole season have?"),
            " cyclones. The season ended on ",
        ),
        *(("November 30", ""), ". It began on ", ("June 1", "When did it begin?"), " in "),
        *(("1994", "the year of the season"), "."),
    )
    asked = [one.question for one in questions_to_try(told)]
    assert asked == ["When did it begin?", "How many cyclones did the whole season have?"]


@pytest.mark.parametrize("answer", ["tropical storms", "the tropical storms", "four were tropical storms"])
def test_a_value_with_little_beside_it_is_told(answer: str) -> None:
    assert is_short_answer("tropical storms", answer)


@pytest.mark.parametrize("answer", ["cyclones", "twelve cyclones. Of those, four were tropical storms"])
def test_another_value_or_a_whole_sentence_is_not(answer: str) -> None:
    assert not is_short_answer("tropical storms", answer)
