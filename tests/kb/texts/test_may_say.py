"""The database finds every text that may say an erased one, whatever its locale makes of capitals."""

from __future__ import annotations

import pytest
from sqlalchemy import literal, select

from colmlm.kb.service import KnowledgeBase
from colmlm.kb.texts.wording import Phrases, may_say


@pytest.mark.parametrize(
    ("erased", "stored"),
    [
        ("KAYSERİ", "It is in KAYSERİ."),
        ("KAYSERİ", "It is in kayseri\u0307."),
        ("DENİZLİ", "It is in DENI\u0307ZLI\u0307."),
        ("Gross", "A GROẞ of pens"),
        ("GROẞ", "a gross of pens"),
        ("Straße", "the STRAẞE, in that"),
        ("St Kilda", "in st kilda"),
    ],
)
def test_a_text_that_says_it_in_other_capitals_is_found(kb: KnowledgeBase, erased: str, stored: str):
    assert Phrases([erased]).spans(stored), "they say the same"
    with kb.sessions() as session:
        assert session.scalar(select(may_say(literal(stored), [erased])))
