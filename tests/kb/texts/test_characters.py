"""Characters that do not show: refused where people write into the log, shown where a text has them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.orm import Session

from colmlm.kb.access.tokens import create_token
from colmlm.kb.errors import InvalidValue
from colmlm.kb.log import audit
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.texts.characters import JOINERS, find_invisible, is_blank, json_visible, visible_text

HOSTILE = ("\x1b[2J", "a\x07", "a\x7f", "a\x9b31m", "a\u202eb", "a\u2066b", "a\u200fb", "a\u200bb", "a\ufeff", "a\xadb",
           "a\nb", "a\u2028b", "a\U000e0041")  # fmt: skip
BLANK = ("\u200b", "\u2060\ufeff", " \u3000", "\u3164", "\u2800\u115f", "\ufe0f", "\u200d", "")


def test_what_does_not_show_is_not_written_into_the_log(kb: KnowledgeBase, subtests: pytest.Subtests) -> None:
    for text in HOSTILE:
        with subtests.test(text=text):
            for who in ({"actor": text, "reason": "test"}, {"actor": "ann", "reason": text}):
                with pytest.raises(InvalidValue):
                    kb.facts.add("Who?", "Ann", **who)
            with Session(kb.engine) as session, pytest.raises(InvalidValue):
                create_token(session, text, "reader")
            assert kb.log.head_seq() == 0


def test_what_has_nothing_to_see_is_blank(kb: KnowledgeBase, subtests: pytest.Subtests) -> None:
    for text in BLANK:
        with subtests.test(text=text):
            assert is_blank(text)
            for said in ({"value": text}, {"question": text}, {"reason": text}, {"actor": text}):
                with pytest.raises(InvalidValue, match="blank"):
                    kb.facts.add(
                        **{"question": "Who?", "value": "Ann", "actor": "ann", "reason": "test", **said}
                    )
            with Session(kb.engine) as session, pytest.raises(InvalidValue):
                create_token(session, text, "reader")


def test_a_reason_may_be_in_any_language_and_a_value_keeps_what_it_has(kb: KnowledgeBase) -> None:
    persian = "می\u200cشود"
    kb.facts.add("Who?", "a\u200bb\u202e", actor="آنا", reason=persian)
    assert kb.facts.find()[0].value == "a\u200bb\u202e" and kb.log.changes()[0].reason == persian
    with pytest.raises(InvalidValue):
        audit.check_name("actor", "admin\u200d")


@given(st.text())
def test_what_is_shown_shows_and_json_means_the_same(text: str) -> None:
    assert find_invisible(visible_text(text), "\t\n" + JOINERS) is None
    assert find_invisible(visible_text(text, "")) is None
    told = json_visible(json.dumps(text, ensure_ascii=False))
    assert json.loads(told) == text and find_invisible(told) is None
    assert find_invisible(text) is not None or visible_text(text) == text
