"""A worker is killed with -9 between a delivery and its record: the same message comes again, and none is lost."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator

import pytest
from sqlalchemy import text

from colmlm.kb import interpreter
from colmlm.kb.service import KnowledgeBase
from tests.gates import await_that, gate
from tests.kb.webhooks.conftest import edit
from tests.places import ROOT
from tests.receiver import Receiver

LOST = """
SELECT pg_terminate_backend(pid) FROM pg_locks l JOIN pg_stat_activity a USING (pid)
WHERE NOT l.granted AND a.datname = current_database()
"""
Start = Callable[[], subprocess.Popen[bytes]]


@pytest.fixture
def start(kb: KnowledgeBase) -> Iterator[Start]:
    """Starts a worker process on the knowledge base."""
    started = []

    def begin() -> subprocess.Popen[bytes]:
        url, home = kb.engine.url.render_as_string(hide_password=False), kb.settings.home
        command = interpreter.command("-m", "tests.kb.webhooks.process", url, home)
        started.append(subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.wait()


def test_a_kill_between_a_delivery_and_its_record_delivers_it_again_as_the_same_message(
    kb: KnowledgeBase, hook: Receiver, start: Start
) -> None:
    secret, webhook = kb.webhooks.add(hook.url)
    seqs = edit(kb, 5)
    url = kb.engine.url.render_as_string(hide_password=False)
    third = seqs[2]
    with gate(url, "UPDATE ON webhook", f"NEW.delivered_seq = {third}") as reached:
        worker = start()
        await_that(reached)  # the receiver took it, and that is not noted yet
        worker.kill()
        worker.wait()
        with kb.engine.begin() as connection:  # what it had sent to the database dies with it
            connection.execute(text(LOST))
    assert hook.taken() == seqs[:3]
    assert kb.webhooks.show(webhook.webhook_id).delivered_seq == seqs[1]
    start()
    hook.await_number(6)
    assert hook.taken() == [*seqs[:3], *seqs[2:]]
    assert hook.names()[2] == hook.names()[3] and len(set(hook.names())) == 5
    for one in hook.received:
        one.verified(secret)
