"""Facts found, corrected, deleted and brought back, each with a way to undo it."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from colmlm.kb.corpus.format import AnnotatedDocument, FactSpan, Parsed
from colmlm.kb.service import KnowledgeBase
from colmlm.lab.bench.synthetic import make_release, synthetic_keys
from tests.api.console.conftest import OpenPage

pytestmark = pytest.mark.browser


def note(page: Page) -> str:
    return page.locator(".note.good").inner_text()


def test_correction_is_undone_from_its_note(
    open_page: OpenPage, almanac: KnowledgeBase, fact_id: int
) -> None:
    page = open_page("operator", "/console/facts")
    page.get_by_label("Search for").fill("Lima")
    expect(page.locator("#found tbody tr")).to_have_count(2)
    page.get_by_role("link", name=str(fact_id), exact=True).click()
    page.get_by_label("New value").fill("Cusco")
    page.get_by_role("button", name="Correct").click()
    expect(page.locator("#reason-mistake")).to_contain_text("may not be empty")
    expect(page.get_by_label("New value")).to_have_value("Cusco")
    assert almanac.facts.show(fact_id).value == "Lima"

    page.get_by_label("Reason").fill("it moved")
    page.get_by_role("button", name="Correct").click()
    expect(page.get_by_role("alert")).to_contain_text("answers this already")
    page.get_by_label("Do it anyway").check()
    page.get_by_role("button", name="Correct").click()
    expect(page.locator(".note.good")).to_contain_text("corrected one fact")
    expect(page.locator(".note.good")).to_be_focused()
    assert almanac.facts.show(fact_id).value == "Cusco"
    expect(page.get_by_text("The document says “Lima”")).to_be_visible()
    page.get_by_role("button", name="Undo").click()
    expect(page.get_by_role("heading", name="Lima")).to_be_visible()
    assert almanac.facts.show(fact_id).value == "Lima"
    assert [change.actor for change in almanac.log.changes(limit=100)][-2:] == ["the operator"] * 2


def test_deleting_asks_with_the_count_and_is_undone(open_page: OpenPage, almanac: KnowledgeBase) -> None:
    page = open_page("operator", "/console/facts?text=Lima")
    expect(page.get_by_role("button", name="Erase those chosen…")).to_have_count(0)
    for place in ("Tokens", "Erasures", "Backups"):  # which are an admin's
        expect(page.get_by_role("link", name=place, exact=True)).to_have_count(0)
    for box in page.get_by_role("checkbox").all():
        box.check()
    page.get_by_role("button", name="Delete those chosen…").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Delete two facts?")
    page.get_by_label("Reason").fill("disputed")
    page.get_by_role("button", name="Delete two facts").click()
    expect(page.locator(".note.good")).to_contain_text("deleted two facts")
    assert almanac.facts.find(text="Lima") == []
    page.get_by_role("button", name="Undo").click()
    expect(page.locator(".note.good")).to_contain_text("brought back two facts")
    assert len(almanac.facts.find(text="Lima")) == 2


def test_added_fact_is_found_and_a_second_delete_is_refused_in_place(
    open_page: OpenPage, almanac: KnowledgeBase
) -> None:
    page = open_page("operator", "/console/facts/new")
    page.get_by_label("Question").fill("Who wrote Emma?")
    page.get_by_label("Value").fill("Jane Austen")
    page.get_by_label("Reason").fill("asked for")
    page.get_by_role("button", name="Add").click()
    expect(page.locator(".note.good")).to_contain_text("added one fact")
    (fact,) = almanac.facts.find(text="Emma")
    assert almanac.keysets.show(almanac.keysets.active().keyset_id).num_unkeyed == 0
    page.get_by_role("link", name="Delete…").click()
    almanac.facts.delete([fact.fact_id], actor="somebody", reason="was quicker")
    page.get_by_label("Reason").fill("too late")
    page.get_by_role("button", name="Delete one fact").click()
    expect(page.get_by_role("alert")).to_contain_text("These facts are deleted")
    expect(page.get_by_label("Reason")).to_have_value("too late")


def test_pages_of_facts_end_where_the_facts_do(open_page: OpenPage, almanac: KnowledgeBase) -> None:
    for n in range(60):
        almanac.facts.add(f"What is number {n}?", f"value {n}", actor="tester", reason="many")
    page = open_page("reader", "/console/facts")
    expect(page.locator("#found tbody tr")).to_have_count(50)
    page.get_by_role("link", name="Next page").click()
    expect(page.locator("#found tbody tr")).to_have_count(13)
    expect(page.get_by_role("link", name="Next page")).to_have_count(0)
    page.get_by_role("link", name="First page").click()
    expect(page.locator("#found tbody tr")).to_have_count(50)
    page.get_by_label("Corpus").select_option("almanac")
    expect(page.locator("#found tbody tr")).to_have_count(1)
    page.get_by_label("Search for").fill("nothing like it")
    expect(page.get_by_text("No fact fits")).to_be_visible()


def test_a_title_finds_facts_whose_words_are_marked_and_all_found_are_deleted_by_their_count(
    open_page: OpenPage, almanac: KnowledgeBase
) -> None:
    for n in range(60):
        almanac.facts.add(f"What is lagoon {n}?", f"value {n}", actor="tester", reason="many")
    page = open_page("operator", "/console/facts")
    page.get_by_label("Search for").fill("Peru")
    expect(page.locator("#found tbody tr")).to_have_count(3)
    expect(page.locator("#found mark").first).to_have_text("Peru")
    page.get_by_label("Search for").fill("lagoons")
    expect(page.locator(".counted")).to_contain_text("60 facts found")
    page.get_by_role("link", name="Delete all 60 facts found…").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Delete 60 facts?")
    page.get_by_label("Reason").fill("not ours")
    page.get_by_role("button", name="Delete 60 facts").click()
    expect(page.locator(".note.good")).to_contain_text("deleted 60 facts")
    assert almanac.facts.search(text="lagoon").total == 0


def test_what_is_found_is_downloaded_with_the_filters_and_no_formula(
    open_page: OpenPage, almanac: KnowledgeBase
) -> None:
    almanac.facts.add("What is =1+1?", "=1+1", actor="tester", reason="test")
    page = open_page("reader", "/console/facts?text=Lima&way=exactly")
    with page.expect_download() as loading:
        page.get_by_role("link", name="Download as CSV").click()
    rows = loading.value.path().read_text().splitlines()
    assert len(rows) == 3 and rows[0].startswith("fact_id,state,value") and ",Lima," in rows[1]
    page.goto("/console/facts?text=1")
    with page.expect_download() as loading:
        page.get_by_role("link", name="Download as CSV").click()
    assert ",'=1+1,What is =1+1?," in loading.value.path().read_text()


def test_facts_are_found_by_meaning_and_by_who_edited_them(
    open_page: OpenPage, almanac: KnowledgeBase, fact_id: int
) -> None:
    almanac.facts.edit(fact_id, "Cusco", anyway=True, actor="ann", reason="test")
    page = open_page("auditor", "/console/facts")
    page.get_by_label("By", exact=True).select_option("meaning")
    page.get_by_label("Search for").fill("What is the capital of Peru?")
    expect(page.locator("#found tbody tr").first).to_contain_text("What is the capital of Peru?")
    page.goto("/console/facts?actor=ann")
    expect(page.locator("#found tbody tr")).to_have_count(1)
    expect(page.locator(".counted")).to_contain_text("One fact found")


def test_a_document_shows_all_its_facts_in_the_text(open_page: OpenPage, almanac: KnowledgeBase) -> None:
    lines = [f"Line {n} says value{n} and no more.\n" for n in range(1200)]
    text, spans, at = "".join(lines), [], 0
    for n, line in enumerate(lines):
        start = at + line.index(f"value{n}")
        spans.append(FactSpan(start, start + len(f"value{n}"), f"value{n}"))
        at += len(line)
    document = AnnotatedDocument("long", text, tuple(spans))
    almanac.corpora.ingest([Parsed(document)], "long", actor="tester", reason="test")
    (fact,) = almanac.facts.find(text="value1199")
    assert fact.source is not None
    page = open_page("reader", f"/console/documents/{fact.source.document_id}?fact={fact.fact_id}")
    expect(page.locator("a.span")).to_have_count(1200)
    assert "".join(page.locator("p.text").all_text_contents()).strip() == text.strip()


def test_a_fact_of_a_release_is_shown_with_what_is_known_of_its_place(
    open_page: OpenPage, kb: KnowledgeBase, tmp_path: Path
) -> None:
    make_release(tmp_path, synthetic_keys(20, 8, seed=0), spec="Flat")
    kb.releases.take(tmp_path, "wiki", actor="tester", reason="test")
    fact = kb.facts.find(corpus="wiki", limit=1)[0]
    place = "sample s0000000, fact 0 wiki, of a release: no text, no offsets"
    page = open_page("reader", "/console/facts?corpus=wiki")
    expect(page.locator("#found tbody tr").first).to_contain_text(place)
    page.goto(page.url.partition("/console")[0] + f"/console/facts/{fact.fact_id}")
    expect(page.locator("dl").first).to_contain_text(place)
