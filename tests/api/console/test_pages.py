"""What holds for every page, in light and dark: axe-core finds nothing wrong, and nothing breaks at a phone's width."""

from __future__ import annotations

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

from kb.forgetting import Forgetting
from kb.gate import check_keyset
from kb.jobs.kinds import Gate
from kb.jobs.queue import Jobs
from kb.selectors import Selector
from kb.service import KnowledgeBase
from tests.api.conftest import CAPITAL
from tests.api.console.conftest import OpenPage, ask
from tests.fakes import FakeEncoder

pytestmark = pytest.mark.browser

PATHS = (
    "ask", "ask?output=1", "facts", "facts?text=nothing", "facts?change=3", "facts/1", "facts/1?change=4", "facts/new",
    "facts/delete?fact=1&fact=3", "documents/1?fact=1", "forget", "forget/1", "forget/1/restore", "audit",
    "audit?check=yes", "audit?since=never", "audit/outputs", "audit/outputs/1", "audit/denials", "audit/impact?fact=1",
    "audit/time?seq=2&question=Where", "keysets", "keysets/1", "keysets/1/activate", "corpora", "jobs", "jobs/1",
    "status", "nowhere",
)  # fmt: skip


@pytest.fixture
def lived_in(almanac: KnowledgeBase, encoder: FakeEncoder, fact_id: int) -> KnowledgeBase:
    """A base to which everything has happened that a page can show."""
    almanac.update(fact_id, "Lima!", actor="ann", reason="louder")
    almanac.update(fact_id, "Lima", actor="ann", reason="softer")
    forgetting = Forgetting(almanac, encoder)
    run = forgetting.plan(Selector(text="Titicaca"), actor="ann", reason="request 12", policy="abstain")
    forgetting.apply(run.run_id, actor="ann", reason="request 12")
    forgetting.verify(run.run_id)
    check_keyset(almanac, 1, encoder)
    Jobs(almanac).submit(Gate(keyset_id=1), actor="ann")
    return almanac


def test_every_page_is_accessible_in_light_and_dark(open_page: OpenPage, lived_in: KnowledgeBase) -> None:
    page = open_page("admin")
    ask(page, CAPITAL)
    found = {}
    for path in PATHS:
        page.emulate_media(color_scheme="light")
        page.goto(f"/console/{path}")
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
            found |= {f"{path} in {scheme}": said for said in [violations(page)] if said}
    assert found == {}


def violations(page: Page) -> str:
    results = Axe().run(page)
    return str(results.generate_report()) if results.violations_count else ""


def test_no_page_is_wider_than_a_phone(open_page: OpenPage, lived_in: KnowledgeBase) -> None:
    page = open_page("admin")
    ask(page, CAPITAL)
    page.set_viewport_size({"width": 360, "height": 740})
    wide = {}
    for path in PATHS:
        page.goto(f"/console/{path}")
        wide[path] = page.evaluate("document.documentElement.scrollWidth")
    assert {path: width for path, width in wide.items() if width > 360} == {}
