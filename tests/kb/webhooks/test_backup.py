"""A backup has no webhook, so that no secret leaves with it and no copy sends its changes to others' receivers."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from colmlm.kb.backup.write import archive_tables, write_backup
from colmlm.kb.log.signing import signing_key
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store import database
from colmlm.kb.store.settings import Settings
from colmlm.kb.webhooks.webhooks import Deliverer
from tests.debian_servers import replicated_pair
from tests.kb.webhooks.conftest import edit
from tests.places import ROOT
from tests.receiver import LOOPBACK, Receiver
from tests.servers import DEBIANS


def test_a_backup_has_no_webhook(kb: KnowledgeBase, hook: Receiver, tmp_path: Path) -> None:
    kb.webhooks.add(hook.url)
    written = write_backup(kb, tmp_path / "kb.backup", signing_key(kb.settings.home))
    assert "webhook" not in written.rows and written.rows["change"] == 1
    assert "webhook" not in {table.name for table in archive_tables()}
    assert b"whsec_" not in (tmp_path / "kb.backup").read_bytes()


def test_a_dump_as_the_page_on_backups_says_has_no_webhook(tmp_path: Path, hook: Receiver) -> None:
    if not DEBIANS.is_dir():
        pytest.skip(f"no PostgreSQL 15 in {DEBIANS}")
    page = ROOT / "docs" / "production" / "backup.md"
    found = re.search(r"`pg_dump([^`]*)` of the database", page.read_text())
    assert found is not None
    with replicated_pair() as pair:
        original = Settings(home=tmp_path / "a", database_url=pair.url, webhook_networks=LOOPBACK)
        engine = database.connect_database(original)
        database.migrate_database(engine)
        engine.dispose()
        with KnowledgeBase.open(original) as kb:
            kb.webhooks.add(hook.url)
            edit(kb, 2)
        where = ["-h", str(pair.primary.folder), "-U", "postgres"]
        dumped = [str(DEBIANS / "pg_dump"), *found[1].split(), *where, "colmlm"]
        dump = subprocess.run(dumped, check=True, capture_output=True).stdout
        pair.primary.execute("CREATE DATABASE copy")
        restored = [str(DEBIANS / "psql"), "-q", "-v", "ON_ERROR_STOP=1", *where, "copy"]
        subprocess.run(restored, check=True, input=dump, stdout=subprocess.DEVNULL)
        url = pair.url.replace("/colmlm?", "/copy?")
        copy = Settings(home=tmp_path / "b", database_url=url, webhook_networks=LOOPBACK)
        with KnowledgeBase.open(copy) as kb:
            assert kb.log.head_seq() == 3 and kb.webhooks.all() == []
            Deliverer(kb).run_once()
    assert hook.received == []
