"""A backup has no webhook, so that no secret leaves with it and no copy sends its changes to others' receivers."""

from __future__ import annotations

from pathlib import Path

from colmlm.kb.backup.write import tables, write_backup
from colmlm.kb.log.signing import signing_key
from colmlm.kb.service import KnowledgeBase
from tests.receiver import Receiver


def test_a_backup_has_no_webhook(kb: KnowledgeBase, hook: Receiver, tmp_path: Path) -> None:
    kb.webhooks.add(hook.url)
    written = write_backup(kb, tmp_path / "kb.backup", signing_key(kb.settings.home))
    assert "webhook" not in written.rows and written.rows["change"] == 1
    assert "webhook" not in {table.name for table in tables()}
    assert b"whsec_" not in (tmp_path / "kb.backup").read_bytes()
