"""A new keyset takes over, and the old one comes back."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from colmlm.kb.service import KnowledgeBase
from tests.api.console.conftest import OpenPage
from tests.fakes import FakeEncoder, measured

pytestmark = pytest.mark.browser


def test_keyset_is_gated_activated_and_rolled_back(
    open_page: OpenPage, almanac: KnowledgeBase, encoder: FakeEncoder
) -> None:
    newer = FakeEncoder(salt="newer")
    ready = almanac.keysets.rekey(newer).keyset_id
    page = open_page("trainer", "/console/keysets")
    page.get_by_role("link", name="Activate…").click()
    page.get_by_label("Reason").fill("newer")
    page.get_by_role("button", name=f"Activate keyset {ready}").click()
    expect(page.get_by_role("alert")).to_contain_text("never checked")
    assert almanac.keysets.active().keyset_id != ready

    almanac.keysets.calibrate(ready, measured(0.7))
    assert almanac.keysets.check(ready, newer, active_encoder=encoder).passed
    page.goto(f"/console/keysets/{ready}")
    expect(page.get_by_role("region", name="Criteria of the gate")).to_contain_text("question recall@1")
    expect(page.get_by_role("img", name="active keyset")).to_be_visible()
    page.get_by_role("link", name="Activate…").click()
    page.get_by_label("Reason").fill("newer")
    page.get_by_role("button", name=f"Activate keyset {ready}").click()
    expect(page.locator(".keyset.active")).to_contain_text(f"Keyset {ready}")
    assert almanac.keysets.active().keyset_id == ready

    page.get_by_role("link", name="Roll back…").click()
    page.get_by_role("button", name="Roll back").click()
    expect(page.locator(".keyset.active")).not_to_contain_text(f"Keyset {ready}")
    assert almanac.keysets.active().keyset_id != ready

    page.get_by_role("link", name="Retire…").click()
    expect(page.get_by_text("drops three keys")).to_be_visible()
    page.get_by_label("Reason").fill("no use")
    page.get_by_role("button", name="Drop three keys").click()
    expect(page.locator(".keyset.retired")).to_contain_text(f"Keyset {ready}")
