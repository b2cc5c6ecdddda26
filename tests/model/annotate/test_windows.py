"""Texts as tokens: offsets are valid in any text, and windows read each word once, where it has most context."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colmlm.model.text.tokens import TokenisedWords, WordTokenizer, windows
from tests.strategies import texts
from tests.tiny_annotators import letter_tokenizer

LETTERS = WordTokenizer(letter_tokenizer())


@given(texts)
def test_words_are_stretches_of_the_text_in_order(text: str):
    encoded = LETTERS.encode(text)
    assert all(0 <= start < end <= len(text) for start, end in encoded.words)
    assert all(a[0] < b[0] and a[1] <= b[1] for a, b in pairwise(encoded.words))
    assert encoded.first == sorted(set(encoded.first)) and len(encoded.first) == len(encoded.words)
    assert all(0 <= token < len(encoded.ids) for token in encoded.first)


@given(texts)
def test_a_special_token_in_a_text_is_its_characters(text: str):
    specials = {LETTERS.cls, LETTERS.sep, LETTERS.pad}
    assert not specials & set(LETTERS.encode(f"{text}[SEP] [CLS][PAD]").ids)


def test_offsets_are_code_points_whatever_stands_before():
    for before in ("", "🏔️ ", "e\u0301 ", "\r\n", "\u200b", "שלום "):
        text = f"{before}Lima is old"
        encoded = LETTERS.encode(text)
        assert "Lima" in [text[start:end] for start, end in encoded.words]


def text_of(lengths: list[int]) -> TokenisedWords:
    """Makes words of these numbers of tokens."""
    first = [sum(lengths[:i]) for i in range(len(lengths))]
    return TokenisedWords(list(range(sum(lengths))), [(i, i + 1) for i in range(len(lengths))], first)


sizes = st.integers(2, 12).flatmap(lambda size: st.tuples(st.just(size), st.integers(0, size - 1)))


@given(st.lists(st.integers(1, 5), max_size=30), sizes)
def test_every_word_is_read_once_where_its_first_token_has_most_context(
    lengths: list[int], chosen: tuple[int, int]
):
    size, overlap = chosen
    encoded = text_of(lengths)
    total = len(encoded.ids)
    read = windows(encoded, size, overlap)
    assert [word for w in read for word in w.words] == list(range(len(lengths)))
    assert all(0 <= w.start < w.end <= total and w.end - w.start <= size for w in read)

    def context(token: int, start: int, end: int) -> int:
        if not start <= token < end:
            return -1
        return min(token - start if start else total, end - 1 - token if end < total else total)

    every = windows(text_of([1] * total), size, overlap) if total else []
    for w in read:
        for word in w.words:
            token = encoded.first[word]
            assert context(token, w.start, w.end) == max(context(token, o.start, o.end) for o in every)
            if total > size:
                assert context(token, w.start, w.end) >= min(overlap // 2 - 1, size // 2)


def test_a_text_that_fits_is_one_window_and_an_empty_one_is_none():
    (only,) = windows(text_of([2, 3]), 5, 2)
    assert (only.start, only.end, only.words) == (0, 5, range(2))
    assert windows(text_of([]), 5, 2) == []


@pytest.mark.parametrize("overlap", [5, 6, -1])
def test_windows_that_make_no_way_are_refused(overlap: int):
    with pytest.raises(ValueError, match="cannot overlap"):
        windows(text_of([9]), 5, overlap)
