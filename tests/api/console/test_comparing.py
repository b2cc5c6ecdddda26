"""A contradiction found and resolved in the console: refused, done anyway, counted, and ended in each of three ways."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from colmlm.kb.service import KnowledgeBase
from tests.api.conftest import CAPITAL
from tests.api.console.conftest import OpenPage

pytestmark = pytest.mark.browser


def against(kb: KnowledgeBase) -> int:
    return kb.comparisons.counts().contradictions


def test_a_contradiction_is_found_and_resolved(
    open_page: OpenPage, almanac: KnowledgeBase, fact_id: int
) -> None:
    page = open_page("operator", "/console/facts/new")
    page.get_by_label("Question").fill(CAPITAL)
    page.get_by_label("Value", exact=True).fill("Cusco")
    page.get_by_label("Reason").fill("as an old map has it")
    page.get_by_role("button", name="Add").click()
    expect(page.get_by_role("alert")).to_contain_text('answer this already ("Lima")')
    expect(page.get_by_role("link", name=f"fact {fact_id}")).to_be_visible()
    assert against(almanac) == 0
    page.get_by_label("Do it anyway").check()
    page.get_by_role("button", name="Add").click()
    expect(page.locator(".note.good")).to_contain_text("added one fact")
    cusco = almanac.facts.find(text="Cusco")[0].fact_id
    assert against(almanac) == 2, "with the atlas and with the almanac"

    page.goto("/console/status")
    counts = page.get_by_role("region", name="Facts compared")
    expect(counts).to_contain_text("Contradictions")
    counts.get_by_role("link", name="2", exact=True).click()
    cards = page.get_by_role("region", name=CAPITAL)
    expect(cards).to_have_count(2)
    expect(cards.first).to_contain_text("this one answers")

    first = cards.first
    first.get_by_label("Why both are right").fill("each in its time")
    first.get_by_role("button", name="Both are right").click()
    expect(page.locator(".note.good")).to_contain_text("each in its time")
    page.get_by_role("button", name="Undo").click()
    expect(page.locator(".note.good")).to_contain_text("noted that both are right, or not")
    page.goto("/console/contradictions")
    expect(cards).to_have_count(2)
    first.get_by_label("Why both are right").fill("each in its time")
    first.get_by_role("button", name="Both are right").click()
    expect(page.locator(".note.good")).to_contain_text("each in its time")
    expect(page.get_by_role("region", name=CAPITAL)).to_have_count(1)
    page.get_by_label("Show").select_option("noted")
    page.get_by_role("button", name="Show").click()
    page.get_by_label("Why they contradict after all").fill("it never was")
    page.get_by_role("button", name="They contradict").click()
    expect(page.get_by_role("region", name=CAPITAL)).to_have_count(2)

    page.get_by_role("link", name=f"Edit {cusco}…").first.click()
    page.get_by_label("New value").fill("Lima")
    page.get_by_label("Reason").fill("the map is wrong")
    page.get_by_role("button", name="Correct").click()
    expect(page.locator(".note.good")).to_contain_text("corrected one fact")
    assert against(almanac) == 0 and almanac.comparisons.counts().duplicates == 3

    page.goto("/console/contradictions?list=duplicates")
    page.get_by_role("link", name=f"Delete {cusco}…").first.click()
    expect(page.get_by_text(f"say the same as {cusco}")).to_be_visible()
    page.get_by_label("Reason").fill("said twice")
    page.get_by_role("button", name="Delete one fact").click()
    expect(page.locator(".note.good")).to_contain_text("deleted one fact")
    assert almanac.comparisons.counts().duplicates == 1


def test_a_reader_sees_and_resolves_nothing(open_page: OpenPage, almanac: KnowledgeBase) -> None:
    almanac.facts.add(CAPITAL, "Cusco", anyway=True, actor="tester", reason="test")
    page = open_page("reader", "/console/contradictions")
    expect(page.get_by_role("region", name=CAPITAL)).to_have_count(2)
    expect(page.get_by_role("button", name="Both are right")).to_have_count(0)
    expect(page.get_by_role("link", name="Delete", exact=False)).to_have_count(0)
    page.goto("/console/contradictions?corpus=nowhere")
    expect(page.get_by_role("alert")).to_contain_text("No corpus")
    page.goto("/console/contradictions?list=stale")
    expect(page.get_by_text("No stale fact")).to_be_visible()
