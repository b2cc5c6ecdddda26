"""Examples: the answer stands where they say, and is not in a passage that they call empty."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from colmlm.kb.corpus.format import AnnotatedDocument
from colmlm.model.annotate.config import reader_minilm
from colmlm.model.reader.reader import sentences_of, window_around, windows_of
from colmlm.model.reader.training import (
    NEIGHBOURS,
    ReaderExamples,
    ReaderQuestion,
    nearest_windows,
    says_answer,
)
from tests.strategies import texts

LANDS = {"Peru": ("Lima", "Titicaca"), "Ghana": ("Accra", "Volta"), "Chad": ("N'Djamena", "Chad Basin")}
DOCUMENTS = [
    AnnotatedDocument(
        land,
        f"{land} is a country. The capital of {land} is {city}. It is old. Its largest lake is {lake}. Many go there.",
        title=land,
    )
    for land, (city, lake) in LANDS.items()
]


def asked(number: int, value: str, question: str) -> ReaderQuestion:
    start = DOCUMENTS[number].text.rindex(value)
    return ReaderQuestion(number, question, (start, start + len(value)))


ASKED = [
    one
    for number, (land, (city, lake)) in enumerate(LANDS.items())
    for one in (
        asked(number, city, f"What is the capital of {land}?"),
        asked(number, lake, f"What is the largest lake of {land}?"),
    )
]
DOCUMENTS_BY_TITLE = {document.title: document.text for document in DOCUMENTS}
VALUES = {one.question: DOCUMENTS[one.document].text[slice(*one.answer)] for one in ASKED if one.answer}


def drawn(**changes: float) -> ReaderExamples:
    plain = {"keywords": 0.0, "statements": 0.0, "untitled": 0.0}
    return ReaderExamples(DOCUMENTS, ASKED, replace(reader_minilm(), **plain | changes))


@pytest.mark.parametrize("neighbours", [0.0, 0.99])
def test_an_answer_stands_in_its_passage_and_in_no_empty_one(neighbours: float) -> None:
    examples = [one for number in range(30) for one in drawn(none=0.5, neighbours=neighbours).round(number)]
    empty = [one for one in examples if one.answer is None]
    assert 0.4 < len(empty) / len(examples) <= 0.5
    for one in examples:
        value = VALUES[one.question if one.question.endswith("?") else f"{one.question}?"]
        if one.answer is None:
            assert not says_answer(one.text, value)
        else:
            assert one.text[slice(*one.answer)] == value
    titles = {one.title == next(land for land in LANDS if land in one.question) for one in empty}
    assert titles == ({False} if neighbours == 0.0 else titles), "others come from other documents"


def test_a_question_that_its_document_does_not_answer_is_learnt_and_measured_as_such() -> None:
    vain = ReaderQuestion(0, "What is the smallest lake of Peru?", None)
    drawn = ReaderExamples(DOCUMENTS, [*ASKED, vain], replace(reader_minilm(), none=0.0))
    asked = [one for number in range(20) for one in drawn.round(number) if "smallest" in one.question]
    assert len(asked) == 20
    assert all(one.answer is None and one.text in DOCUMENTS[0].text for one in asked)
    assert not [one for one in drawn.evaluation_examples() if "smallest" in one.question]
    whole = list(drawn.whole())
    assert [one.answer is None for one in whole] == [False] * len(ASKED) + [True]
    assert all(one.text == DOCUMENTS_BY_TITLE[one.title] for one in whole)


def test_a_round_is_the_same_in_every_run_and_the_next_is_another() -> None:
    first, again, second = (list(drawn().round(number)) for number in (0, 0, 1))
    assert first == again != second


def test_questions_come_in_the_forms_that_were_asked_for() -> None:
    examples = drawn(keywords=0.3, statements=0.3, untitled=0.5)
    many = [one for number in range(30) for one in examples.round(number)]
    assert {one.form for one in many} == {"question", "keywords", "statement"}
    assert {one.title == "" for one in many} == {True, False}
    assert "the capital of Peru is" in {one.question for one in many if one.form == "statement"}
    assert "capital Peru" in {one.question for one in many if one.form == "keywords"}


def test_measuring_reads_each_sentence_with_the_one_before_it() -> None:
    plain = list(drawn().evaluation_examples())
    assert plain[0].text == "Peru is a country. The capital of Peru is Lima."
    assert [one.answer is None for one in plain] == [False, True] * len(ASKED)
    assert {one.form for one in plain} == {"question"}


@pytest.mark.parametrize(
    ("text", "answer", "said"),
    [
        ("In 1911 he came.", "1911", True),
        ("In 19110 he came.", "1911", False),
        ("The LIMA of old", "lima", True),
        ("a (f(x)) b", "f(x)", True),
    ],
)
def test_an_answer_is_said_as_whole_words(text: str, answer: str, said: bool) -> None:
    assert says_answer(text, answer) is said


@given(texts, st.integers(0, 2**16), st.data())
def test_a_window_holds_its_value_whatever_the_text(text: str, seed: int, data: st.DataObject) -> None:
    sentences = sentences_of(text)
    assert all(text[start:end].strip() == text[start:end] != "" for start, end in sentences)
    assert len(windows_of(sentences)) == len(sentences)
    if sentences:
        start, end = data.draw(st.sampled_from(sentences))
        first = data.draw(st.integers(start, end - 1))
        last = data.draw(st.integers(first + 1, end))
        held = window_around(text, sentences, (first, last), random.Random(seed))
        assert held[0] <= first < last <= held[1]


def test_which_passages_are_near_is_kept_for_later_runs(tmp_path: Path) -> None:
    texts = [document.text for document in DOCUMENTS]
    questions = [one.question for one in ASKED]
    found = nearest_windows(texts, questions, 2)
    assert nearest_windows(texts, questions, 2, tmp_path) == found
    (kept,) = (tmp_path / NEIGHBOURS).glob("*.npy")
    other = np.zeros((len(questions), 2), np.int32)
    np.save(kept, other, allow_pickle=False)
    assert nearest_windows(texts, questions, 2, tmp_path) == other.tolist()  # read, and not ranked again
    assert (
        nearest_windows(texts, questions[:-1], 2, tmp_path) == found[:-1]
    )  # of other questions nothing is kept
    kept.write_bytes(b"damaged")
    assert nearest_windows(texts, questions, 2, tmp_path) == found
