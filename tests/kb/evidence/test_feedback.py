"""Feedback on outputs: one thumb of each person, listed, and checked before it is kept."""

from __future__ import annotations

import pytest

from colmlm.kb.errors import InvalidValue
from colmlm.kb.evidence.records import NewFeedback, NewOutput
from colmlm.kb.service import KnowledgeBase
from tests.refusals import raises_code


@pytest.fixture
def outputs(kb: KnowledgeBase) -> list[int]:
    return [kb.outputs.record(NewOutput("Who?", said, "", "auto", 0, ())) for said in ("Ann.", "Bob.")]


def test_the_last_thumb_of_each_person_counts(kb: KnowledgeBase, outputs: list[int]) -> None:
    first, second = outputs
    kb.outputs.give_feedback(first, NewFeedback("up"), actor="ann")
    kb.outputs.give_feedback(first, NewFeedback("down", value="Bob"), actor="ann")
    kb.outputs.give_feedback(first, NewFeedback("up"), actor="app", on_behalf_of="ann")
    kb.outputs.give_feedback(second, NewFeedback("up", "good"), actor="ann")
    said = kb.outputs.trace(first).feedback
    assert [(one.thumb, one.value, one.actor, one.on_behalf_of) for one in said] == [
        ("down", "Bob", "ann", None),
        ("up", None, "app", "ann"),
    ]
    listed = {one.generation_id: (one.up, one.down) for one in kb.outputs.find()}
    assert listed == {first: (1, 1), second: (1, 0)}
    assert [one.generation_id for one in kb.outputs.find(thumb="down")] == [first]
    assert [one.generation_id for one in kb.outputs.find(thumb="up", limit=1)] == [second]


def test_what_cannot_be_kept_is_refused(
    kb: KnowledgeBase, outputs: list[int], subtests: pytest.Subtests
) -> None:
    for made, cause in (
        (NewFeedback("sideways"), "not one of up, down"),  # type: ignore[arg-type]
        (NewFeedback("up", comment=" "), "blank"),
        (NewFeedback("up", value="x" * 2001), "the limit is 2000"),
    ):
        with subtests.test(made=made, cause=cause), pytest.raises(InvalidValue, match=cause):
            kb.outputs.give_feedback(outputs[0], made, actor="ann")


def test_an_output_that_is_not_there_takes_none(kb: KnowledgeBase) -> None:
    for output in (1, 0, 2**70):
        with raises_code("GenerationNotFound"):
            kb.outputs.give_feedback(output, NewFeedback("up"), actor="ann")
