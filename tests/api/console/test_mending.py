"""Facts mended in the console: a question edited, a span selected, many edited at once, each with a way to undo it."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from colmlm.kb.service import KnowledgeBase
from tests.api.conftest import TEXT
from tests.api.console.conftest import OpenPage

pytestmark = pytest.mark.browser

SELECT = """word => {
  const text = document.querySelector(".text");
  const found = document.evaluate(`.//text()[contains(., "${word}")]`, text, null, 9).singleNodeValue;
  const range = document.createRange(), at = found.data.indexOf(word);
  range.setStart(found, at); range.setEnd(found, at + word.length);
  getSelection().removeAllRanges(); getSelection().addRange(range);
}"""


def test_a_question_is_edited_and_undone(open_page: OpenPage, almanac: KnowledgeBase, fact_id: int) -> None:
    before = almanac.facts.show(fact_id).question
    page = open_page("operator", f"/console/facts/{fact_id}")
    page.get_by_label("Question").fill("Where is the seat?")
    page.get_by_label("Reason").fill("clearer")
    page.get_by_role("button", name="Correct").click()
    expect(page.locator(".note.good")).to_contain_text("corrected one fact")
    fact = almanac.facts.show(fact_id)
    assert (fact.question, fact.value) == ("Where is the seat?", "Lima")
    assert almanac.keysets.show(almanac.keysets.active().keyset_id).num_unkeyed == 0
    page.get_by_role("button", name="Undo").click()
    expect(page.get_by_label("Question")).to_have_value(before or "")
    assert almanac.facts.show(fact_id).question == before


def test_a_fact_is_marked_by_selecting_its_words(open_page: OpenPage, almanac: KnowledgeBase) -> None:
    page = open_page("operator", "/console/documents/1")
    page.evaluate(SELECT, " great lake ")
    start = TEXT.index("great lake")
    expect(page.get_by_label("Words")).to_have_value("great lake")
    expect(page.get_by_label("From")).to_have_value(str(start))
    expect(page.get_by_label("To", exact=True)).to_have_value(str(start + len("great lake")))
    page.get_by_label("Question (optional)").fill("What is Titicaca?")
    page.get_by_label("Reason").fill("was missing")
    page.get_by_role("button", name="Mark").click()
    expect(page.locator(".note.good")).to_contain_text("added one fact")
    (fact,) = almanac.facts.find(text="great lake")
    assert fact.source is not None and fact.source.start == start
    assert (
        fact.question == "What is Titicaca?"
        and almanac.keysets.show(almanac.keysets.active().keyset_id).num_unkeyed == 0
    )


def test_a_span_is_moved_by_its_text_alone(open_page: OpenPage, almanac: KnowledgeBase, fact_id: int) -> None:
    page = open_page("operator", f"/console/facts/{fact_id}", java_script_enabled=False)
    page.get_by_role("link", name="Move its span…").click()
    page.get_by_label("Words").fill("Peru")
    page.get_by_label("Reason").fill("cut too short")
    page.get_by_role("button", name="Move").click()
    expect(page.get_by_role("alert")).to_contain_text("begins at 0")
    page.get_by_label("Words").fill("is Lima")
    page.get_by_role("button", name="Move").click()
    expect(page.locator(".note.good")).to_contain_text("moved one fact")
    assert almanac.facts.show(fact_id).value == "is Lima"
    page.get_by_role("button", name="Undo").click()
    expect(page.get_by_role("heading", name="Lima", exact=True)).to_be_visible()
    assert almanac.facts.show(fact_id).value == "Lima"


def test_many_are_shown_then_edited_then_undone(open_page: OpenPage, almanac: KnowledgeBase) -> None:
    ids = [fact.fact_id for fact in almanac.facts.find()]
    page = open_page("operator", "/console/facts/edit")
    page.get_by_label("Rows").fill(
        f"fact_id,value,question\n{ids[0]},Cusco,\n{ids[1]},,Which lake?\n998,x,\n"
    )
    page.get_by_role("button", name="Show what would change").click()
    expect(page.get_by_role("alert")).to_contain_text("Line 4: there is no fact 998")
    page.get_by_label("Rows").fill(f"fact_id,value,question\n{ids[0]},Cusco,\n{ids[1]},,Which lake?\n")
    page.get_by_role("button", name="Show what would change").click()
    expect(page.get_by_role("region", name="What would change").locator("tbody tr")).to_have_count(2)
    assert almanac.facts.show(ids[0]).value == "Lima"
    page.get_by_label("Reason").fill("a review")
    page.get_by_role("button", name="Edit them").click()
    expect(page.get_by_role("alert")).to_contain_text("answers this already")
    page.get_by_label("Do it anyway").check()
    page.get_by_role("button", name="Edit them").click()
    expect(page.locator(".note.good")).to_contain_text("corrected two facts")
    assert [almanac.facts.show(ids[0]).value, almanac.facts.show(ids[1]).question] == ["Cusco", "Which lake?"]
    page.get_by_role("button", name="Undo").click()
    expect(page.locator(".note.good")).to_contain_text("corrected two facts")
    assert almanac.facts.show(ids[0]).value == "Lima"
