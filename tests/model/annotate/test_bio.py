"""BIO tags are valid whatever the probabilities, and spans verbatim whatever the text."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from colmlm.model.annotate.spans import BEGIN, INSIDE, OUTSIDE, best_tags, spans_of, tags_of, trim_span
from tests.strategies import texts

VALID = {(OUTSIDE, OUTSIDE), (OUTSIDE, BEGIN)} | set(product((BEGIN, INSIDE), (OUTSIDE, BEGIN, INSIDE)))


def words_of(text: str) -> list[tuple[int, int]]:
    """Splits the text into words, as a tokenizer might: runs of one kind of character."""
    bounds = [0, *(i for i in range(1, len(text)) if text[i].isalnum() != text[i - 1].isalnum()), len(text)]
    return [(a, b) for a, b in pairwise(bounds) if text[a:b].strip()]


log_probs = st.integers(0, 8).flatmap(
    lambda n: st.lists(st.tuples(*[st.floats(-12, 0)] * 3), min_size=n, max_size=n).map(
        lambda rows: np.array(rows).reshape(-1, 3)
    )
)
thresholds = st.floats(0.01, 0.99)


def score(tags: tuple[int, ...], log_probs_N3: np.ndarray, threshold: float) -> float:
    """Gives the score that `best_tags` maximises, word by word; minus infinity for a sequence that is no BIO."""
    if tags[:1] == (INSIDE,) or not set(pairwise(tags)) <= VALID:
        return -np.inf
    total, before = 0.0, OUTSIDE
    for i, tag in enumerate(tags):
        outside, begin, inside = np.exp(log_probs_N3[i])
        within = np.exp(log_probs_N3[i - 1])[1:].sum() if i else 0.0
        goes_on = np.clip(inside / within, 1e-9, 1 - 1e-9) if within else 1e-9
        begins = np.clip(begin / (begin + outside), 1e-9, 1 - 1e-9)
        if before != OUTSIDE:
            total += np.log(goes_on if tag == INSIDE else 1 - goes_on)
        if tag != INSIDE:
            total += np.log(begins if tag == BEGIN else 1 - begins)
        total -= np.log(threshold / (1 - threshold)) * (tag == BEGIN)
        before = tag
    return float(total)


@given(log_probs.filter(lambda x: len(x) <= 5), thresholds)
def test_the_tags_are_the_best_of_all_valid_ones(log_probs_N3: np.ndarray, threshold: float):
    tags = tuple(best_tags(log_probs_N3, threshold))
    best = max(score(t, log_probs_N3, threshold) for t in product(range(3), repeat=len(log_probs_N3)))
    assert len(tags) == len(log_probs_N3)
    assert score(tags, log_probs_N3, threshold) == pytest.approx(best, abs=1e-6)


@given(log_probs, thresholds, thresholds)
def test_a_higher_threshold_never_gives_more_spans(log_probs_N3: np.ndarray, one: float, other: float):
    low, high = sorted((one, other))
    if high - low < 1e-6:
        return
    begun = [best_tags(log_probs_N3, t).count(BEGIN) for t in (low, high)]
    assert begun[1] <= begun[0]


def test_the_threshold_is_the_share_that_a_lone_word_needs():
    log_probs_N3 = np.log([[0.7, 0.3, 1e-9]])
    assert best_tags(log_probs_N3, 0.29) == [BEGIN] and best_tags(log_probs_N3, 0.31) == [OUTSIDE]
    for wrong in (0.0, 1.0, -1.0):
        with pytest.raises(ValueError, match="choose one between"):
            best_tags(log_probs_N3, wrong)


@pytest.mark.parametrize("sure", [1.0, 0.5, 0.1])
def test_how_long_a_span_is_does_not_depend_on_how_surely_it_is_one(sure: float):
    """Makes one name of two words, of which a share `sure` was marked: it is found whole or not at all."""
    begin, inside = np.array([0.96, 0.01, 0.01]) * sure, np.array([0.01, 0.94, 0.02]) * sure
    log_probs_N3 = np.log(np.stack([1 - begin - inside, begin, inside], axis=1))
    assert best_tags(log_probs_N3, sure / 2) == [BEGIN, INSIDE, OUTSIDE]
    assert best_tags(log_probs_N3, min(0.99, sure)) == [OUTSIDE] * 3


@given(texts, st.data())
def test_spans_are_verbatim_apart_trimmed_and_never_blank(text: str, data: st.DataObject):
    words = words_of(text)
    tags = best_tags(np.array(data.draw(st.lists(st.tuples(*[st.floats(-3, 0)] * 3), min_size=len(words),
                                                 max_size=len(words)))).reshape(-1, 3), 0.3)  # fmt: skip
    spans = spans_of(text, words, tags)
    assert len(spans) <= tags.count(BEGIN)
    assert all(0 <= start < end <= len(text) for start, end in spans)
    assert all(a[1] <= b[0] for a, b in pairwise(spans))
    for start, end in spans:
        value = text[start:end]
        assert value == value.strip() and value
        assert trim_span(text, start, end) == (start, end)


@given(texts, st.data())
def test_what_is_tagged_is_found_again(text: str, data: st.DataObject):
    words = [w for w in words_of(text) if text[w[0] : w[1]].isalnum()]
    picked = sorted(data.draw(st.sets(st.integers(0, len(words) - 1)))) if words else []
    spans = [words[i] for i in picked]
    assert spans_of(text, words, tags_of(words, spans)) == [trim_span(text, *span) for span in spans]


def test_a_word_belongs_to_the_span_that_covers_a_part_of_it():
    words = [(0, 5), (6, 11), (12, 15)]
    assert tags_of(words, [(3, 8)]) == [BEGIN, INSIDE, OUTSIDE]
    assert tags_of(words, [(0, 2), (3, 11)]) == [BEGIN, BEGIN, OUTSIDE]
    assert tags_of(words, [(5, 6)]) == [OUTSIDE] * 3
    assert tags_of(words, [(0, 5), (12, 15)]) == [BEGIN, OUTSIDE, BEGIN]
    assert tags_of([], [(0, 5)]) == []


@pytest.mark.parametrize(
    "span, value",
    [
        (" (2003), ", "2003"),
        ("$10.50.", "$10.50"),
        ("12%;", "12%"),
        ("-40 °C", "-40 °C"),
        ("- forty", "forty"),
        (".308 inch", ".308 inch"),
        ('"Baby Boy"', "Baby Boy"),
        ("“Baby Boy”,", "Baby Boy"),
        ("f(x).", "f(x)"),
        ("(212) 555-0100)", "(212) 555-0100"),
        ("U.S.", "U.S."),
        ("the end.", "the end"),
        ("C++", "C++"),
        ("#1", "#1"),
        ("\u200bLima\ufeff", "Lima"),
        ("\r\nLima\r\n", "Lima"),
        ("Lima\u2028", "Lima"),
        ("🏔️", "🏔️"),
    ],
)
def test_outer_punctuation_goes_and_what_belongs_to_a_value_stays(span: str, value: str):
    text = f"a {span} z"
    found = trim_span(text, 2, 2 + len(span))
    assert found is not None and text[found[0] : found[1]] == value


def test_a_letter_keeps_its_combining_marks():
    text = "at cafe\u0301s and cafe\u0301, where"
    assert trim_span(text, 3, 7) == (3, 8)
    assert trim_span(text, 14, 18) == (14, 19)


@pytest.mark.parametrize("span", ["", " ", '"', "...", "\u0301", "\u200b \r\n", "()", "—"])
def test_what_says_nothing_is_no_span(span: str):
    assert trim_span(f"a{span}", 1, 1 + len(span)) is None
