"""Sentences end where a reader would end them, and together they are the text."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given

from colmlm.kb.texts.sentences import sentence_around, sentence_ends
from tests.strategies import texts


def sentences(text: str) -> list[str]:
    return [text[start:end].strip() for start, end in pairwise([0, *sentence_ends(text)])]


@pytest.mark.parametrize(
    "text, parts",
    [
        ("He left. She stayed! Why? 12 knew…", 4),
        ("Dr. Holm met J. R. R. Tolkien in the U.S. Navy, cf. Fig. 3 of vol. 2, on Sept. 4.", 1),
        ('"It rose to 3.14 m." (Then it fell.) It is 5 m.', 3),
        ("The harbour\n\nit was built\nin 1834", 2),
        ("利马是首都。它很大！", 2),
        ("a. b. then c", 1),
        ("", 0),
    ],
)
def test_a_sentence_ends_where_a_reader_ends_it(text: str, parts: int) -> None:
    assert len(sentences(text)) == parts, sentences(text)


@given(texts)
def test_sentences_cover_the_text_and_hold_every_span(text: str) -> None:
    ends = sentence_ends(text)
    assert ends == sorted(set(ends)) and (ends[-1:] or [0]) == [len(text)]
    for start in range(len(text)):
        begins, stops = sentence_around(ends, start, start + 1)
        assert begins <= start < stops and stops in ends and begins in (0, *ends)


def test_a_span_over_two_sentences_is_held_by_both() -> None:
    text = "One. Two. Three."
    assert sentence_around(sentence_ends(text), 5, 12) == (5, 16)
