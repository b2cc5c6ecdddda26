"""Fixtures for the tests of erasures."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store import database
from colmlm.kb.store.embedded_server import EmbeddedServer
from colmlm.kb.store.settings import Settings


@pytest.fixture(scope="module")
def own_kb() -> Iterator[KnowledgeBase]:
    """A knowledge base on an embedded server that nobody else uses."""
    # Not tmp_path_factory: its folders are closed to the other user that a server runs as.
    with tempfile.TemporaryDirectory(prefix="colmlm-") as folder:
        Path(folder).chmod(0o755)
        settings = Settings(home=Path(folder), actor="tester")
        engine = database.connect_database(settings)
        database.migrate_database(engine)
        with KnowledgeBase(settings, engine) as opened:
            yield opened
        EmbeddedServer(settings.home / "postgres").stop()
