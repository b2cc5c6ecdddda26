"""From a file on somebody's disk to a citation of it."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from playwright.sync_api import expect

from colmlm.cli.composition.handlers import HANDLERS, ingest
from colmlm.kb.corpus.format import AnnotatedDocument, FactSpan, to_record
from colmlm.kb.jobs.kinds import Ingest
from colmlm.kb.jobs.worker import JobRun, Worker
from colmlm.kb.service import KnowledgeBase
from tests.api.console.conftest import OpenPage, ask
from tests.fakes import FakeEncoder

pytestmark = pytest.mark.browser

TEXT, QUESTION = "Chile is governed from Santiago.", "Which city is Chile governed from?"


@pytest.fixture
def chile(tmp_path: Path) -> Path:
    start = TEXT.index("Santiago")
    fact = FactSpan(start, start + len("Santiago"), "Santiago", QUESTION, "Santiago")
    file = tmp_path / "chile.jsonl"
    file.write_text(json.dumps(to_record(AnnotatedDocument("chile", TEXT, (fact,), title="Chile"))) + "\n")
    return file


def test_uploaded_file_is_cited(
    open_page: OpenPage, almanac: KnowledgeBase, encoder: FakeEncoder, chile: Path
) -> None:
    page = open_page("operator", "/console/corpora")
    page.get_by_label("Corpus", exact=True).fill("andes")
    page.get_by_label("They are").select_option("annotated")
    page.get_by_role("button", name="Upload").click()
    expect(page.locator("#file-mistake")).to_contain_text("at least one file")
    expect(page.get_by_label("Corpus", exact=True)).to_have_value("andes")
    page.get_by_label("Files", exact=True).set_input_files(chile)
    page.get_by_role("button", name="Upload").click()
    expect(page).to_have_url(re.compile(r"/console/jobs/\d+$"))
    expect(page.locator("#job")).to_contain_text("waiting for a worker")
    expect(page.locator("#job")).to_contain_text("No worker was heard of")

    def ingest_and_key(run: JobRun, work: Ingest) -> object:
        taken = ingest(run, work)
        run.kb.keysets.rekey(encoder)
        return taken

    worker = Worker(almanac, {**HANDLERS, Ingest.kind: ingest_and_key}, beat_seconds=0.05)
    with ThreadPoolExecutor(1) as beside:  # the browser's loop has this thread
        assert beside.submit(worker.run, once=True).result() == 1
    expect(page.get_by_role("heading", name="It is done")).to_be_visible()
    post = "async url => (await fetch(url, {method: 'POST', body: new URLSearchParams()})).status"
    assert page.evaluate(post, f"{page.url}/cancel") == 409, "what is done is not cancelled"
    page.get_by_role("link", name="Ask about it").click()
    ask(page, QUESTION)
    expect(page.locator("a.splice")).to_contain_text("Santiago")
    page.goto("/console/corpora")
    expect(page.get_by_role("region", name="Corpora", exact=True)).to_contain_text("andes")
    expect(page.get_by_role("region", name="Files on their way in")).to_contain_text("succeeded")


def test_job_is_cancelled_and_seen_only_by_who_may_ask_for_it(
    open_page: OpenPage, almanac: KnowledgeBase, chile: Path
) -> None:
    page = open_page("operator", "/console/corpora")
    page.get_by_label("Corpus", exact=True).fill("andes")
    page.get_by_label("They are").select_option("annotated")
    page.get_by_label("Files", exact=True).set_input_files(chile)
    page.get_by_role("button", name="Upload").click()
    page.get_by_role("button", name="Cancel the job").click()
    expect(page.get_by_role("heading", name="It was cancelled")).to_be_visible()
    job = page.url
    reader = open_page("reader", "/console/corpora")
    expect(reader.get_by_text("Take files in")).to_have_count(0)
    expect(reader.get_by_role("heading", name="On their way in")).to_have_count(0)
    reader.goto(job)
    expect(reader.get_by_role("alert")).to_contain_text("Use a token")


def test_gate_is_asked_for_as_a_job(open_page: OpenPage, almanac: KnowledgeBase) -> None:
    page = open_page("trainer", "/console/keysets/1")
    page.get_by_role("button", name="Check the gate").click()
    expect(page.locator("#job")).to_contain_text("waiting for a worker")
    page.goto("/console/jobs")
    expect(page.get_by_role("region", name="Jobs")).to_contain_text("gate")
