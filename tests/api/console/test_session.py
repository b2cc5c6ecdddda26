"""In and out of the console, what a role is offered, and what holds for every page."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from colmlm.api.app import create_app
from colmlm.api.middleware.gate import GatedApp
from colmlm.api.settings import ServerSettings
from colmlm.kb.log.chain import list_denials
from colmlm.kb.service import KnowledgeBase
from tests.api.conftest import ORIGIN, Connect
from tests.api.console.conftest import OpenPage
from tests.fakes import FakeEncoder

pytestmark = pytest.mark.browser


def test_key_opens_the_page_that_was_asked_for(
    context: Callable[..., BrowserContext], new_token: Callable[[str], str], almanac: KnowledgeBase
) -> None:
    page = context().new_page()
    page.goto("/console/facts?text=Lima")
    expect(page).to_have_title("Sign in · colmlm")
    page.get_by_label("Secret of your token").fill("wrong")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("does not work")
    page.get_by_label("Secret of your token").fill(new_token("reader"))
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("cell", name="Lima", exact=True)).to_have_count(2)
    expect(page.get_by_label("Search for")).to_have_value("Lima")
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("Secret of your token")).to_be_visible()
    with almanac.sessions() as session:
        (denial, *_) = list_denials(session)
    assert (denial.path, denial.cause, denial.actor) == ("/session", "NotSignedIn", None)


def test_theme_is_kept(open_page: OpenPage) -> None:
    page = open_page("reader", "/console/facts?state=all", color_scheme="light")
    light = background(page)
    page.get_by_role("button", name="Dark").click()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    expect(page).to_have_url(re.compile(r"/console/facts\?state=all$"))
    assert background(page) != light
    page.goto("/console/corpora")
    expect(page.get_by_role("button", name="Dark")).to_have_attribute("aria-pressed", "true")


def background(page: Page) -> str:
    return str(page.evaluate("getComputedStyle(document.documentElement).backgroundColor"))


def test_reader_is_offered_reading_and_refused_the_rest(
    open_page: OpenPage, app: GatedApp, connect: Connect, fact_id: int
) -> None:
    page = open_page("reader", f"/console/facts/{fact_id}")
    expect(page.get_by_role("navigation", name="Pages").get_by_role("link")).to_have_text(
        ["Ask", "Questions", "Misses", "Facts", "Corpora", "Review", "Contradictions", "Keysets", "Status"]
    )
    expect(page.get_by_role("button", name="Correct")).to_have_count(0)
    expect(page.get_by_role("link", name="Delete…")).to_have_count(0)
    page.goto("/console/audit")
    expect(page.get_by_role("alert")).to_contain_text("Use a token")
    reader = connect(app, "auditor")
    sent = {"fact": str(fact_id), "reason": "mischief"}
    refused = reader.post("/console/facts/delete", data=sent, headers={"Origin": ORIGIN})
    assert refused.status_code == 403 and "Not allowed" in refused.text


def test_programs_are_sent_no_script_they_did_not_bring(app: GatedApp, connect: Connect) -> None:
    client = connect(app, "admin")
    for path in ("/console/ask", "/console/nowhere", "/console/facts/999999"):
        answer = client.get(path)
        policy = answer.headers["content-security-policy"]
        assert "script-src 'self'" in policy and "style-src 'self'" in policy and "unsafe" not in policy
        assert not re.search(r"<script>|<style| style=| on[a-z]+=|javascript:", answer.text)
    assert client.get("/console/nowhere").status_code == 404
    assert client.get("/console/static/../views.py").status_code in (401, 404)


def test_pages_link_to_the_documentation_where_its_address_is_known(
    kb: KnowledgeBase, encoder: FakeEncoder, connect: Connect
) -> None:
    address = "https://docs.example.org/colmlm/"
    for known, role, links in ((None, "reader", 0), (address, "operator", 1)):
        client = connect(create_app(kb, encoder, settings=ServerSettings(docs_url=known)), role)
        shown = client.get("/console/misses")
        assert shown.status_code == 200 and shown.text.count(f'href="{address}"') == links


def test_sign_in_leads_to_no_other_site(
    app: GatedApp, connect: Connect, new_token: Callable[[str], str]
) -> None:
    client, token = connect(app), new_token("reader")
    for back in ("https://evil.example/", "//evil.example", "/\\evil.example", "/console/\nx"):
        sent = {"key": token, "back": back}
        answer = client.post("/session", data=sent, headers={"Origin": ORIGIN}, follow_redirects=False)
        assert answer.headers["location"] == "/"


def test_the_console_begins_at_its_bare_name_too(
    app: GatedApp, connect: Connect, new_token: Callable[[str], str]
) -> None:
    client, signed_in = connect(app), {"Authorization": f"Bearer {new_token('reader')}"}
    for path in ("/", "/console", "/console/"):
        refused = client.get(path)
        assert refused.status_code == 401 and "Secret of your token" in refused.text
        answer = client.get(path, headers=signed_in, follow_redirects=False)
        assert (answer.status_code, answer.headers["location"]) == (303, "/console/ask")


def test_page_is_used_with_the_keyboard_alone(open_page: OpenPage, almanac: KnowledgeBase) -> None:
    page = open_page("operator", "/console/facts")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.press("/")
    expect(page.get_by_label("Search for")).to_be_focused()
    page.keyboard.type("Titicaca")
    expect(page.locator("#found tbody tr")).to_have_count(1)
    page.keyboard.press("Control+Enter")
    expect(page).to_have_url(re.compile("text=Titicaca"))
