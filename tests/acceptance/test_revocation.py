"""Revoking a token holds at commit, in servers that verify many requests at once: no later request is let in."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import httpx
import pytest

from colmlm.kb.access.tokens import create_token
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.settings import Settings
from tests.acceptance.server import server_process
from tests.fakes import FakeEncoder
from tests.kb.corpora import CAPITAL, PERU, ingest

ROUNDS, CROWD = 25, 3
SECONDS = 120  # for an answer of a server that is only starting, on a busy machine


@pytest.mark.slow(reason="works on a real server for seconds")
def test_no_request_that_begins_after_a_revocation_is_let_in(
    kb: KnowledgeBase, settings: Settings, encoder: FakeEncoder
) -> None:
    ingest(kb, PERU)
    kb.keysets.rekey(encoder)
    body = {"queries": encoder.encode_questions([CAPITAL]).tolist(), "checkpoint_id": "fake"}

    def statuses(client: httpx.Client, secret: str) -> list[int]:
        """By the way of all requests and by the short one."""
        headers = {"Authorization": f"Bearer {secret}"}
        return [
            client.get("/v1/facts", headers=headers).status_code,
            client.post("/v1/lookups", json=body, headers=headers).status_code,
        ]

    with kb.sessions.begin() as session:
        crowd = create_token(session, "the crowd", "reader")
    with ExitStack() as running:
        servers = [
            running.enter_context(server_process(settings, COLMLM_LOG_LEVEL="warning")) for _ in range(2)
        ]
        clients = [
            running.enter_context(httpx.Client(base_url=one.address, timeout=SECONDS)) for one in servers
        ]
        assert [client.get("/healthz").status_code for client in clients] == [200, 200]
        for client in clients:
            running.enter_context(crowded(lambda client=client: statuses(client, crowd)))
        for number in range(ROUNDS):
            with kb.sessions.begin() as session:
                secret = create_token(session, f"token {number}", "reader")
            before = [statuses(client, secret) for client in clients]
            kb.access.revoke(f"token {number}", actor="tester")
            after = [statuses(client, secret) for client in clients]
            assert (before, after) == ([[200, 200]] * 2, [[401, 401]] * 2), number


@contextmanager
def crowded(statuses: Callable[[], list[int]]) -> Iterator[None]:
    """Keeps a server verifying for others meanwhile."""
    over = threading.Event()
    seen: set[int] = set()

    def ask() -> None:
        while not over.is_set():
            seen.update(statuses())

    threads = [threading.Thread(target=ask) for _ in range(CROWD)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert seen == {200}
