"""Holds from the console: placed and released by an operator, shown beside what they keep."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from colmlm.kb.removal.holds import Holds, Retention
from colmlm.kb.service import KnowledgeBase
from tests.api.console.conftest import OpenPage

pytestmark = pytest.mark.browser


def test_an_operator_places_a_hold_and_releases_it(
    open_page: OpenPage, almanac: KnowledgeBase, fact_id: int
) -> None:
    source = almanac.facts.show(fact_id).source
    assert source is not None
    terms = {"days": 30, "action": "erase", "counts_from": "seen"}
    Retention(almanac).set_rule(source.corpus, **terms, actor="ann", reason="policy 7")
    page = open_page("operator", f"/console/facts/{fact_id}")
    kept = page.get_by_role("region", name="Kept")
    expect(kept).to_contain_text("then it is erased")
    kept.get_by_role("link", name="Place a hold…").click()
    expect(page.get_by_label("Facts")).to_have_value(str(fact_id))
    page.get_by_role("button", name="Place the hold").click()
    expect(page.locator("#reason-mistake")).to_contain_text("may not be empty")
    page.get_by_label("Reason", exact=True).fill("case 12")
    page.get_by_role("button", name="Place the hold").click()
    expect(page.get_by_role("region", name="Holds")).to_contain_text("case 12")
    for place in (f"facts/{fact_id}", f"documents/{source.document_id}"):
        page.goto(f"/console/{place}")
        expect(kept).to_contain_text("Held by hold 1: case 12")
        expect(kept).to_contain_text("once no hold keeps it")
    page.goto("/console/holds")
    page.get_by_label("Why hold 1 ends").fill("case closed")
    page.get_by_role("button", name="Release hold 1").click()
    expect(page.locator(".badge.released")).to_be_visible()
    assert Holds(almanac).all(standing=True) == []


def test_an_auditor_sees_holds_and_a_reader_does_not(
    open_page: OpenPage, almanac: KnowledgeBase, fact_id: int
) -> None:
    Holds(almanac).place(fact_ids=[fact_id], actor="ann", reason="case 12")
    page = open_page("auditor", "/console/holds")
    expect(page.get_by_role("region", name="Holds")).to_contain_text("case 12")
    expect(page.get_by_role("button", name="Release hold 1")).to_have_count(0)
    page = open_page("reader", f"/console/facts/{fact_id}")
    expect(page.get_by_text("case 12")).to_have_count(0)
