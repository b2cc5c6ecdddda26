"""The `openai` package against a served app with a tiny real model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from sqlalchemy import URL

from colmlm.kb.service import KnowledgeBase
from colmlm.model.lm.checkpoint import Checkpoint
from tests import servers
from tests.api.conftest import TEXT
from tests.api.tiny_server import TinyServer, eager_checkpoint, fill_with_tiny_keys, tiny_server

PROMPT = "The capital of Peru is"
MODEL = "tiny-3"
LOOKING_UP: dict[str, Any] = {"mode": "forced", "repetition_penalty": 1.2}
GREEDY: dict[str, Any] = {"model": MODEL, "max_tokens": 8, "temperature": 0}
UNKNOWN: list[Any] = [{"role": "user", "content": "Who was never written about?"}]
FINDING_NOTHING: dict[str, Any] = {"mode": "forced", "threshold": 1}


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return eager_checkpoint(tmp_path_factory.mktemp("eager"))


@pytest.fixture(scope="session")
def tiny_template(server: URL, checkpoint: Checkpoint) -> str:
    servers.fill(server, "tiny_template", lambda kb: fill_with_tiny_keys(kb, checkpoint))
    return "tiny_template"


@pytest.fixture
def template(request: pytest.FixtureRequest, template: str) -> str:
    return request.getfixturevalue("tiny_template") if "tiny" in request.fixturenames else template


@pytest.fixture
def tiny(kb: KnowledgeBase, checkpoint: Checkpoint) -> Iterator[TinyServer]:
    with tiny_server(kb, checkpoint) as started:
        yield started


@pytest.fixture
def client(tiny: TinyServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{tiny.address}/v1", api_key=tiny.keys["reader"], max_retries=0, timeout=60
    ) as opened:
        yield opened


def check_citations(tiny: TinyServer, cited: list[dict[str, Any]], text: str, generation_id: int) -> None:
    """Each says what stands in the text and in the document, and leads to the stored trace."""
    trace = tiny.kb.outputs.trace(generation_id)
    hits = [splice for splice in trace.splices if splice.outcome == "hit"]
    assert cited and [c["fact_id"] for c in cited] == [s.fact_id for s in hits]
    for citation in cited:
        document = citation["document"]
        assert text[citation["start"] : citation["end"]] == citation["value"] in ("Lima", "Titicaca")
        assert TEXT[document["start"] : document["end"]] == citation["value"]
        assert (document["title"], document["corpus"]) == ("Peru", "atlas")
    url, key = cited[0]["url"], tiny.keys["reader"]
    told = httpx.get(url, headers={"Authorization": f"Bearer {key}"}).json()
    assert told["generation_id"] == generation_id and told["output"] == trace.output
