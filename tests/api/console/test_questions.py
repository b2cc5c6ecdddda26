"""Twenty questions kept in the console, asked, asked again after an edit, and compared."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from colmlm.kb.answers.answering import Answering
from colmlm.kb.facts.records import ReviewVerdict
from colmlm.kb.jobs.kinds import AskQuestions
from colmlm.kb.jobs.worker import JobRun, Worker
from colmlm.kb.lookup.options import filter_of
from colmlm.kb.lookup.questions import Questions
from colmlm.kb.questions.asking import ByAnswers
from colmlm.kb.questions.records import DraftQuestion
from colmlm.kb.service import KnowledgeBase
from tests.api.conftest import CAPITAL, LAKE
from tests.api.console.conftest import OpenPage
from tests.fakes import FakeEncoder, NearReader

pytestmark = pytest.mark.browser

CAPITALS = [CAPITAL, *(f"Number {n} asks: what is the capital of Peru?" for n in range(17))]
ROWS = (
    "question,value\n" + "".join(f'"{one}",Lima\n' for one in CAPITALS) + f'"{LAKE}",Titicaca\nWho rules?,\n'
)


@pytest.fixture
def work(almanac: KnowledgeBase, encoder: FakeEncoder) -> Callable[[], None]:
    """A function that does the job that waits, as a worker with a reader would."""

    def asked(run: JobRun, work: AskQuestions) -> object:
        answering = Answering(run.kb, Questions(run.kb, [encoder]), NearReader())

        def told(done: int, total: int | None) -> None:
            run.progress(done, total, "questions asked")

        return asdict(
            run.kb.questions.run(
                work.question_set,
                ByAnswers(answering, only=filter_of(work)),
                told,
                actor=run.job.actor,
            )
        )

    def once() -> None:
        worker = Worker(almanac, {AskQuestions.kind: asked}, beat_seconds=0.05)
        with ThreadPoolExecutor(1) as beside:  # the browser's loop has this thread
            assert beside.submit(worker.run, once=True).result() == 1

    return once


def ask_all(page: Page, work: Callable[[], None]) -> None:
    page.get_by_role("button", name="Ask them all").click()
    expect(page.locator("#job")).to_contain_text("waiting for a worker")
    work()
    expect(page.get_by_role("heading", name="They were asked")).to_be_visible()


def test_twenty_questions_say_what_an_edit_did(
    open_page: OpenPage, almanac: KnowledgeBase, fact_id: int, work: Callable[[], None]
) -> None:
    page = open_page("operator", "/console/questions")
    page.get_by_label("Set", exact=True).fill("lands")
    page.get_by_label("Corpus (optional)").fill("atlas")
    page.get_by_label("Rows").fill(ROWS)
    page.get_by_role("button", name="Keep them").click()
    expect(page).to_have_url(re.compile("/console/questions/lands$"))
    expect(page.get_by_role("region", name="Questions", exact=True).locator("tbody tr")).to_have_count(20)
    ask_all(page, work)
    expect(page.locator("#job")).to_contain_text("20 of 20 right")
    page.goto(f"/console/facts/{fact_id}")
    page.get_by_label("Value").fill("Cusco")
    page.get_by_label("Reason").fill("moved")
    page.get_by_role("button", name="Correct").click()
    page.get_by_label("Do it anyway").check()
    page.get_by_role("button", name="Correct").click()
    expect(page.locator(".note.good")).to_contain_text("corrected one fact")
    page.goto("/console/questions/lands")
    ask_all(page, work)
    expect(page.locator("#job")).to_contain_text("2 of 20 right, 18 wrong")
    page.get_by_role("link", name="What came of them").click()
    rows = page.get_by_role("region", name="What came of the questions").locator("tbody tr")
    expect(rows.first).to_contain_text("wrong")
    page.get_by_role("navigation", name="Outcomes").get_by_role("link", name="Right").click()
    expect(rows).to_have_count(2)
    page.get_by_role("link", name="Compare with the run before").click()
    expect(page.locator(".lead")).to_contain_text("18 questions came out otherwise, 2 the same")
    expect(page.get_by_text("update")).to_be_visible()
    changed = page.get_by_role("region", name="What came out otherwise").locator("tbody tr")
    expect(changed).to_have_count(18)
    expect(changed.first).to_contain_text("Lima")
    expect(changed.first).to_contain_text("Cusco")
    expect(changed.first.locator("td").last).to_have_text(str(almanac.log.head_seq()))


def test_a_run_takes_accepted_facts_only(
    open_page: OpenPage, almanac: KnowledgeBase, fact_id: int, work: Callable[[], None]
) -> None:
    verdicts = [
        ReviewVerdict(one.fact_id, "propose", 1, "accepted") for one in almanac.facts.find(text="Lima")
    ]
    assert fact_id in {one.fact_id for one in verdicts}
    almanac.review.settle(verdicts, actor="ann", reason="again")
    almanac.questions.add("lands", [DraftQuestion(CAPITAL, ("Lima",))], actor="ann")
    page = open_page("operator", "/console/questions/lands")
    page.get_by_label("Accepted facts only").check()
    ask_all(page, work)
    expect(page.locator("#job")).to_contain_text("0 of 1 right")
    page.goto("/console/questions/lands")
    expect(page.get_by_role("region", name="Runs of this set")).to_contain_text("accepted facts only")
    page.get_by_role("link", name="1", exact=True).click()
    expect(page.locator("dl")).to_contain_text("accepted facts only")
    assert Axe().run(page).violations_count == 0


def test_a_question_is_kept_from_an_output_and_edited(open_page: OpenPage, almanac: KnowledgeBase) -> None:
    page = open_page("operator", "/console/ask")
    page.get_by_label("Question").fill(CAPITAL)
    page.get_by_role("button", name="Answer", exact=True).click()
    page.get_by_role("link", name="Keep as a question…").first.click()
    expect(page.get_by_label("Question")).to_have_value(CAPITAL)
    expect(page.get_by_label("Should get")).to_have_value("Lima")
    page.get_by_label("Set", exact=True).fill("not a name")
    page.get_by_role("button", name="Keep it").click()
    expect(page.get_by_role("alert")).to_contain_text("name of the set")
    page.get_by_label("Set", exact=True).fill("seen")
    page.get_by_label("Should get").fill("Lima\nLima, Peru")
    page.get_by_role("button", name="Keep it").click()
    expect(page.get_by_role("region", name="Questions", exact=True)).to_contain_text("Lima or Lima, Peru")
    page.get_by_label("Question", exact=True).fill("Who rules?")
    page.get_by_role("button", name="Add it").click()
    expect(page.get_by_role("region", name="Questions", exact=True).locator("tbody tr")).to_have_count(2)
    page.get_by_role("link", name=re.compile("Edit question 2")).click()
    page.get_by_role("button", name="Remove it").click()
    expect(page.get_by_role("region", name="Questions", exact=True).locator("tbody tr")).to_have_count(1)
    page.get_by_role("link", name="Remove the set…").click()
    page.get_by_role("button", name="Remove the set").click()
    expect(page.get_by_text("No set yet")).to_be_visible()
    assert almanac.questions.all() == []


def test_a_gate_asks_kept_questions(open_page: OpenPage, almanac: KnowledgeBase) -> None:
    almanac.questions.add("lands", [], actor="ann")
    page = open_page("trainer", "/console/keysets/1")
    page.get_by_label("Least share right").fill("much")
    page.get_by_role("button", name="Check with them").click()
    expect(page.get_by_role("heading", name="This form is not complete")).to_be_visible()
    page.goto("/console/keysets/1")
    page.get_by_label("Least share right").fill("0.9")
    page.get_by_role("button", name="Check with them").click()
    expect(page.locator("#job")).to_contain_text("waiting for a worker")
    expect(page.locator("#job")).to_contain_text("lands")
    expect(page.locator("#job")).to_contain_text("0.9")


def test_a_reader_sees_questions_and_changes_none(open_page: OpenPage, almanac: KnowledgeBase) -> None:
    almanac.questions.add("lands", [], actor="ann")
    page = open_page("reader", "/console/questions/lands")
    expect(page.get_by_role("button", name="Ask them all")).to_have_count(0)
    page.goto("/console/questions")
    expect(page.get_by_role("heading", name="Keep questions")).to_have_count(0)
