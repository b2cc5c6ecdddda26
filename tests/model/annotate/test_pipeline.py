"""Spans that the light annotators find are narrowed to what answers a question."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colmlm.model.annotate.pipeline import narrow
from tests.strategies import texts


@pytest.mark.parametrize(
    ("found", "kept"),
    [
        ("Australian soldier and", "Australian soldier"),
        (" and 1957 ", "1957"),
        ("planter, and the", "planter"),
        ("the House of Commons", "the House of Commons"),
        ("The Who", "The Who"),
        ("oil on", "oil"),
        ("Anderson", "Anderson"),
        ("android", "android"),
        ("and", "and"),
        ("of", "of"),
    ],
)
def test_a_span_loses_what_can_be_no_part_of_it(found: str, kept: str) -> None:
    text = f"x {found} y"
    start, end = narrow(text, 2, 2 + len(found))
    assert text[start:end] == kept


@given(texts, st.data())
def test_a_span_is_narrowed_within_itself_and_once(text: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, len(text)))
    inner = narrow(text, start, end)
    assert start <= inner[0] <= inner[1] <= end and narrow(text, *inner) == inner
