"""From a prompt to the words of the document behind each spliced word."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from colmlm.kb.answers.answering import Answering
from colmlm.kb.evidence.attribution import StoredAnswers
from colmlm.kb.service import KnowledgeBase
from tests.api.conftest import CAPITAL, LAKE
from tests.api.console.conftest import OpenPage, ask, show_advanced
from tests.api.generator import BEFORE
from tests.fakes import SayingReader
from tests.kb.counting import counting

pytestmark = pytest.mark.browser

HOSTILE = '<img src=x onerror="document.title=1">'


def test_spliced_span_leads_to_its_document(
    open_page: OpenPage, almanac: KnowledgeBase, fact_id: int
) -> None:
    page = open_page("operator")
    ask(page, CAPITAL)
    expect(page).to_have_url(re.compile(r"/console/ask\?output=1$"))
    expect(page.locator("#spans")).to_contain_text(f"{BEFORE}Lima")
    evidence = page.get_by_role("complementary", name="Lima")
    expect(evidence.locator(".passage mark")).to_have_text("Lima")
    expect(evidence).to_contain_text("CC-BY-4.0")
    expect(evidence.locator(".nearest")).to_contain_text("Titicaca")
    expect(evidence.get_by_text("1.000", exact=True).first).to_be_visible()
    span = page.locator("a.splice")
    span.focus()
    page.keyboard.press("Enter")
    expect(page.locator("#evidence")).to_be_focused()

    evidence.get_by_role("link", name="Peru").click()
    expect(page.locator("a.span.chosen")).to_have_text("Lima")
    expect(page.locator("a.span")).to_have_count(2)


def test_the_page_and_health_count_no_keys(open_page: OpenPage, almanac: KnowledgeBase, fact_id: int) -> None:
    almanac.lookups.catch_up()  # opening the index counts its keys
    page = open_page("operator")
    with counting(almanac.engine) as counts:
        ask(page, CAPITAL)
        expect(page.locator("#spans")).to_contain_text("Lima")
        for path in ("/console/status", "/console/forget"):
            page.goto(path)
            expect(page.locator("h1")).to_be_visible()
        assert counts.heard == []
        page.goto("/console/keysets")
        assert counts.heard


def test_output_tells_what_became_of_its_facts(
    open_page: OpenPage, almanac: KnowledgeBase, fact_id: int
) -> None:
    page = open_page("operator")
    ask(page, LAKE)
    (lake,) = almanac.facts.find(text="Titicaca")
    almanac.facts.edit(lake.fact_id, "Lake Titicaca", actor=HOSTILE, reason=HOSTILE)
    page.reload()
    expect(page.locator("a.splice")).to_have_class("splice corrected")
    expect(page.locator("#evidence")).to_contain_text("Lake Titicaca")
    expect(page.locator("#evidence .history")).to_contain_text(HOSTILE)
    almanac.facts.delete([lake.fact_id], actor="tester", reason="dried up", abstain=True)
    page.reload()
    expect(page.locator("a.splice")).to_have_class("splice deleted")
    expect(page.locator("#evidence")).to_contain_text("dried up")
    assert page.locator("img[src=x]").count() == 0 and page.title() == "Ask · colmlm"


def test_a_question_that_nothing_answers_is_shown_as_that(
    open_page: OpenPage, almanac: KnowledgeBase
) -> None:
    page = open_page("reader")
    ask(page, "Question: Who was never written about? Answer:")
    output = page.get_by_role("region", name="Output 1")
    expect(output).to_contain_text("Nothing that was looked up answers this")
    expect(output).not_to_contain_text("I do not know")
    expect(page.get_by_role("complementary", name="No match")).to_contain_text("none was near enough")
    expect(page.locator("li .badge.abstained")).to_have_count(1)


def test_words_that_no_fact_stands_behind_are_marked_in_every_list(
    open_page: OpenPage, almanac: KnowledgeBase
) -> None:
    page = open_page("operator")
    ask(page, CAPITAL)
    expect(page.locator("#spans .uncited").first).to_have_text(BEFORE.strip())
    page.get_by_label("Where nothing is found").select_option("continue")
    ask(page, "Question: Who was never written about? Answer:")
    expect(page.get_by_role("region", name="Output 2")).to_contain_text("No fact stands behind any")
    expect(page.locator("a.splice")).to_have_text("no match")
    expect(page.locator("li .badge.uncited")).to_have_count(1)
    page.goto("/console/audit/outputs")
    expect(page.locator("td .badge.uncited")).to_have_count(1)


def test_what_facts_are_found_by_is_chosen_and_shown(open_page: OpenPage, almanac: KnowledgeBase) -> None:
    page = open_page("operator")
    show_advanced(page)
    page.get_by_label("Find facts by").select_option("reader")
    ask(page, CAPITAL)
    expect(page.get_by_role("region", name="Output 1")).to_contain_text("ranked by reader")
    expect(page.get_by_role("region", name="Output 1")).not_to_contain_text("accepted facts only")
    expect(page.locator("#evidence")).to_contain_text("nearness by key did not decide")
    page.get_by_label("Find facts by").select_option("reader")
    page.get_by_label("Look up accepted facts only").check()
    ask(page, CAPITAL)
    expect(page.get_by_role("region", name="Output 2")).to_contain_text("accepted facts only")
    expect(page.locator("#evidence")).to_contain_text("nearness by key did not decide")
    page.goto("/console/audit/outputs")
    expect(page.get_by_role("cell", name="reader", exact=True)).to_have_count(2)


def test_a_question_is_answered_with_the_document_that_says_it(
    open_page: OpenPage, atlas: KnowledgeBase, fact_id: int
) -> None:
    page = open_page("reader", java_script_enabled=False)
    page.get_by_label("Question").fill(CAPITAL)
    page.get_by_role("button", name="Answer", exact=True).click()
    answer = page.get_by_role("region", name="Lima")
    expect(answer.locator("blockquote")).to_contain_text("The capital of Peru is Lima.")
    expect(answer.locator("blockquote mark")).to_have_text("Lima")
    expect(answer.get_by_role("link", name="Peru").first).to_have_attribute(
        "href", re.compile(rf"/console/documents/\d+\?fact={fact_id}#")
    )
    page.wait_for_load_state(
        "load"
    )  # places are those of the styled page, whose style sheet may still be coming
    for passage in answer.get_by_role("listitem").all():
        said, where = (passage.locator("p").nth(n).bounding_box() for n in (0, 1))
        assert said and where and where["x"] == said["x"] and where["y"] >= said["y"] + said["height"]
    answer.get_by_role("link", name="output 1").click()
    output = page.get_by_role("region", name="Output 1")
    expect(output).to_contain_text("mode read")
    expect(output).to_contain_text("the words of Peru")
    expect(page.locator("a.splice")).to_contain_text("Lima")
    expect(page.locator("#spans .uncited")).to_have_count(0)
    page.goto("/console/ask?output=1")
    expect(page.get_by_label("Question")).to_have_value(CAPITAL)
    expect(page.get_by_label("Prompt")).to_have_value("")
    atlas.facts.delete([fact_id], actor="tester", reason="disputed")
    page.get_by_role("button", name="Answer", exact=True).click()
    nothing = page.get_by_role("region", name="The knowledge base has no sure answer to this")
    expect(nothing).to_contain_text("was deleted")
    expect(nothing).not_to_contain_text("Lima")
    nothing.get_by_role("link", name="output 2").click()
    expect(page.get_by_role("complementary", name="Abstained")).to_contain_text("was deleted")


def test_quoted_words_are_marked_as_the_documents(open_page: OpenPage, atlas: KnowledgeBase) -> None:
    saying = Answering(atlas, None, SayingReader("capital of Peru is Lima. Its great lake is Titi"))
    stored = StoredAnswers(atlas, saying).answer(CAPITAL).generation_id
    page = open_page("reader", f"/console/audit/outputs/{stored}?splice=1")
    expect(page.locator("#spans .quoted")).to_have_text(["capital of Peru is", ". Its great lake is"])
    expect(page.locator("#spans .uncited")).to_have_count(0)
    expect(page.locator("#evidence")).to_contain_text("characters 0 to 4 of its value")
    page.goto("/console/audit/outputs")
    expect(page.locator("td .badge")).to_have_count(0)
    expect(page.get_by_role("row", name=CAPITAL)).to_contain_text("read")


def test_asking_needs_no_script(open_page: OpenPage, almanac: KnowledgeBase) -> None:
    page = open_page("reader", java_script_enabled=False)
    show_advanced(page)
    page.get_by_role("button", name="Ask", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("not complete")
    expect(page.locator("#prompt-mistake")).to_contain_text("may not be empty")
    page.get_by_label("Threshold").fill("0.5")
    ask(page, CAPITAL)
    page.locator("a.splice").click()
    expect(page.locator("#evidence .passage mark")).to_have_text("Lima")
    expect(page.get_by_role("link", name=CAPITAL)).to_have_count(1)
