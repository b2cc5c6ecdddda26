"""Spans are completed to names, numbers, dates and titles, and narrowed to what answers a question."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from colmlm.model.annotate.spans import Wholes, whole_spans
from tests.strategies import texts

WORDS = (
    "12", "12,480", "3.14", "$5", "5", "km", "million", "per cent", "%", "19th", "century", "March", "3,", "1911",
    "1914–1918", "New", "Zealand", "The", "the", "a", "of", "and", "in", "House", "Commons", "D.C.", "J.", "Tolkien",
    "Beyoncé's", "“Crazy", "in Love”", '"Help', 'me!"', "co-operate", "wrote", "(born", "1769)", "Apollo", "11",
    ".", ",", "\n",
)  # fmt: skip
sentences = st.lists(st.sampled_from(WORDS), min_size=1, max_size=14).map(" ".join)
any_text = st.one_of(sentences, texts, st.tuples(sentences, texts).map("".join))


@st.composite
def texts_with_spans(draw: st.DrawFn) -> tuple[str, list[tuple[int, int]]]:
    """Draws a text and spans of it: sorted, without overlap, never blank."""
    text = draw(any_text)
    cuts = sorted(draw(st.sets(st.integers(0, len(text)), max_size=8)))
    drawn = [pair for pair in pairwise(cuts) if text[slice(*pair)].strip() and draw(st.booleans())]
    return text, drawn


def completed(text: str, *values: str) -> list[str]:
    """Completes the spans at which these values stand in the text."""
    spans = [(text.index(value), text.index(value) + len(value)) for value in values]
    return [text[start:end] for start, end in whole_spans(text, spans)]


@pytest.mark.parametrize(
    ("text", "cut", "whole"),
    [
        ("about 12,480 people", "12", "12,480"),
        ("about 12,480 people", "480", "12,480"),
        ("on March 3, 1911, he", "March", "March 3, 1911"),
        ("on March 3, 1911, he", "1911", "March 3, 1911"),
        ("on 3 March 1911 he", "3", "3 March 1911"),
        ("in March of 1911", "1911", "March of 1911"),
        ("went to New Zealand by ship", "New", "New Zealand"),
        ("went to New Zealand by ship", "Zealand", "New Zealand"),
        ("it is 5 km away", "5", "5 km"),
        ("it is 5 km away", "km", "5 km"),
        ("some $1.5 billion went", "1.5", "$1.5 billion"),
        ("it lost 12.5 percent of it", "12.5", "12.5 percent"),
        ("it lost 12% of it", "12", "12%"),
        ("two million people", "million", "two million"),
        ("the 19th century saw", "19th", "19th century"),
        ("in 44 BC at Rome", "44", "44 BC"),
        ("at 10:30 p.m. they", "10", "10:30 p.m."),
        ("her song “Crazy in Love” sold", "Love", "Crazy in Love"),
        ('her song "Crazy in Love" sold', "Crazy", "Crazy in Love"),
        ('her song "Crazy in Love" sold', 'song "Crazy', 'song "Crazy in Love"'),
        ("by J. R. R. Tolkien in", "Tolkien", "J. R. R. Tolkien"),
        ("by Dr. Martin Luther King Jr. in", "Martin", "Dr. Martin Luther King Jr"),
        ("in Washington D.C. they", "Washington", "Washington D.C."),
        ("as Apollo 11 landed", "Apollo", "Apollo 11"),
        ("all well-known names", "known", "well-known"),
        ("won 24–10 at home", "24", "24–10"),
        ("on 2020-01-05 it", "2020", "2020-01-05"),
    ],
)
def test_a_cut_number_date_name_or_title_is_completed(text: str, cut: str, whole: str) -> None:
    assert completed(text, cut) == [whole]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("Napoleon (1769–1821) was", "1769"),
        ("the House of Commons in London, England", "London"),
        ("In Peru there", "Peru"),
        ("However, Peru is. When Peru", "Peru"),
        ("Peru's President lives", "Peru"),
        ("She said: “I never went to the house of my father after that, not once.”", "house"),
        ("THE WHOLE OF THIS HEADING IS IN CAPITALS AND LONG", "HEADING"),
        ("Lima\nCusco", "Lima"),
        ("with Jay Z. She", "Jay Z"),
        ("its London-based makers", "London"),
        ("[…] In 2010 it", "2010"),
        ('he said "we never went there at all"', "went"),
    ],
)
def test_what_is_whole_stays_as_it_is(text: str, value: str) -> None:
    assert completed(text, value) == [value]


@pytest.mark.parametrize(
    ("found", "kept"),
    [
        ("Australian soldier and", "Australian soldier"),
        (" and 1957 ", "1957"),
        ("planter, and the", "planter"),
        ("the House of Commons", "House of Commons"),
        ("an old ship", "old ship"),
        ("The Who", "The Who"),
        ("oil on", "oil"),
        ("oil (in", "oil"),
        ("Anderson", "Anderson"),
        ("android", "android"),
        ("and", "and"),
        ("of", "of"),
    ],
)
def test_a_span_loses_what_can_be_no_part_of_it(found: str, kept: str) -> None:
    assert completed(f"x {found} y", found) == [kept]


def test_a_fact_ends_with_its_paragraph() -> None:
    text = "Animals on board\n\nDogs travel free.\nCats do not."
    across = (text.index("board"), text.index("Dogs") + 4)
    assert [text[start:end] for start, end in whole_spans(text, [across])] == ["board"]
    lines = (text.index("free"), text.index("Cats") + 4)
    assert [text[start:end] for start, end in whole_spans(text, [lines])] == ["free.\nCats"]


def test_an_article_that_is_part_of_a_name_stays() -> None:
    assert completed("songs of The Beatles sold", "The Beatles") == ["The Beatles"]
    assert completed("The Beatles sold songs", "The Beatles") == ["Beatles"]


def test_spans_that_completion_makes_overlap_are_one() -> None:
    assert completed("on March 3, 1911, in New Zealand", "March", "1911", "Zealand") == [
        "March 3, 1911",
        "New Zealand",
    ]


@given(texts_with_spans())
def test_completed_spans_are_flat_sorted_never_blank_and_cut_nothing(
    drawn: tuple[str, list[tuple[int, int]]],
) -> None:
    text, spans = drawn
    wholes = Wholes(text)
    found = whole_spans(text, spans)
    assert all(0 <= start < end <= len(text) and text[start:end].strip() for start, end in found)
    assert all(a[1] <= b[0] for a, b in pairwise(found))
    assert all(not (a < place < b) for a, b in wholes.spans for span in found for place in span)


@given(texts_with_spans())
@example(('<FACT>0<FACT q="a" a="b">', [(22, 23), (23, 24)]))
def test_what_is_completed_stays_as_it_is(drawn: tuple[str, list[tuple[int, int]]]) -> None:
    text, spans = drawn
    found = whole_spans(text, spans)
    assert whole_spans(text, found) == found


@given(any_text)
def test_wholes_are_sorted_and_apart(text: str) -> None:
    wholes = Wholes(text).spans
    assert all(start < end for start, end in wholes)
    assert all(a[1] <= b[0] for a, b in pairwise(wholes))
