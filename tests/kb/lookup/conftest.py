"""Fixtures of servers that share snapshots."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.settings import Settings
from tests.fakes import FakeEncoder
from tests.kb.corpora import ingest, numbered
from tests.kb.lookup.sharing_servers import FACTS, Opened
from tests.s3_server import s3_server


@pytest.fixture(scope="session")  # fsspec keeps its connection for good
def s3() -> Iterator[dict[str, str]]:
    pytest.importorskip("s3fs", reason="the extra s3 is not installed")
    pytest.importorskip("moto", reason="there is no stand-in for S3")
    with s3_server() as variables:
        yield variables


@pytest.fixture
def place(tmp_path: Path) -> str:
    (tmp_path / "shared").mkdir()
    return str(tmp_path / "shared")


@pytest.fixture
def server_on(settings: Settings, place: str) -> Iterator[Opened]:
    """Opens the base as a server on another machine does: with a home of its own, and the same shared place."""
    with ExitStack() as stack:

        def opened(machine: str) -> KnowledgeBase:
            home = settings.home / machine
            home.mkdir(parents=True, exist_ok=True)
            return stack.enter_context(
                KnowledgeBase.open(replace(settings, home=home, shared_snapshots=place))
            )

        yield opened


@pytest.fixture
def first(server_on: Opened, encoder: FakeEncoder) -> KnowledgeBase:
    """A server that has built the index of some facts, and shared it."""
    first = server_on("first")
    ingest(first, *numbered(FACTS))
    first.keysets.rekey(encoder)
    return first
