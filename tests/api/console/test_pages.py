"""What holds for every page, in light and dark: axe-core finds nothing wrong, and nothing breaks at a phone's width."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal

import pytest
from axe_playwright_python.base import AxeResults
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from colmlm.api.console.views import PLACES
from colmlm.kb.access.tokens import create_token, read_token, revoke_token, rotate_token
from colmlm.kb.answers.answering import Answering
from colmlm.kb.backup.write import backup_folder, write_backup
from colmlm.kb.evidence.records import NewFeedback, NewOutput, Splice
from colmlm.kb.jobs.kinds import AskQuestions, Gate, MakeBackup
from colmlm.kb.jobs.queue import Jobs
from colmlm.kb.log.signing import signing_key
from colmlm.kb.lookup.questions import Questions
from colmlm.kb.questions.asking import ByAnswers
from colmlm.kb.questions.records import DraftQuestion
from colmlm.kb.removal.erase import ErasureRequests
from colmlm.kb.removal.forget import Forgetting
from colmlm.kb.removal.selector import Selector
from colmlm.kb.service import KnowledgeBase
from tests.api.conftest import CAPITAL
from tests.api.console.conftest import OpenPage, ask
from tests.fakes import FakeEncoder, NearReader

pytestmark = pytest.mark.browser
AXE = Axe()

PATHS = (
    "ask", "ask?output=3", "facts", "facts?text=nothing", "facts?text=capital&way=meaning", "facts?actor=ann",
    "facts?change=3", "facts/1", "facts/1?change=4",
    "facts/new", "facts/edit", "documents/1?move=1", "review", "review?kind=doubted", "review?change=3&left=1",
    "contradictions", "contradictions?list=noted", "contradictions?list=stale", "contradictions?list=duplicates",
    "facts/delete?fact=1&fact=3", "documents/1?fact=1", "forget", "forget/1", "forget/1/restore",
    "erasures", "erasures/new?fact=1", "erasures/new?fact=x", "erasures/1", "audit", "audit?check=yes",
    "audit?since=never", "audit/outputs", "audit/outputs/1", "audit/outputs/3", "audit/denials", "audit/impact?fact=1",
    "audit/time?seq=2&question=Where", "audit/time?seq=999999", "facts/delete?fact=x",
    "keysets", "keysets/1", "keysets/1/activate", "corpora", "tokens",
    "tokens?revoked=1", "tokens/2/rotate", "tokens/2/revoke", "backups", "jobs", "jobs/1", "status", "nowhere",
    "questions", "questions/lands", "questions/lands?job=3", "questions/lands/runs/1",
    "questions/lands/runs/2?outcome=wrong",
    "questions/lands/compare",
    "questions/lands/items/1", "questions/lands/remove", "keep-question?output=1",
    "misses", "misses?state=solved", "misses/1", "misses/1?fact=1&left=2", "misses/dismiss?group=1",
    "misses/dismiss", "audit/outputs/3/wrong", "audit/outputs/2/wrong?noted=yes", "audit/outputs?thumb=down",
    "facts/new?question=Who&miss=1",
)  # fmt: skip


# The page's own width, or that of a table of which a part is beside the screen.
WIDEST = """Math.max(document.documentElement.scrollWidth,
    ...[...document.querySelectorAll(".table")].map((one) => one.scrollWidth))"""


@pytest.fixture
def lived_in(almanac: KnowledgeBase, encoder: FakeEncoder, fact_id: int) -> KnowledgeBase:
    """A base to which everything has happened that a page can show."""
    almanac.facts.edit(fact_id, "Lima!", anyway=True, actor="ann", reason="louder")
    almanac.facts.edit(fact_id, "Lima", actor="ann", reason="softer")
    forgetting = Forgetting(almanac, encoder)
    run = forgetting.plan(Selector(text="Titicaca"), actor="ann", reason="request 12", policy="abstain")
    forgetting.apply(run.run_id, actor="ann", reason="request 12")
    forgetting.verify(run.run_id)
    almanac.keysets.check(1, encoder)
    Jobs(almanac).submit(Gate(keyset_id=1), actor="ann")
    Jobs(almanac).submit(MakeBackup(name="tuesday.backup"), actor="ann")
    folder = backup_folder(almanac.settings)
    folder.mkdir(parents=True)
    write_backup(almanac, folder / "monday.backup", signing_key(almanac.settings.home))
    _ask_twice(almanac, encoder, fact_id)
    for value in ("Ann", "Bea"):
        almanac.facts.add("Who keeps it?", value, anyway=True, actor="ann", reason="both say so")
    _hand_out_tokens(almanac, fact_id)
    _miss_something(almanac)
    return almanac


def _ask_twice(kb: KnowledgeBase, encoder: FakeEncoder, fact_id: int) -> None:
    """Two runs of kept questions with an edit between, and a third that waits for a worker."""
    asker = ByAnswers(Answering(kb, Questions(kb, [encoder]), NearReader()))
    kept = [DraftQuestion(CAPITAL, ("Lima", "Lima, Peru")), DraftQuestion("Who rules?")]
    kb.questions.add("lands", kept, corpus="atlas", actor="ann")
    kb.questions.run("lands", asker, actor="ann")
    kb.facts.edit(fact_id, "Cusco", anyway=True, actor="ann", reason="another")
    kb.questions.run("lands", asker, actor="ann")
    kb.facts.edit(fact_id, "Lima", actor="ann", reason="back")
    Jobs(kb).submit(AskQuestions(question_set="lands"), actor="ann")


def _miss_something(kb: KnowledgeBase) -> None:
    for question in ("Who wrote Emma?", "How long is the road that leads from the coast over the mountains?"):
        missed = Splice(0, 0, "no_match", score=0.1)
        made = NewOutput(question, "", "", "read", kb.log.head_seq(), (missed,))
        kb.outputs.give_feedback(kb.outputs.record(made), NewFeedback("down", "no", "Austen"), actor="ann")
    kb.misses.group()


def _hand_out_tokens(kb: KnowledgeBase, fact_id: int) -> None:
    """One that asked for an erasure and was revoked, and one that was rotated and ends."""
    with kb.sessions.begin() as session:
        create_token(session, "ann", "admin")
        ann = read_token(session, "ann")
        create_token(session, "gpu-host", "decoder", expires_in=timedelta(days=90), rate_limit=60_000)
        rotate_token(session, "gpu-host", grace=timedelta(hours=1))
        revoke_token(session, "ann")
    ErasureRequests(kb).ask([fact_id], token=ann, actor="ann", reason="request 13")


@pytest.mark.slow(reason="loads seventy pages and looks at each twice")
def test_every_page_is_accessible_in_light_and_dark(open_page: OpenPage, lived_in: KnowledgeBase) -> None:
    page = open_page("admin")
    ask(page, CAPITAL)
    found = {}
    for path in PATHS:
        page.goto(f"/console/{path}")
        found[path] = in_both(page)
    assert {path: said for path, said in found.items() if said} == {}


@pytest.mark.slow(reason="loads seventy pages and looks at each twice")
def test_every_page_is_accessible_on_a_phone_and_no_wider(
    open_page: OpenPage, lived_in: KnowledgeBase
) -> None:
    page = open_page("admin")
    ask(page, CAPITAL)
    page.set_viewport_size({"width": 360, "height": 740})
    found, wide = {}, {}
    for path in PATHS:
        page.goto(f"/console/{path}")
        wide[path] = page.evaluate(WIDEST)
        found[path] = in_both(page)
    assert {path: width for path, width in wide.items() if width > 360} == {}
    assert {path: said for path, said in found.items() if said} == {}


def test_pages_that_are_shown_once_are_accessible(open_page: OpenPage, almanac: KnowledgeBase) -> None:
    page = open_page("admin", "/console/tokens")
    page.get_by_label("Name", exact=True).fill("curator")
    page.get_by_role("button", name="Make the token").click()
    expect(page.locator("#secret")).to_be_visible()
    found = [in_both(page)]
    page.goto("/console/erasures/new?fact=1")
    page.get_by_label("Reason").fill("request 12")
    page.get_by_label("Search all files before and after").check()
    page.get_by_role("button", name="Erase one fact for good").click()
    expect(page.get_by_role("region", name="Residue by area")).to_be_visible()
    assert [*found, in_both(page)] == ["", ""]


def in_both(page: Page) -> str:
    """The violations in light, and in dark, where only colours differ."""
    found = violations(page, "light")
    return found + violations(page, "dark", only="color-contrast")


def violations(page: Page, scheme: Literal["light", "dark"], only: str | None = None) -> str:
    page.emulate_media(color_scheme=scheme)
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE.axe_script)
    options = {"resultTypes": ["violations"], **({"runOnly": [only]} if only else {})}
    results = AxeResults(page.evaluate("options => axe.run(options)", options))
    return str(results.generate_report()) if results.violations_count else ""


def test_all_pages_are_reached_by_keyboard_on_a_phone(open_page: OpenPage, lived_in: KnowledgeBase) -> None:
    page = open_page("admin", "/console/facts")
    page.set_viewport_size({"width": 390, "height": 740})
    menu, links = page.get_by_role("button", name="Pages"), page.locator("#pages a")
    expect(links.first).to_be_hidden()
    menu.focus()
    page.keyboard.press("Enter")
    assert links.count() == len(PLACES)
    for link in links.all():
        page.keyboard.press("Tab")
        expect(link).to_be_focused()
        expect(link).to_be_in_viewport(ratio=1)
    assert in_both(page) == ""
    page.keyboard.press("Escape")
    expect(links.first).to_be_hidden()
    expect(menu).to_be_focused()
