"""The database finds every text that may say an erased one, whatever its locale makes of capitals."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import ARRAY, Text, cast, column, func, literal, select

from colmlm.kb.service import KnowledgeBase
from colmlm.kb.texts.wording import Phrases, may_say
from tests.spellings import SPELLINGS

PIECES = [
    *"aBß1ſK.*_~`'-\u2019\u2011\u2212\u00b4 \n\u0301\u00ad\u200bﬁİŉ\\&;",
    "exam",
    "Ple",
    "&nbsp;",
    "&#101;",
    "&shy;",
    "-\n",
    "\u00ad \r",
]
TEXTS = st.lists(st.sampled_from(PIECES), min_size=1, max_size=12).map("".join)
WITHIN = st.sampled_from(["", "", "", "*", "**", "-\n", "\u00ad\n ", "\u00ad", "&shy;", "\u200b"])


def test_a_text_that_says_it_in_other_capitals_is_found(kb: KnowledgeBase, subtests: pytest.Subtests):
    for erased, stored in (
        ("KAYSERİ", "It is in KAYSERİ."),
        ("KAYSERİ", "It is in kayseri\u0307."),
        ("DENİZLİ", "It is in DENI\u0307ZLI\u0307."),
        ("Gross", "A GROẞ of pens"),
        ("GROẞ", "a gross of pens"),
        ("Straße", "the STRAẞE, in that"),
        ("St Kilda", "in st kilda"),
    ):
        with subtests.test(erased=erased, stored=stored):
            assert Phrases([erased]).spans(stored), "they say the same"
            with kb.sessions() as session:
                assert session.scalar(select(may_say(literal(stored), [erased])))


def test_a_text_that_spells_it_otherwise_is_found(kb: KnowledgeBase, subtests: pytest.Subtests):
    for spelling in SPELLINGS:
        with subtests.test(spelling=spelling):
            erased, stored = SPELLINGS[spelling]
            with kb.sessions() as session:
                assert session.scalar(select(may_say(literal(f"It is {stored}."), [erased])))


@st.composite
def erased_and_stored(draw: st.DrawFn) -> tuple[str, list[str]]:
    """A value, and texts of which some say it, spelt otherwise."""
    value = draw(TEXTS)
    cut = "".join(character + draw(WITHIN) for character in value)
    around = draw(TEXTS)
    return value, [cut, value.upper(), f"{around} {cut} {around}", around, *draw(st.lists(TEXTS, max_size=5))]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300)
@given(given_texts=erased_and_stored())
def test_whatever_text_says_it_is_found(kb: KnowledgeBase, given_texts: tuple[str, list[str]]):
    erased, stored = given_texts
    said = {text for text in stored if Phrases([erased]).spans(text)}
    texts = func.unnest(cast(stored, ARRAY(Text))).table_valued(column("text", Text))
    with kb.sessions() as session:
        found = session.scalars(select(texts.c.text).where(may_say(texts.c.text, [erased]))).all()
    assert said <= set(found)
