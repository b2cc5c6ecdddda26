"""The figures of a reader, on answers that are right, near and wrong."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from colmlm.kb.answers.reading import Passage, PassageReading
from colmlm.model.reader.training import (
    ReaderExample,
    auc,
    f1,
    forms_of_asking,
    measure_reader,
    normalise_answer,
    question_kind,
)

TEXT = "The capital of Peru is the old city of Lima."


class LastWords:
    """A reader that takes the last two words for the answer, more surely the shorter the question is."""

    def read(self, question: str, windows: Sequence[Passage]) -> list[PassageReading]:
        return [
            PassageReading(((len(w.text) - 8, len(w.text) - 1, 10.0 - len(question) / 10),), 0.0)
            for w in windows
        ]

    def read_all(self, asked: Sequence[tuple[str, Sequence[Passage]]]) -> list[list[PassageReading]]:
        return [self.read(*one) for one in asked]


def example(question: str, answer: str | None) -> ReaderExample:
    place = None if answer is None else (TEXT.index(answer), TEXT.index(answer) + len(answer))
    return ReaderExample(question, "question", "Peru", TEXT, place)


def test_answers_are_counted_by_what_is_asked_for() -> None:
    figures = measure_reader(
        LastWords(),
        [
            example("What is the capital?", "of Lima"),
            example("Which city?", "Lima"),
            example("How many live there in the great old city on the coast?", None),
        ],
    )
    assert (figures.answered.questions, figures.answered.exact) == (2, 0.5)
    assert figures.answered.f1 == pytest.approx((1 + 2 / 3) / 2, abs=1e-3)
    assert {name: one.exact for name, one in figures.by_kind.items()} == {"what": 1.0, "which": 0.0}
    assert (figures.unanswered, figures.none_auc) == (1, 1.0)


@pytest.mark.parametrize(
    ("question", "word"),
    [
        ("How many men came?", "how many"),
        ("At how much was it sold?", "how many"),
        ("How did it end?", "how"),
        ("In what year did he die?", "what"),
        ("The river flows where?", "where"),
        ("Name the king.", "other"),
    ],
)
def test_the_kind_of_a_question_is_its_question_word(question: str, word: str) -> None:
    assert question_kind(question) == word


def test_answers_are_compared_without_case_articles_and_punctuation() -> None:
    assert normalise_answer("The  U.S. Navy,") == "us navy"
    assert f1("the old city", "Old city") == 1.0 and f1("Lima", "Cusco") == 0.0


def test_auc_counts_pairs_and_equal_ones_half() -> None:
    assert auc([2.0, 3.0], [1.0, 2.0]) == pytest.approx(3.5 / 4)


def test_each_form_is_measured_where_there_is_one() -> None:
    made = forms_of_asking([example("What is the capital of Peru?", "Lima"), example("Who came?", None)])
    assert {how: [one.question for one in some] for how, some in made.items()} == {
        "questions": ["What is the capital of Peru?", "Who came?"],
        "without title": ["What is the capital of Peru?", "Who came?"],
        "keywords": ["capital Peru"],
        "statements": ["the capital of Peru is"],
    }
    assert {one.title for one in made["without title"]} == {""}
