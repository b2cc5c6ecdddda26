"""What is suggested to be asked says by itself what it asks for, and is answered by a value and little more."""

from __future__ import annotations

import pytest

from colmlm.cli.composition.suggesting import is_told_by, question_of
from colmlm.kb.texts.sentences import sentence_ends

SEASON = "There were twelve cyclones. Of those, four were tropical storms. The season ended on November 30."


def asked(value: str, text: str = SEASON) -> str | None:
    start = text.index(value)
    return question_of(text, sentence_ends(text), start, start + len(value), None)


def test_the_beginning_of_a_sentence_asks_for_what_follows() -> None:
    assert asked("November 30") == "The season ended on"


@pytest.mark.parametrize("text", [SEASON, "It is known that they were tropical storms."])
def test_a_beginning_that_points_back_asks_for_nothing(text: str) -> None:
    assert asked("tropical storms", text) is None


@pytest.mark.parametrize("answer", ["tropical storms", "the tropical storms", "four were tropical storms"])
def test_a_value_with_little_beside_it_is_told(answer: str) -> None:
    assert is_told_by("tropical storms", answer)


@pytest.mark.parametrize("answer", ["cyclones", "twelve cyclones. Of those, four were tropical storms"])
def test_another_value_or_a_whole_sentence_is_not(answer: str) -> None:
    assert not is_told_by("tropical storms", answer)
