"""Misses in the console: one is turned into a fact that then answers, a wrong answer is mended from its output."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from colmlm.kb.answers.answering import Answering
from colmlm.kb.evidence.attribution import StoredAnswers
from colmlm.kb.evidence.records import NewFeedback, NewOutput, Splice
from colmlm.kb.service import KnowledgeBase
from tests.api.conftest import CAPITAL
from tests.api.console.conftest import OpenPage
from tests.fakes import NearReader

pytestmark = pytest.mark.browser

EMMA = "Who wrote Emma?"


def answered(kb: KnowledgeBase, question: str) -> int:
    stored = StoredAnswers(kb, Answering(kb, None, NearReader())).answer(question).generation_id
    assert stored is not None
    return stored


def put_question(page: Page, question: str) -> None:
    page.goto("/console/ask")
    page.get_by_label("Question").fill(question)
    page.get_by_role("button", name="Answer", exact=True).click()


def test_a_miss_is_turned_into_a_fact_that_answers(open_page: OpenPage, almanac: KnowledgeBase) -> None:
    page = open_page("operator")
    put_question(page, EMMA)
    expect(page.get_by_role("heading", name="The knowledge base has no sure answer to this")).to_be_visible()
    page.get_by_role("link", name="Misses").click()
    expect(page.locator(".misses li")).to_have_count(1)
    page.get_by_role("link", name=EMMA).click()
    expect(page.get_by_role("region", name="Asked again now")).to_be_visible()
    page.get_by_role("link", name="Add the fact…").click()
    expect(page.get_by_label("Question")).to_have_value(EMMA)
    page.get_by_label("Value").fill("Jane Austen")
    page.get_by_label("Reason").fill("was missing")
    page.get_by_role("button", name="Add", exact=True).click()
    expect(page.locator(".note.good")).to_contain_text("Solved: its questions were asked again")
    assert [one.state for one in almanac.misses.find(state="solved").groups] == ["solved"]
    put_question(page, EMMA)
    expect(page.get_by_role("heading", name="Jane Austen")).to_be_visible()
    page.goto("/console/misses")
    expect(page.locator(".empty-title")).to_have_text("Nothing is open")


def test_a_fact_is_marked_in_a_document_near_the_question(
    open_page: OpenPage, almanac: KnowledgeBase
) -> None:
    missed = Splice(0, 0, "no_match", score=0.1)
    almanac.outputs.record(NewOutput("Which country is Peru?", "", "", "read", 1, (missed,)))
    page = open_page("operator", "/console/misses")
    page.locator(".misses a").click()
    page.get_by_role("link", name="Mark the answer in its document…").first.click()
    page.get_by_label("Words").fill("Peru is a country")
    expect(page.get_by_label("Question (optional)")).to_have_value("Which country is Peru?")
    page.get_by_label("Reason").fill("was not marked")
    page.get_by_role("button", name="Mark", exact=True).click()
    expect(page).to_have_url(re.compile(r"/console/misses/1\?fact="))
    expect(page.locator(".note")).to_contain_text("added one fact")


def test_a_fact_that_a_question_does_not_find_leaves_the_group_open(
    open_page: OpenPage, almanac: KnowledgeBase, fact_id: int
) -> None:
    answered(almanac, EMMA)
    page = open_page("operator", "/console/misses")
    page.get_by_role("link", name=EMMA).click()
    page.get_by_role("button", name="Solved by this fact").click()
    expect(page.get_by_role("alert")).to_be_visible()
    page.get_by_label("Fact", exact=True).fill(str(fact_id))
    page.get_by_label("Reason").fill("a try")
    page.get_by_role("button", name="Solved by this fact").click()
    expect(page.locator(".note")).to_contain_text("Not solved yet")
    expect(page.get_by_text("does not find it", exact=True)).to_be_visible()
    page.get_by_label("Fact", exact=True).fill(str(fact_id))
    page.get_by_label("Reason").fill("it is")
    page.get_by_label("Solve it also where").check()
    page.get_by_role("button", name="Solved by this fact").click()
    expect(page.locator(".note.good")).to_be_visible()


def test_what_is_not_ours_is_dismissed_and_opened_again_by_keyboard(
    open_page: OpenPage, almanac: KnowledgeBase
) -> None:
    answered(almanac, EMMA)
    page = open_page("operator", "/console/misses")
    page.get_by_label("Choose group 1").focus()
    page.keyboard.press("Space")
    page.get_by_role("button", name="Not ours…").focus()
    page.keyboard.press("Enter")
    page.get_by_label("Reason").focus()
    page.keyboard.type("a novel")
    page.keyboard.press("Enter")
    expect(page.locator(".note.good")).to_contain_text("dismissed misses")
    assert almanac.misses.find().total == 0
    page.get_by_label("State").select_option("dismissed")
    page.get_by_label("Choose group 1").check()
    page.get_by_role("button", name="Open again…").click()
    page.get_by_label("Reason").fill("ours after all")
    page.get_by_role("button", name="Open again").click()
    expect(page.locator(".misses li")).to_have_count(1)


def test_a_wrong_citation_is_mended_from_its_output(
    open_page: OpenPage, almanac: KnowledgeBase, fact_id: int
) -> None:
    page = open_page("operator")
    put_question(page, CAPITAL)
    page.get_by_role("link", name="Wrong…").click()
    page.get_by_label("What it should have said").fill("Cusco")
    page.get_by_label("Comment").fill("the seat moved")
    page.get_by_role("button", name="It is wrong").click()
    expect(page.locator(".note.good")).to_contain_text("Noted")
    behind = page.get_by_role("region", name=f"Fact {fact_id}: Lima")
    expect(behind).to_contain_text("Nothing yet.")
    behind.get_by_role("link", name="Correct its value").click()
    expect(page.get_by_label("New value")).to_have_value("Cusco")
    page.get_by_label("Reason").fill("said to be wrong")
    page.get_by_role("button", name="Correct").click()
    page.get_by_label("Do it anyway").check()  # the almanac says Lima still
    page.get_by_role("button", name="Correct").click()
    expect(page.locator(".note.good")).to_contain_text("corrected one fact")
    assert almanac.facts.show(fact_id).value == "Cusco"
    page.goto("/console/audit/outputs/1/wrong")
    expect(page.get_by_role("region", name=f"Fact {fact_id}: Lima")).to_contain_text("said to be wrong")
    expect(page.get_by_role("region", name=f"Fact {fact_id}: Lima")).to_contain_text("It says now: Cusco")
    page.goto(f"/console/facts/{fact_id}?change={almanac.log.head_seq()}")
    page.get_by_role("button", name="Undo").click()
    expect(page.get_by_role("heading", name="Lima", exact=True)).to_be_visible()
    page.goto("/console/misses")
    expect(page.locator(".misses")).to_contain_text("called wrong")


def test_a_thumb_up_is_kept_and_outputs_are_filtered_by_thumbs(
    open_page: OpenPage, almanac: KnowledgeBase
) -> None:
    first, second = (answered(almanac, CAPITAL) for _ in range(2))
    almanac.outputs.give_feedback(second, NewFeedback("down", "no"), actor="ann")
    page = open_page("operator", f"/console/audit/outputs/{first}")
    page.get_by_role("button", name="Right").click()
    expect(page.locator(".thumbs")).to_contain_text("Right, says the operator")
    page.goto("/console/audit/outputs")
    page.get_by_role("link", name="Only those that somebody called wrong").click()
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.locator("tbody")).to_contain_text("1 wrong")


def test_where_no_fact_is_cited_it_leads_to_adding_one(open_page: OpenPage, almanac: KnowledgeBase) -> None:
    output = answered(almanac, EMMA)
    page = open_page("operator", f"/console/audit/outputs/{output}/wrong")
    page.get_by_label("What it should have said").fill("Jane Austen")
    page.get_by_role("button", name="It is wrong").click()
    page.get_by_role("link", name="Add the fact…").click()
    expect(page.get_by_label("Question")).to_have_value(EMMA)
    expect(page.get_by_label("Value")).to_have_value("Jane Austen")


def test_the_status_counts_what_is_open(open_page: OpenPage, almanac: KnowledgeBase) -> None:
    answered(almanac, EMMA)
    almanac.misses.group()
    page = open_page("reader", "/console/status")
    page.get_by_role("link", name="one open group").click()
    expect(page.locator(".misses li")).to_have_count(1)
    assert page.get_by_label("Choose group 1").count() == 0, "a reader decides nothing"
