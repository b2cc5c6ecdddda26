"""Texts are cut into stretches that cover them, and read as words that no server's locale reads otherwise."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colmlm.kb.texts.searched import MOST_CHARACTERS, MOST_WORDS, searched_spans, searched_words
from tests.strategies import characters, texts


def cut(text: str) -> list[str]:
    return [text[start:end] for start, end in searched_spans(text)]


def test_sentences_cover_the_text_and_a_blank_one_joins_the_next() -> None:
    assert cut("Peru lies there. Its capital is Lima.") == ["Peru lies there. ", "Its capital is Lima."]
    assert cut("\n\n  A line.\n\nA text. ") == ["\n\n  A line.\n\n", "A text. "]
    assert cut("\n\n  A title\n\nA text. ") == ["\n\n  A title\n\nA text. "]
    assert cut(" \n\n ") == cut("") == []


def test_a_long_sentence_is_cut_into_even_parts_between_words() -> None:
    parts = cut(" ".join(f"word{n}" for n in range(2 * MOST_WORDS + 1)))
    assert [len(part.split()) for part in parts] == [41, 41, 39]
    assert all(part.endswith(" ") for part in parts[:-1])
    assert [len(part) for part in cut("x" * 1200)] == [MOST_CHARACTERS, MOST_CHARACTERS, 200]
    assert all(len(part) <= MOST_CHARACTERS + 1 for part in cut("abcdefghijkl " * 200))


@given(texts | st.text(characters) | st.text(st.sampled_from("ab. \nA█"), max_size=400))
def test_any_text_is_covered_without_a_gap_by_parts_that_are_not_blank(text: str) -> None:
    spans = searched_spans(text)
    assert "".join(text[start:end] for start, end in spans) == ("" if not text.strip() else text)
    assert all(one[1] == other[0] for one, other in pairwise(spans))
    for start, end in spans:
        said = text[start:end]
        assert said.strip() and len(said.split()) <= MOST_WORDS and len(said.strip()) <= MOST_CHARACTERS


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The U.S. Navy's 6,768 m", "the u s navy s 6 768 m"),
        ("Beyoncé’s “Café”", "beyonce s cafe"),
        ("ﬁn\u00adance", "finance"),
        ("straße", "strasse"),
        ("東京 Tower", "東 京 tower"),
        ("████ fell", "fell"),
        ("foo_bar <FACT>&quot;", "foo bar fact quot"),
        ("한국", "한 국"),
    ],
)
def test_words_are_read_without_capitals_accents_and_signs(text: str, words: str) -> None:
    assert searched_words(text) == words


@given(st.text(characters))
def test_words_hold_nothing_that_has_to_be_escaped(text: str) -> None:
    assert not set(searched_words(text)) & set("\"'\\{},\n\r\t\0█&|!:*()<>")
