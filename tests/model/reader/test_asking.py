"""The forms of asking, each from a question that a person wrote."""

from __future__ import annotations

import random

import pytest

from colmlm.model.text.passages import keywords_of, statement_of, stopped_sentence


@pytest.mark.parametrize(
    ("question", "said"),
    [
        ("What is the capital of Peru?", "capital Peru"),
        ("Who wrote the novel To Kill a Mockingbird?", "wrote novel Kill Mockingbird"),
        ("When did the 30-pin dock appear?", "30-pin dock appear"),
        ("Who was she?", None),
        ("How tall is it?", None),
    ],
)
def test_keywords_are_a_question_without_its_grammar(question: str, said: str | None) -> None:
    assert keywords_of(question) == said


@pytest.mark.parametrize(
    ("question", "said"),
    [
        ("What is the capital of Peru?", "the capital of Peru is"),
        ("What was Chopin's first work?", "Chopin's first work was"),
        ("When was the bridge over the Tay built?", "the bridge over the Tay was built in"),
        ("Where were the twins born in?", "the twins were born in"),
        ("What was Chopin known for?", None),
        ("What was the plant used for?", None),
        ("When did the war end?", None),
        ("Who wrote it?", None),
    ],
)
def test_a_statement_stops_where_the_answer_would_stand(question: str, said: str | None) -> None:
    assert statement_of(question) == said


def test_a_stopped_sentence_keeps_its_last_words_and_loses_some_others() -> None:
    text = "In the year 1911 an explorer from the north saw the old city, which is high above the river Urubamba."
    end = text.index("Urubamba")
    drawn = {stopped_sentence(text, 0, end, random.Random(seed)) for seed in range(20)} - {None}
    assert len(drawn) > 10
    assert all(said.endswith("above the river") and len(said) <= end for said in drawn)
    assert stopped_sentence(text, 0, text.index("1911"), random.Random(1)) is None, (
        "three words say too little"
    )
