"""Tokens made, rotated and revoked in the console, each secret on one page and nowhere else."""

from __future__ import annotations

import httpx
import pytest
from playwright.sync_api import Page, expect

from colmlm.kb.service import KnowledgeBase
from tests.api.console.conftest import OpenPage

pytestmark = pytest.mark.browser


def works(address: str, secret: str) -> bool:
    answer = httpx.get(f"{address}/v1/facts", headers={"Authorization": f"Bearer {secret}"}, timeout=30)
    return answer.status_code == 200


def shown(page: Page) -> str:
    """The secret on this page."""
    return page.locator("#secret").inner_text()


def test_token_is_made_rotated_and_revoked(open_page: OpenPage, almanac: KnowledgeBase, address: str) -> None:
    page = open_page("admin", "/console/tokens", permissions=["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Make the token").click()
    expect(page.locator("#name-mistake")).to_contain_text("may not be empty")
    page.get_by_label("Name", exact=True).fill("the admin")
    page.get_by_label("Requests a minute, at most").fill("600")
    page.get_by_role("button", name="Make the token").click()
    expect(page.get_by_role("alert")).to_contain_text("is taken")
    page.get_by_label("Name", exact=True).fill("curator")
    page.get_by_label("Role").select_option("operator")
    page.get_by_role("button", name="Make the token").click()
    first = shown(page)
    assert works(address, first)
    page.get_by_role("button", name="Copy").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == first

    page.get_by_role("link", name="I have it").click()
    row = page.get_by_role("row", name="curator")
    expect(row).to_contain_text("operator")
    expect(row).to_contain_text("600")
    assert first not in page.content() and first[:13] in row.inner_text()
    row.get_by_role("link", name="Rotate curator").click()
    page.get_by_label("The secret it has").select_option("ends at once")
    page.get_by_role("button", name="Make another secret").click()
    second = shown(page)
    assert (works(address, first), works(address, second)) == (False, True)

    page.get_by_role("link", name="I have it").click()
    row.get_by_role("link", name="Revoke curator").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Revoke the token curator?")
    page.get_by_role("button", name="Revoke one token").click()
    expect(page.locator(".note.good")).to_contain_text("curator is revoked")
    expect(row).to_contain_text("revoked")
    expect(row.get_by_role("link")).to_have_count(0)
    assert not works(address, second)
    page.goto("/console/tokens/2/rotate")
    page.get_by_role("button", name="Make another secret").click()
    expect(page.get_by_role("alert")).to_contain_text("revoked")
