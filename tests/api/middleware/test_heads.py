"""HEAD is answered wherever GET is, with the head of its response alone."""

from __future__ import annotations

import time
from collections.abc import Callable

import httpx
import pytest

from colmlm.api.app import create_app
from colmlm.api.middleware.gate import GatedApp
from colmlm.kb.service import KnowledgeBase
from tests.api.conftest import Client, Connect
from tests.api.serving import served


def wait_for(is_so: Callable[[], bool], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, "it is still not so"
        time.sleep(0.02)


def test_a_head_is_that_of_the_get(reader: Client, subtests: pytest.Subtests) -> None:
    for path in ("/v1/facts", "/v1/corpora", "/v1/facts/998", "/healthz", "/metrics", "/v1/nothing"):
        with subtests.test(path=path):
            whole, head = reader.get(path), reader.head(path)
            assert head.status_code == whole.status_code and head.content == b""
            names = ["content-type", "cache-control", "x-content-type-options"]
            assert [head.headers[name] for name in names] == [whole.headers[name] for name in names]
            if path.startswith("/v1/corpora") or path == "/healthz":  # what no id of the request stands in
                assert head.headers["content-length"] == str(len(whole.content))


def test_a_head_needs_what_its_get_needs(app: GatedApp, connect: Connect) -> None:
    client = connect(app, "decoder")
    assert client.head("/v1/facts").status_code == 403
    del client.headers["Authorization"]
    assert client.head("/v1/facts").status_code == 401 and client.head("/healthz").status_code == 200


def test_what_is_not_read_has_no_head(reader: Client) -> None:
    refused = reader.head("/v1/completions")
    assert refused.status_code == 405 and "GET" not in refused.headers["allow"]


def test_the_head_of_a_stream_ends_it(atlas: KnowledgeBase, new_token: Callable[[str], str]) -> None:
    app = create_app(atlas)
    headers = {"Authorization": f"Bearer {new_token('auditor')}"}
    with served(app) as address:
        head = httpx.head(f"{address}/v1/changes/events", headers=headers, timeout=30)
        assert head.status_code == 200 and head.headers["content-type"].startswith("text/event-stream")
        wait_for(lambda: sum(app.gate.limiters.slots_taken().values()) == 0)
