"""Facts erased from the console: looked at first, by one key or by two, with a report of what is left."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect
from sqlalchemy.orm import Session

from colmlm.api.middleware.auth import COOKIE
from colmlm.api.middleware.limiters import Tuning
from colmlm.kb.access.tokens import create_token
from colmlm.kb.service import KnowledgeBase
from tests.api.conftest import CAPITAL
from tests.api.console.conftest import OpenPage, ask, session_with

pytestmark = pytest.mark.browser


def test_erasing_shows_what_goes_and_what_is_left(
    open_page: OpenPage, almanac: KnowledgeBase, fact_id: int
) -> None:
    almanac.lookups.snapshot()
    page = open_page("admin")
    ask(page, CAPITAL)
    page.goto("/console/facts")
    page.get_by_label("Search for").fill("Lima")
    expect(page.locator("#found tbody tr")).to_have_count(2)
    page.get_by_label(f"Choose fact {fact_id}").check()
    page.get_by_role("button", name="Erase those chosen…").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Erase one fact?")
    expect(
        page.get_by_text("one stored output, no forget runs and no jobs are redacted, and one key dropped")
    ).to_be_visible()
    expect(page.get_by_role("region", name="Facts that say the same")).to_contain_text("The coast")
    page.get_by_role("link", name="Take it in too").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Erase two facts?")
    page.get_by_role("button", name="Erase two facts for good").click()
    expect(page.locator("#reason-mistake")).to_contain_text("may not be empty")
    assert len(almanac.facts.find(text="Lima")) == 2

    page.get_by_label("Reason").fill("request 12")
    page.get_by_label("Search all files before and after").check()
    page.get_by_role("button", name="Erase two facts for good").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Erased two facts")
    expect(page.get_by_role("region", name="Levels")).to_contain_text("colmlm erase --now")
    keys = (
        page.get_by_role("region", name="Residue by area")
        .get_by_role("row", name="snapshots")
        .get_by_role("cell")
    )
    assert int(keys.nth(1).inner_text()) > 0 and keys.nth(2).inner_text() == "0"
    assert almanac.facts.find(text="Lima", deleted=None) == []
    page.goto("/console/ask?output=1")
    expect(page.locator("a.splice")).to_have_class("splice erased")
    page.goto("/console/erasures")
    expect(page.get_by_role("region", name="Erasures")).to_contain_text("request 12")
    page.get_by_label("Facts", exact=True).fill(f"{fact_id}")
    page.get_by_role("button", name="Look at them").click()
    expect(page.get_by_role("note")).to_contain_text("One fact was erased before")


@pytest.mark.parametrize("tuning", [Tuning(longest_seconds=0, most_scanned=1000)])
def test_too_many_files_are_not_read_while_somebody_waits(
    open_page: OpenPage, almanac: KnowledgeBase, fact_id: int
) -> None:
    page = open_page("admin", f"/console/erasures/new?fact={fact_id}")
    page.get_by_label("Reason").fill("request 12")
    page.get_by_label("Search all files before and after").check()
    page.get_by_role("button", name="Erase one fact for good").click()
    expect(page.locator("#scan-mistake")).to_contain_text("GB to read")
    assert len(almanac.facts.find(text="Lima")) == 2


def signed_in(page: Page, kb: KnowledgeBase, name: str) -> None:
    """Go on as another admin."""
    with Session(kb.engine) as session, session.begin():
        token = create_token(session, name, "admin")
    page.context.add_cookies(
        [{"name": COOKIE, "value": session_with(kb, token), "url": page.url.partition("/console")[0]}]
    )


@pytest.mark.usefixtures("two_tokens")
def test_second_admin_approves_what_the_first_asked_for(
    open_page: OpenPage, almanac: KnowledgeBase, fact_id: int
) -> None:
    page = open_page("admin")
    for reason in ("request 12", "by mistake"):
        page.goto(f"/console/erasures/new?fact={fact_id}")
        page.get_by_label("Reason").fill(reason)
        page.get_by_role("button", name="Ask to erase one fact").click()
        expect(page.get_by_text("This token asked for it")).to_be_visible()
    expect(page.get_by_role("button", name="Approve")).to_have_count(0)
    page.get_by_role("button", name="Withdraw, and keep it").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Erasure request 2")
    expect(page.locator(".badge.withdrawn")).to_be_visible()
    assert len(almanac.facts.find(text="Lima")) == 2

    signed_in(page, almanac, "the second admin")
    page.goto("/console/erasures")
    asked = page.get_by_role("region", name="Erasures asked for").locator("tbody tr")
    expect(asked.first).to_contain_text("nobody yet")
    asked.first.get_by_role("link").click()
    page.get_by_role("button", name="Approve, and erase one fact for good").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Erased one fact")
    assert len(almanac.facts.find(text="Lima", deleted=None)) == 1
    page.goto("/console/erasures/1")
    expect(page.locator(".badge.approved")).to_be_visible()
    expect(page.get_by_text("the second admin").first).to_be_visible()
