"""A knowledge base that may send webhooks to this machine, and a receiver."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.settings import Settings
from tests.receiver import LOOPBACK, Receiver, receiver


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return replace(settings, webhook_networks=LOOPBACK)


@pytest.fixture
def hook() -> Iterator[Receiver]:
    with receiver() as found:
        yield found


def edit(kb: KnowledgeBase, number: int) -> list[int]:
    """Adds that many facts, each in a change of its own, and gives the numbers of the changes."""
    return [
        kb.facts.add(f"Question {n}?", f"value {n}", actor="ann", reason=f"edit {n}").seq
        for n in range(number)
    ]
