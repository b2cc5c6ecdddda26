"""Revoking a token holds at commit, in servers that verify many requests at once: no later request is let in."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import httpx

from colmlm.kb.access.tokens import create_token
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.settings import Settings
from tests.acceptance.server import server_process

ROUNDS, CROWD = 25, 3
SECONDS = 120  # for an answer of a server that is only starting, on a busy machine


def test_no_request_that_begins_after_a_revocation_is_let_in(kb: KnowledgeBase, settings: Settings) -> None:
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
            running.enter_context(crowded(client, crowd))
        for number in range(ROUNDS):
            with kb.sessions.begin() as session:
                secret = create_token(session, f"token {number}", "reader")
            asked = {"Authorization": f"Bearer {secret}"}
            before = [client.get("/v1/facts", headers=asked).status_code for client in clients]
            kb.access.revoke(f"token {number}", actor="tester")
            after = [client.get("/v1/facts", headers=asked).status_code for client in clients]
            assert (before, after) == ([200, 200], [401, 401]), number


@contextmanager
def crowded(client: httpx.Client, secret: str) -> Iterator[None]:
    """Keeps a server verifying for others meanwhile."""
    over = threading.Event()
    statuses: set[int] = set()

    def ask() -> None:
        while not over.is_set():
            statuses.add(client.get("/v1/facts", headers={"Authorization": f"Bearer {secret}"}).status_code)

    threads = [threading.Thread(target=ask) for _ in range(CROWD)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert statuses == {200}
