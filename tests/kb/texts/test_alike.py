"""Values in other wordings: which rules know that two texts say the same."""

from __future__ import annotations

import pytest

from colmlm.kb.texts.alike import compare_wording


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("March 14, 1879", "14 March 1879"),
        ("March 14, 1879", "14.3.1879"),
        ("March 14, 1879", "1879-03-14"),
        ("14th of March", "March 14"),
        ("12,480", "12480"),
        ("1.5 million", "1,500,000"),
        ("two hundred and five", "205"),
        ("$5 million", "5 million dollars"),
        ("25%", "25 percent"),
        ("third", "3rd"),
        ("Marie Curie", "Curie"),
        ("Marie Curie", "M. Curie"),
        ("Curie", "Marie Curie"),
        ("National Football League", "NFL"),
        ("the Normans", "Norman"),
        ("U.S.", "US"),
        ("José Martí", "Jose Marti"),
    ],
)
def test_another_wording_says_the_same(value: str, text: str) -> None:
    assert compare_wording(value, text) == "same"


@pytest.mark.parametrize(
    ("value", "text"),
    [("1879", "14 March 1879"), ("12,480", "about 12480 people"), ("Lima", "the city of Lima")],
)
def test_a_longer_text_holds_the_value(value: str, text: str) -> None:
    assert compare_wording(value, text) == "longer"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("1889", "1890"),
        ("1889", "18890"),
        ("12 March 1879", "1879"),
        ("March 14, 1879", "March 15, 1879"),
        ("Lima", "Limassol"),
        ("Marie Curie", "Marie"[:2]),
        ("Denver Broncos", "Carolina Panthers"),
        ("the the", "the"),
        ("Lima", ""),
    ],
)
def test_another_value_is_none(value: str, text: str) -> None:
    assert compare_wording(value, text) is None
