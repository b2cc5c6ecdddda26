"""Who answers one byte after the other holds nobody longer than the deadline."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from colmlm.kb.corpus.raw.web import Fetcher
from colmlm.kb.webhooks.messages import message_of_test
from colmlm.kb.webhooks.sending import Reach, Sender
from tests.receiver import LOOPBACK

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n"
DRIPS = 100  # of a tenth of a second each; then the answer is complete


@pytest.fixture(params=["headers", "body"])
def dripping(request: pytest.FixtureRequest) -> Iterator[str]:
    """Answers the first request a byte at a time, within the headers or the body, and gives its own address."""
    begin = ANSWER + (b"x-drip: " if request.param == "headers" else b"content-length: 100\r\n\r\n")
    end = b"\r\ncontent-length: 0\r\n\r\n" if request.param == "headers" else b""
    over = threading.Event()

    def serve() -> None:
        with suppress(OSError), listening.accept()[0] as connection:
            connection.recv(65_536)
            connection.sendall(begin)
            for _ in range(DRIPS):
                if over.wait(0.1):
                    return
                connection.sendall(b"a")
            connection.sendall(end)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        serving = threading.Thread(target=serve)
        serving.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
        finally:
            over.set()
            serving.join()


def test_a_page_is_waited_for_no_longer_than_its_time(tmp_path: Path, dripping: str) -> None:
    with Fetcher(tmp_path, allow_private=True, seconds=0.5) as fetcher:
        found = fetcher.fetch([dripping], lambda done, total: None)
    assert [refusal.reason for refusal in found.refusals] == ["it took too long"] and not found.files


@pytest.mark.parametrize("dripping", ["headers"], indirect=True)
def test_a_receiver_is_waited_for_no_longer_than_its_time(dripping: str) -> None:
    with Sender(dripping, bytes(32), Reach.of(LOOPBACK), seconds=0.5) as sender:
        done = sender.send(message_of_test(1, "abc", "standard")).delivery
    assert not done.ok and done.error == "no answer within 0.5 seconds"


@pytest.mark.parametrize("dripping", ["body"], indirect=True)
def test_a_receiver_that_took_a_message_need_not_finish_its_answer(dripping: str) -> None:
    with Sender(dripping, bytes(32), Reach.of(LOOPBACK), seconds=0.5) as sender:
        done = sender.send(message_of_test(1, "abc", "standard")).delivery
    assert done.ok and done.status == 200
