"""A knowledge base that may send webhooks to this machine, and a receiver."""

from __future__ import annotations

from dataclasses import replace

import pytest

from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.settings import Settings
from tests.receiver import LOOPBACK


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return replace(settings, webhook_networks=LOOPBACK)


def edit(kb: KnowledgeBase, number: int) -> list[int]:
    """Adds that many facts, each in a change of its own, and gives the numbers of the changes."""
    return [
        kb.facts.add(f"Question {n}?", f"value {n}", actor="ann", reason=f"edit {n}").seq
        for n in range(number)
    ]
