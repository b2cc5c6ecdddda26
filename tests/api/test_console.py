"""The console in a real browser: sign in, generate, see the span, open its source, delete, generate again."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator

import pytest
from litestar import Litestar
from playwright.sync_api import Page, expect, sync_playwright

from kb.service import KnowledgeBase
from tests.api.conftest import CAPITAL, TEXT
from tests.api.serving import served

pytestmark = pytest.mark.browser

FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
expect.set_options(timeout=20_000)  # a busy machine takes its time
HOSTILE = '<img src=x onerror="document.title=1">'


@pytest.fixture
def page(app: Litestar) -> Iterator[Page]:
    """A page of the console, not signed in. Fails the test if its script fails or something is kept from loading."""
    if (chromium := shutil.which("chromium")) is None:
        pytest.skip("no chromium on the PATH: apt install chromium")
    wrong: list[str] = []
    with served(app) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        page = browser.new_context(base_url=address, viewport={"width": 1280, "height": 800}).new_page()
        page.set_default_timeout(20_000)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda m: wrong.append(m.text) if "Content Security Policy" in m.text else None)
        page.on("request", lambda r: None if r.url.startswith(address) else wrong.append(r.url))
        yield page
        browser.close()
    assert wrong == []


def sign_in(page: Page, token: str) -> None:
    page.goto("/")
    page.get_by_label("API key").fill(token)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_label("Prompt")).to_be_enabled()


def generate(page: Page, prompt: str) -> None:
    page.get_by_label("Prompt").fill(prompt)
    page.get_by_role("button", name="Generate", exact=True).click()
    expect(page.get_by_role("status")).to_contain_text("Done")


def test_deleting_a_spliced_fact_takes_it_out_of_the_next_output(
    page: Page, new_key: Callable[[str], str], fact_id: int
) -> None:
    sign_in(page, new_key("operator"))
    generate(page, CAPITAL)
    spliced = page.locator("#output mark.splice")
    expect(spliced).to_have_count(1)
    expect(spliced).to_contain_text("Lima")
    expect(spliced).to_contain_text(f"#{fact_id} · 1.000")

    spliced.click()
    source = page.locator("#evidence .source")
    expect(source).to_have_text(TEXT)
    expect(source.locator("mark")).to_have_text("Lima")
    expect(page.locator("#evidence")).to_contain_text("CC-BY-4.0")

    page.get_by_label("Reason to delete it").fill("it moved")
    page.get_by_role("button", name="Delete this fact").click()
    expect(page.locator("#notes")).to_contain_text(f"fact {fact_id} has been deleted since")
    expect(spliced).to_have_class("splice gone chosen")
    expect(page.locator("#evidence")).to_contain_text("the operator: it moved")

    page.get_by_role("button", name="Generate again").click()
    expect(page.locator("#output")).to_contain_text("I do not know")
    expect(spliced).to_have_count(0)

    page.get_by_role("button", name=CAPITAL).last.click()
    spliced.click()
    page.get_by_label("Reason to restore it").fill("it came back")
    page.get_by_role("button", name="Restore this fact").click()
    expect(page.get_by_role("status")).to_contain_text("is restored since change")
    page.get_by_role("button", name="Generate again").click()
    expect(page.get_by_role("status")).to_contain_text("1 found")
    expect(page.locator("#notes li")).to_have_count(0)


def test_page_is_used_with_the_keyboard_alone(page: Page, new_key: Callable[[str], str]) -> None:
    sign_in(page, new_key("reader"))
    page.get_by_label("Prompt").focus()
    page.keyboard.type(CAPITAL)
    page.keyboard.press("Control+Enter")
    expect(page.get_by_role("status")).to_contain_text("Done")
    page.locator("#output mark.splice").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#evidence .source mark")).to_have_text("Lima")
    assert page.evaluate("document.activeElement.id") == "evidence"


def test_reader_is_told_that_editing_is_not_theirs(page: Page, new_key: Callable[[str], str]) -> None:
    sign_in(page, new_key("reader"))
    generate(page, CAPITAL)
    page.locator("#output mark.splice").click()
    page.get_by_label("Reason to delete it").fill("mischief")
    page.get_by_role("button", name="Delete this fact").click()
    expect(page.locator("#evidence").get_by_role("alert")).to_contain_text("has not the right")


def test_markup_in_data_stays_text(
    page: Page, new_key: Callable[[str], str], atlas: KnowledgeBase, fact_id: int
) -> None:
    atlas.update(fact_id, HOSTILE, actor=HOSTILE, reason=HOSTILE)
    sign_in(page, new_key("operator"))
    generate(page, CAPITAL)
    expect(page.locator("#output mark.splice")).to_contain_text(HOSTILE)
    page.locator("#output mark.splice").click()
    expect(page.locator("#evidence .history")).to_contain_text(HOSTILE)
    expect(page.locator("#evidence")).to_contain_text("The document says “Lima”")
    assert page.locator("img").count() == 0 and page.title() == "colmlm"


def test_signing_out_brings_the_form_back(page: Page, new_key: Callable[[str], str]) -> None:
    sign_in(page, new_key("reader"))
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("API key")).to_be_visible()
    page.get_by_label("API key").fill("wrong")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("does not work")
