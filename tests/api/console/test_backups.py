"""Backups written and verified from the console, by a worker."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from playwright.sync_api import expect

from colmlm.cli.composition.handlers import HANDLERS
from colmlm.kb.backup.write import backup_folder
from colmlm.kb.jobs.worker import Worker
from colmlm.kb.service import KnowledgeBase
from tests.api.console.conftest import OpenPage

pytestmark = pytest.mark.browser


def work(kb: KnowledgeBase) -> None:
    """Do the one job that waits. Beside the browser, whose loop has this thread."""
    with ThreadPoolExecutor(1) as beside:
        assert beside.submit(Worker(kb, HANDLERS, beat_seconds=0.05).run, once=True).result() == 1


def test_backup_is_written_verified_and_found_damaged(open_page: OpenPage, almanac: KnowledgeBase) -> None:
    page = open_page("admin", "/console/backups")
    expect(page.get_by_text("No backup yet")).to_be_visible()
    page.get_by_label("Name", exact=True).fill("../monday")
    page.get_by_role("button", name="Write it").click()
    expect(page.locator("#name-mistake")).to_contain_text("letters, digits")
    page.get_by_label("Name", exact=True).fill("monday.backup")
    page.get_by_role("button", name="Write it").click()
    expect(page.locator("#job")).to_contain_text("waiting for a worker")
    work(almanac)
    expect(page.get_by_role("heading", name="It is done")).to_be_visible()

    page.goto("/console/backups")
    row = page.get_by_role("region", name="Backups", exact=True).locator("tbody tr")
    expect(row).to_contain_text(f"change {almanac.log.head_seq()}")
    expect(row).to_contain_text("not since it was written")
    page.get_by_role("button", name="Verify monday.backup").click()
    work(almanac)
    page.goto("/console/backups")
    expect(row).to_contain_text("intact")

    file = backup_folder(almanac.settings) / "monday.backup"
    held = bytearray(file.read_bytes())
    held[len(held) // 2] ^= 1
    with file.open("r+b") as stream:
        stream.write(held)
    page.reload()
    expect(row).to_contain_text("not since it was written")
    page.get_by_role("button", name="Verify monday.backup").click()
    work(almanac)
    expect(page.get_by_role("heading", name="It failed")).to_be_visible()
    page.goto("/console/backups")
    expect(row).to_contain_text("refused")

    page.get_by_label("Name", exact=True).fill("monday.backup")
    page.get_by_role("button", name="Write it").click()
    expect(page.locator("#name-mistake")).to_contain_text("There is one of this name")
    page.get_by_label("Replace one of this name").check()
    page.get_by_role("button", name="Write it").click()
    work(almanac)
    page.goto("/console/backups")
    expect(row).to_contain_text("not since it was written")
