"""A worker that is told to stop before it has begun."""

from __future__ import annotations

import logging
import threading
from contextlib import ExitStack
from dataclasses import replace

import pytest

from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.settings import Settings
from tests.gateways import gateway
from tests.kb.jobs.process import worker


def test_a_worker_stopped_while_it_connects_ends_without_a_complaint(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    with ExitStack() as opened:
        gate, url = opened.enter_context(gateway(str(settings.database_url)))
        kb = opened.enter_context(KnowledgeBase.open(replace(settings, database_url=url)))
        working = worker(kb)
        gate.is_open.clear()
        running = threading.Thread(target=working.run)
        with caplog.at_level(logging.WARNING):
            running.start()
            assert gate.knocked.wait(20)
            working.stop()
            gate.is_open.set()
            running.join()
    assert [record.message for record in caplog.records] == []
