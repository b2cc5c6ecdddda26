"""Clients of others get what the table of the docs says, at their current releases."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from colmlm.kb.service import KnowledgeBase
from colmlm.model.lm.checkpoint import Checkpoint
from tests.acceptance.openai_clients import CLIENTS, ask
from tests.api.tiny_server import TinyServer, eager_checkpoint, tiny_server
from tests.places import ROOT

ENVIRONMENTS = os.environ.get("FOREIGN_CLIENTS")
PAGE = ROOT / "docs" / "integrate" / "openai.md"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return eager_checkpoint(tmp_path_factory.mktemp("eager"))


@pytest.fixture
def tiny(kb: KnowledgeBase, checkpoint: Checkpoint) -> Iterator[TinyServer]:
    with tiny_server(kb, checkpoint) as started:
        yield started


def table() -> Mapping[str, Mapping[str, str]]:
    """Gives what the docs say of each client, by call."""
    section = PAGE.read_text(encoding="utf-8").partition("## Other clients")[2].partition("\n#")[0]
    head, _, *rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in section.splitlines()
        if line.startswith("|")
    ]
    return {
        re.sub(r" [0-9][0-9.]*$", "", name): dict(zip(head[1:], cells, strict=True)) for name, *cells in rows
    }


def test_the_table_has_every_client() -> None:
    assert set(table()) == set(CLIENTS)


@pytest.mark.slow(reason="installs programs of others")
@pytest.mark.registry
@pytest.mark.timeout(900)
@pytest.mark.skipif(ENVIRONMENTS is None, reason="FOREIGN_CLIENTS names no folder to install clients into")
@pytest.mark.skipif(sys.platform == "win32", reason="environments have their programs elsewhere there")
@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_gets_what_the_table_says(tiny: TinyServer, name: str) -> None:
    found = ask(name, tiny, Path(str(ENVIRONMENTS)).absolute())
    said = table()[name]
    for call, outcome in found.items():
        if call in said:
            assert (outcome == "green") == said[call].startswith("yes"), (call, outcome)
