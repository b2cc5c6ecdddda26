"""Opening an index never waits for another process in silence, nor without end for a copy that makes no progress."""

from __future__ import annotations

import fcntl
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

import pytest

from colmlm.kb.lookup import shared
from colmlm.kb.lookup.open_replicas import fetch_snapshot_apart
from colmlm.kb.lookup.snapshot_files import locked_directory
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.settings import Settings
from colmlm.kb.store.waits import has_turn
from tests.fakes import FakeEncoder
from tests.kb.corpora import ingest, numbered, values

Servers = tuple[KnowledgeBase, KnowledgeBase, int]


@pytest.fixture
def servers(settings: Settings, encoder: FakeEncoder) -> Iterator[Servers]:
    """Two servers that share snapshots, of which the first has built an index and shared it."""
    (place := settings.home.parent / "shared").mkdir()
    there = replace(settings, shared_snapshots=str(place))
    with ExitStack() as stack:
        first, second = (
            stack.enter_context(KnowledgeBase.open(replace(there, home=settings.home / machine)))
            for machine in ("first", "second")
        )
        ingest(first, *numbered(3))
        yield first, second, first.keysets.rekey(encoder).keyset_id


def test_a_copy_that_makes_no_progress_is_given_up(
    servers: Servers, encoder: FakeEncoder, caplog: pytest.LogCaptureFixture
) -> None:
    _, second, keyset_id = servers
    with second.sessions() as session:
        folder = shared.folder_of(session, second.settings)
        assert folder is not None
        directory = second.settings.index_directory / folder.name
        directory.mkdir(parents=True)
        with locked_directory(directory, fcntl.LOCK_EX):  # by a process that hangs
            fetch_snapshot_apart(session, keyset_id, encoder.dim, second.settings, 0.5)
        assert "nothing came for" in caplog.text and list(directory.iterdir()) == []
        fetch_snapshot_apart(session, keyset_id, encoder.dim, second.settings, 0.5)
    assert [file.suffix for file in directory.glob("*.faiss")] == [".faiss"]


def test_who_waits_for_another_that_builds_says_so_once_a_minute(
    servers: Servers, encoder: FakeEncoder, caplog: pytest.LogCaptureFixture
) -> None:
    first, second, keyset_id = servers
    with first.sessions() as session:
        folder = shared.folder_of(session, first.settings)
        assert folder is not None
        folder.remove(folder.names())
        assert has_turn(session, keyset_id)
        opening = threading.Thread(target=second.lookups.catch_up)
        with caplog.at_level(logging.WARNING):
            opening.start()
            time.sleep(2.5)  # in which it looks several times
            assert opening.is_alive()
            said = [line for line in caplog.messages if "another process builds the index" in line]
        session.rollback()
    opening.join()
    assert len(said) == 1 and f"keyset {keyset_id}" in said[0]
    assert values(second, encoder, ["Question 1?"]) == ["value 1"]
