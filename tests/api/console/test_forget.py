"""From a selector to a certificate that anybody can check, and back."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import expect

from colmlm.kb.removal.certificate import check_here
from colmlm.kb.service import KnowledgeBase
from tests.api.console.conftest import OpenPage

pytestmark = pytest.mark.browser


def test_forgetting_ends_with_a_certificate_and_can_be_undone(
    open_page: OpenPage, almanac: KnowledgeBase, tmp_path: Path
) -> None:
    page = open_page("operator", "/console/forget")
    expect(page.get_by_text("Nothing was ever planned")).to_be_visible()
    ways = page.get_by_role("navigation", name="Ways to remove").get_by_role("link")
    expect(ways).to_have_text(["Delete", "Forget", "Hold"])  # who may not erase is not shown a way to it
    page.get_by_label("Reason").fill("request 12")
    page.get_by_role("button", name="Plan").click()
    expect(page.get_by_role("alert")).to_contain_text("it is empty")

    page.get_by_label("Corpus").select_option("atlas")
    page.get_by_label("Value or question holds").fill("Lima")
    page.get_by_label("forget them too").check()
    expect(page.get_by_label("no match")).to_be_checked()
    page.get_by_role("button", name="Plan").click()
    expect(page.get_by_role("heading", name="Forget run 1")).to_be_visible()
    expect(page.get_by_role("region", name="Facts that say the same elsewhere")).to_contain_text("The coast")
    expect(page.get_by_role("region", name="What their questions would get")).to_contain_text("abstained")
    assert len(almanac.facts.find(text="Lima")) == 2

    page.get_by_role("link", name="Apply…").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Forget two facts?")
    page.get_by_role("button", name="Forget two facts").click()
    expect(page.locator(".note.good")).to_contain_text("forgot two facts")
    assert almanac.facts.find(text="Lima") == []

    page.get_by_label("Ask in other words too").fill("Which city is the capital?\n\nAnd of Peru?")
    page.get_by_role("button", name="Verify").click()
    found = page.get_by_role("region", name="How checks were answered")
    expect(found).to_contain_text("100.0%")
    with page.expect_download() as download:
        page.get_by_role("link", name="Certificate").click()
    file = tmp_path / "certificate.json"
    download.value.save_as(file)
    checked = check_here(almanac, file.read_bytes())
    assert checked.ok and (checked.run_id, checked.num_facts) == (1, 2)

    page.get_by_role("link", name="Restore…").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Bring back two facts?")
    page.get_by_label("Reason").fill("withdrawn")
    page.get_by_role("button", name="Bring back two facts").click()
    expect(page.locator(".steps")).to_contain_text("Restored")
    assert len(almanac.facts.find(text="Lima")) == 2


def test_plan_that_is_out_of_date_says_so(open_page: OpenPage, almanac: KnowledgeBase, fact_id: int) -> None:
    page = open_page("operator", "/console/forget")
    page.get_by_label("Facts", exact=True).fill(f"{fact_id}")
    page.get_by_label("Reason").fill("request 13")
    page.get_by_role("button", name="Plan").click()
    page.get_by_role("link", name="Apply…").click()
    almanac.facts.edit(fact_id, "Cusco", anyway=True, actor="somebody", reason="was quicker")
    page.get_by_role("button", name="Forget one fact").click()
    expect(page.get_by_role("alert")).to_contain_text("Make a new plan")
    page.get_by_role("link", name="Run 1").click()
    expect(page.get_by_text("This plan is out of date")).to_be_visible()
    expect(page.get_by_role("link", name="Apply…")).to_have_count(0)
    page.get_by_role("link", name="Discard…").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Discard the plan of one fact?")
    page.get_by_label("Reason").fill("out of date")
    page.get_by_role("button", name="Discard the plan").click()
    expect(page.locator(".note.good")).to_contain_text("discarded the plan")
    expect(page.get_by_text("Nothing was ever planned")).to_be_visible()
