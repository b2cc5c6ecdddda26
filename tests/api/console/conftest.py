"""The console in a real browser, on a base with two corpora of which both state one fact."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, expect, sync_playwright
from sqlalchemy import URL

from colmlm.api.middleware.auth import COOKIE
from colmlm.api.middleware.gate import GatedApp
from colmlm.kb.corpus.format import AnnotatedDocument, FactSpan, Parsed
from colmlm.kb.service import KnowledgeBase
from tests import servers
from tests.api.conftest import CAPITAL, ingest_and_key
from tests.api.serving import served
from tests.fakes import FakeEncoder

FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
PATIENCE = 60_000  # milliseconds, enough for a busy machine
expect.set_options(timeout=PATIENCE)

ALMANAC = "Of the coast, Lima is the capital."
OpenPage = Callable[..., Page]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A browser for a whole file, as Playwright's loop keeps this thread, and no worker could start another there."""
    if (chromium := shutil.which("chromium")) is None:
        pytest.skip("no chromium on the PATH: apt install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield browser
        browser.close()


def ingest_both(kb: KnowledgeBase) -> None:
    ingest_and_key(kb)
    start = ALMANAC.index("Lima")
    fact = FactSpan(start, start + 4, "Lima", CAPITAL, "Lima")
    document = AnnotatedDocument("coast", ALMANAC, (fact,), title="The coast")
    kb.corpora.ingest([Parsed(document)], "almanac", actor="tester", reason="a second source")
    kb.keysets.rekey(FakeEncoder())


@pytest.fixture(scope="session")
def almanac_template(server: URL) -> str:
    servers.fill(server, "almanac_template", ingest_both)
    return "almanac_template"


@pytest.fixture
def template(request: pytest.FixtureRequest, template: str) -> str:
    return request.getfixturevalue("almanac_template") if "almanac" in request.fixturenames else template


@pytest.fixture
def almanac(atlas: KnowledgeBase) -> KnowledgeBase:
    """The atlas, and an almanac that also answers its question about the capital."""
    return atlas


@pytest.fixture
def fact_id(atlas: KnowledgeBase) -> int:
    """The atlas's fact that Lima is the capital."""
    (fact,) = atlas.facts.find(text="Lima", corpus="atlas")
    return fact.fact_id


@pytest.fixture
def address(app: GatedApp) -> Iterator[str]:
    with served(app) as address:
        yield address


@pytest.fixture
def context(browser: Browser, address: str) -> Iterator[Callable[..., BrowserContext]]:
    """A function that opens browser contexts. A page may not break, log an error or call another server."""
    wrong: list[str] = []
    opened: list[BrowserContext] = []

    def heard(message: ConsoleMessage) -> None:
        # Chromium logs the status of a refused form; no other error may be logged.
        if message.type == "error" and "the server responded with a status of 4" not in message.text:
            wrong.append(message.text)

    def open_context(**options: object) -> BrowserContext:
        made = browser.new_context(base_url=address, viewport={"width": 1280, "height": 900}, **options)  # type: ignore[arg-type]
        made.set_default_timeout(PATIENCE)
        made.on("console", heard)
        made.on("weberror", lambda error: wrong.append(str(error.error)))
        made.on("request", lambda r: None if r.url.startswith((address, "blob:")) else wrong.append(r.url))
        opened.append(made)
        return made

    yield open_context
    for made in opened:
        made.close()
    assert wrong == []


@pytest.fixture
def open_page(
    context: Callable[..., BrowserContext], address: str, new_token: Callable[[str], str], kb: KnowledgeBase
) -> OpenPage:
    """A function `open_page(role, path)` that opens a page, signed in with a token of that role."""

    def open_as(role: str, path: str = "/", **options: object) -> Page:
        made = context(**options)
        made.add_cookies([{"name": COOKIE, "value": session_with(kb, new_token(role)), "url": address}])
        page = made.new_page()
        page.goto(path)
        return page

    return open_as


def session_with(kb: KnowledgeBase, token: str) -> str:
    """Gives the cookie's content of a browser that has signed in with this token."""
    key = kb.access.of_secret(token)
    assert key is not None
    return kb.access.begin_session(key, None)


def show_advanced(page: Page) -> None:
    """Opens what the page shows to those alone who want the model to write."""
    if not page.get_by_label("Prompt").is_visible():
        page.get_by_text("Advanced: let the model write").click()


def ask(page: Page, prompt: str) -> None:
    show_advanced(page)
    page.get_by_label("Prompt").fill(prompt)
    page.get_by_role("button", name="Ask", exact=True).click()
    expect(page.locator("#traced .output")).to_be_visible()
