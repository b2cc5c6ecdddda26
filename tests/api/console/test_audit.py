"""The log and its chain, what outputs used, and what was answered before."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect
from sqlalchemy import text

from colmlm.kb.service import KnowledgeBase
from tests.api.conftest import CAPITAL
from tests.api.console.conftest import OpenPage, ask
from tests.kb.log.test_chain import put_in

pytestmark = pytest.mark.browser


def test_chain_is_checked_and_a_break_is_shown(open_page: OpenPage, almanac: KnowledgeBase) -> None:
    page = open_page("auditor", "/console/audit")
    page.get_by_role("link", name="Check the chain").click()
    expect(page.locator(".chain")).to_contain_text("intact")
    with almanac.engine.begin() as connection:
        connection.execute(text("ALTER TABLE change DISABLE TRIGGER USER"))
        connection.execute(text("UPDATE change SET reason = 'rewritten' WHERE seq = 2"))
    page.get_by_role("link", name="Check the chain").click()
    expect(page.locator(".chain")).to_contain_text("It breaks at change 2")
    bogus = put_in(almanac, payload='{"principal": {"kind": 3}, "on_behalf_of": 7}')
    almanac.log.seal([2, bogus], actor="ann", reason="known")
    page.get_by_role("link", name="Check the chain").click()
    expect(page.locator(".chain")).to_contain_text("except at breaks that were sealed")
    expect(page.locator(".chain")).to_contain_text(
        f"Change {bogus} goes on from another change, sealed by change"
    )
    page.goto("/console/audit")
    expect(page.locator("#found tbody tr").nth(1)).to_contain_text("put in by hand")


def test_log_is_filtered_newest_first(open_page: OpenPage, almanac: KnowledgeBase, fact_id: int) -> None:
    almanac.facts.edit(fact_id, "Cusco", anyway=True, actor="ann", reason="it moved")
    page = open_page("auditor", "/console/audit")
    rows = page.locator("#found tbody tr")
    expect(rows.first).to_contain_text("make the token the auditor")
    expect(rows.nth(1)).to_contain_text("it moved")
    page.get_by_label("Kind").select_option("ingest")
    expect(rows).to_have_count(2)
    expect(rows.first).to_contain_text("a second source")
    page.get_by_label("By", exact=True).fill("nobody")
    expect(page.get_by_text("No change fits")).to_be_visible()
    page.goto("/console/audit?since=yesterday")
    expect(page.locator("#since-mistake")).to_contain_text("2026-01-31")


def test_fact_leads_to_the_outputs_that_used_it(
    open_page: OpenPage, almanac: KnowledgeBase, fact_id: int
) -> None:
    page = open_page("operator")
    ask(page, CAPITAL)
    almanac.facts.delete([fact_id], actor="ann", reason="disputed")
    page.goto(f"/console/facts/{fact_id}")
    page.get_by_role("link", name="Impact").click()
    row = page.get_by_role("region", name="Outputs that spliced it").locator("tbody tr")
    expect(row).to_contain_text("deleted")
    expect(row.locator("mark")).to_have_text("Lima")
    row.get_by_role("link").click()
    expect(page.locator("a.splice")).to_have_class("splice deleted")
    page.get_by_role("link", name="Stored outputs").first.click()
    expect(page.locator("tbody tr")).to_contain_text(CAPITAL)


def test_slider_shows_what_was_answered_then(
    open_page: OpenPage, almanac: KnowledgeBase, fact_id: int
) -> None:
    before = almanac.log.head_seq()
    almanac.facts.edit(fact_id, "Cusco", anyway=True, actor="ann", reason="it moved")
    page = open_page("auditor", "/console/audit/time")
    page.get_by_label("Question").fill(CAPITAL)
    page.get_by_label("As of change").fill(str(before))
    then = page.locator("section", has=page.get_by_role("heading", name=f"As of change {before}", exact=True))
    expect(then).to_contain_text("Lima")
    now = page.locator("section", has=page.get_by_role("heading", name="Now", exact=True))
    expect(now).to_contain_text("Cusco")
    differing = page.get_by_role("region", name="Facts that differ")
    expect(differing).to_contain_text("updated")
    expect(differing.locator("tbody tr").last).to_contain_text(re.compile(rf"{before + 1}\s*ann"))
