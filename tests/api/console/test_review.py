"""The inbox in a browser: fourteen facts reviewed by keyboard alone, spans fixed, many settled at once."""

from __future__ import annotations

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from colmlm.kb.corpus.format import AnnotatedDocument, FactSpan, Parsed
from colmlm.kb.facts.records import ReviewVerdict
from colmlm.kb.service import KnowledgeBase
from tests.api.console.conftest import OpenPage
from tests.fakes import FakeEncoder

pytestmark = pytest.mark.browser

FACTS = 14  # more than are counted in words


@pytest.fixture
def proposed(almanac: KnowledgeBase, encoder: FakeEncoder) -> list[int]:
    """Facts that a machine marked in one document, one in each sentence."""
    text, spans = "", []
    for number in range(FACTS):
        text += f"The tower number {number} was built in "
        spans.append(
            FactSpan(len(text), len(text) + 4, str(1500 + number), f"When was tower {number} built?")
        )
        text += f"{1500 + number} by masons. "
    document = AnnotatedDocument("towers", text, tuple(spans), title="Towers")
    almanac.corpora.ingest([Parsed(document)], "raw", generated=True, actor="annotator", reason="added")
    almanac.keysets.rekey(encoder)
    return [item.fact.fact_id for item in almanac.review.inbox(corpus="raw").items]


def settled(page: Page, left: int) -> None:
    """Waits until so many facts are left and the page takes keys again."""
    words = {0: "No facts", 1: "One fact"}.get(left)
    expect(page.locator(".counted")).to_contain_text(
        words or f"{left} " if left > 12 or words else "facts to review"
    )
    expect(page.locator("[data-item]")).to_have_count(left)
    expect(page.locator("#found[aria-busy]")).to_have_count(0)


def test_facts_are_reviewed_by_keyboard_alone(
    open_page: OpenPage, almanac: KnowledgeBase, proposed: list[int]
) -> None:
    page = open_page("operator", "/console/review?corpus=raw")
    settled(page, FACTS)
    page.keyboard.press("j")
    expect(page.locator(f"#item-{proposed[0]}")).to_be_focused()
    for number in range(FACTS):
        page.keyboard.press("r" if number % 5 == 4 else "a")
        settled(page, FACTS - number - 1)
        if number + 1 < FACTS:
            expect(page.locator(f"#item-{proposed[number + 1]}")).to_be_focused()
    facts = almanac.facts.show_many(proposed)
    assert [fact.review for fact in facts] == ["rejected" if n % 5 == 4 else "accepted" for n in range(FACTS)]
    expect(page.get_by_text("12 accepted, 2 rejected")).to_be_visible()
    assert almanac.review.progress(corpus="raw").proposed == 0 and almanac.upkeep.fsck().chain_ok


def test_a_span_is_fixed_by_keyboard_and_the_fact_is_accepted(
    open_page: OpenPage, almanac: KnowledgeBase, proposed: list[int]
) -> None:
    page = open_page("operator", "/console/review?corpus=raw")
    for key in ("j", "j", "f"):
        page.keyboard.press(key)
    item = page.locator(f"#item-{proposed[1]}")
    expect(item.get_by_role("button", name="Begin earlier")).to_be_focused()
    page.keyboard.press("Enter")
    for _ in range(3):
        page.keyboard.press("Tab")
    expect(item.get_by_role("button", name="End later")).to_be_focused()
    page.keyboard.press("Enter")
    expect(item.get_by_label("Words")).to_have_value("in 1501 by")
    expect(item.locator("mark")).to_have_text("in 1501 by")
    item.get_by_label("Question").focus()
    page.keyboard.press("Control+Enter")
    settled(page, FACTS - 1)
    expect(page.locator(f"#item-{proposed[2]}")).to_be_focused()
    fact = almanac.facts.show(proposed[1])
    assert (fact.value, fact.review, fact.version) == ("in 1501 by", "accepted", 2)


SELECT = """([id, word]) => {
  const text = document.querySelector(`#item-${id} .passage`);
  const found = document.evaluate(`.//text()[contains(., "${word}")]`, text, null, 9).singleNodeValue;
  const range = document.createRange(), at = found.data.indexOf(word);
  range.setStart(found, at); range.setEnd(found, at + word.length);
  getSelection().removeAllRanges(); getSelection().addRange(range);
}"""


def test_a_fix_that_contradicts_keeps_what_was_sent_and_is_done_anyway(
    open_page: OpenPage, almanac: KnowledgeBase, proposed: list[int]
) -> None:
    page = open_page("operator", "/console/review?corpus=raw")
    page.evaluate(SELECT, [proposed[3], "by masons"])
    item = page.locator(f"#item-{proposed[3]}")
    item.get_by_label("Question").fill("When was tower 2 built?")
    item.get_by_label("Reason").fill("asked otherwise")
    item.get_by_role("button", name="Save and accept").click()
    expect(item.get_by_role("alert")).to_be_focused()
    expect(item.get_by_role("alert")).to_contain_text("Answered already")
    expect(item.get_by_role("link", name=f"fact {proposed[2]}")).to_be_visible()
    for name, said in (("Words", "by masons"), ("Question", "When was tower 2 built?"), ("Reason", "asked")):
        assert said in item.get_by_label(name).input_value()
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
    assert almanac.facts.show(proposed[3]).review == "proposed"
    item.get_by_label("Do it anyway").check()
    item.get_by_role("button", name="Save and accept").click()
    settled(page, FACTS - 1)
    fact = almanac.facts.show(proposed[3])
    assert (fact.value, fact.question, fact.review, fact.version) == (
        "by masons", "When was tower 2 built?", "accepted", 2
    )  # fmt: skip
    assert fact.source is not None
    assert almanac.documents.text(fact.source.document_id)[fact.source.start : fact.source.end] == "by masons"
    assert almanac.keysets.show(almanac.keysets.active().keyset_id).num_unkeyed == 0
    page.get_by_role("button", name="Undo").click()
    expect(page.locator(".note.good")).to_contain_text("moved one fact")
    fact = almanac.facts.show(proposed[3])
    assert (fact.value, fact.question, fact.review) == ("1503", "When was tower 3 built?", "proposed")


def test_many_are_chosen_by_key_and_settled_in_one_change(
    open_page: OpenPage, almanac: KnowledgeBase, proposed: list[int]
) -> None:
    page = open_page("operator", "/console/review?corpus=raw")
    for key in ("j", "x", "j", "x", "j", "x", "r"):
        page.keyboard.press(key)
    settled(page, FACTS - 3)
    expect(page.locator(".note.good")).to_contain_text("rejected three facts")
    assert {fact.review for fact in almanac.facts.show_many(proposed[:3])} == {"rejected"}
    page.get_by_role("button", name="Undo").click()
    expect(page.locator(".note.good")).to_contain_text("brought back three facts")
    assert {fact.review for fact in almanac.facts.show_many(proposed[:3])} == {"proposed"}


def test_what_another_settled_meanwhile_is_told_and_left(
    open_page: OpenPage, almanac: KnowledgeBase, proposed: list[int]
) -> None:
    page = open_page("operator", "/console/review?corpus=raw")
    settled(page, FACTS)
    almanac.review.settle([ReviewVerdict(proposed[0], "accept", 1)], actor="bob", reason="was faster")
    page.keyboard.press("j")
    page.keyboard.press("r")
    settled(page, FACTS - 1)
    expect(page.locator("#found .note")).to_contain_text(
        f"Fact {proposed[0]} was left as it is: somebody has accepted it"
    )
    assert almanac.facts.show(proposed[0]).review == "accepted"
    almanac.facts.edit(proposed[1], "1601", actor="bob", reason="was faster")
    page.keyboard.press("f")
    page.locator(f"#item-{proposed[1]}").get_by_label("Question").fill("When?")
    page.locator(f"#item-{proposed[1]}").get_by_role("button", name="Save and accept").click()
    expect(page.get_by_role("alert")).to_contain_text("changed meanwhile")
    assert almanac.facts.show(proposed[1]).value == "1601"


def test_the_status_counts_what_is_to_review(open_page: OpenPage, proposed: list[int]) -> None:
    page = open_page("reader", "/console/status")
    page.get_by_role("link", name=f"{FACTS} facts to review").click()
    expect(page.get_by_role("heading", name="Review", exact=True)).to_be_visible()


def test_everything_works_without_the_script(
    open_page: OpenPage, almanac: KnowledgeBase, proposed: list[int]
) -> None:
    page = open_page("operator", "/console/review?corpus=raw", java_script_enabled=False)
    item = page.locator(f"#item-{proposed[0]}")
    item.get_by_role("button", name="Accept").click()
    expect(page.locator(".note.good")).to_contain_text("accepted one fact")
    item = page.locator(f"#item-{proposed[1]}")
    item.get_by_text("Fix…").click()
    item.get_by_label("From").fill("")
    item.get_by_label("To", exact=True).fill("")
    item.get_by_label("Words").fill("in 1501")
    item.get_by_role("button", name="Save and accept").click()
    expect(page.locator(".note.good")).to_contain_text("moved one fact")
    assert [fact.review for fact in almanac.facts.show_many(proposed[:2])] == ["accepted", "accepted"]


def test_the_inbox_is_accessible_and_fits_a_phone(open_page: OpenPage, proposed: list[int]) -> None:
    page = open_page("operator", "/console/review?corpus=raw")
    page.keyboard.press("j")
    page.keyboard.press("f")
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        found = Axe().run(page)
        assert found.violations_count == 0, (scheme, found.generate_report())
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    for name in ("Accept", "Reject"):
        box = page.locator(f"#item-{proposed[0]}").get_by_role("button", name=f"{name} fact").bounding_box()
        assert box is not None and box["x"] >= 0 and box["x"] + box["width"] <= 390


def test_a_reader_sees_the_inbox_without_buttons_and_a_fact_shows_its_review(
    open_page: OpenPage, almanac: KnowledgeBase, proposed: list[int]
) -> None:
    page = open_page("reader", "/console/review?corpus=raw")
    expect(page.locator("[data-item]")).to_have_count(FACTS)
    expect(page.get_by_role("button", name="Accept")).to_have_count(0)
    page = open_page("operator", f"/console/facts/{proposed[0]}")
    expect(page.locator(".badge", has_text="unreviewed")).to_be_visible()
    page.get_by_role("button", name="Accept").click()
    expect(page.locator(".note.good")).to_contain_text("accepted one fact")
    assert almanac.facts.show(proposed[0]).review == "accepted"


def test_a_document_is_reviewed_as_a_whole_with_its_marks_in_the_text(
    open_page: OpenPage, almanac: KnowledgeBase, proposed: list[int]
) -> None:
    source = almanac.facts.show(proposed[0]).source
    assert source is not None
    page = open_page("operator", f"/console/documents/{source.document_id}")
    expect(page.locator(".text .span.proposed")).to_have_count(FACTS)
    assert Axe().run(page).violations_count == 0
    for fact_id in proposed[:2]:
        page.get_by_label(f"Choose fact {fact_id}").uncheck()
    page.get_by_role("button", name="Reject chosen").click()
    expect(page.locator(".note.good")).to_contain_text("rejected twelve facts")
    expect(page.locator(".text .span.proposed")).to_have_count(2)
    page.get_by_role("button", name="Accept chosen").click()
    expect(page.locator(".text .span.proposed")).to_have_count(0)
    expect(page.get_by_role("button", name="Accept chosen")).to_have_count(0)
    reviews = [fact.review for fact in almanac.facts.show_many(proposed)]
    assert reviews == ["accepted"] * 2 + ["rejected"] * (FACTS - 2)
    page = open_page("reader", f"/console/documents/{source.document_id}")
    expect(page.get_by_role("button", name="Accept chosen")).to_have_count(0)
