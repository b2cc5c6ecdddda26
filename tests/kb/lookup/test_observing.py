"""Whoever watches sees what a lookup does, and nobody watching changes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from colmlm.kb.lookup.records import NOBODY, Lookup
from colmlm.kb.service import KnowledgeBase
from tests.fakes import FakeEncoder
from tests.kb.corpora import CAPITAL, PERU, ask, ingest


@dataclass
class Watcher:
    seen: list[str] = field(default_factory=list)
    lookups: list[Lookup] = field(default_factory=list)

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        self.seen.append(part)
        yield
        self.seen.append(f"/{part}")

    def looked_up(self, lookups: Sequence[Lookup]) -> None:
        self.lookups += lookups


def test_an_observer_sees_the_parts_in_each_other_and_the_answers(kb: KnowledgeBase, encoder: FakeEncoder):
    ingest(kb, PERU)
    kb.keysets.rekey(encoder)
    assert kb.searcher.observer is NOBODY
    unwatched = ask(kb, encoder, CAPITAL, "nothing?")
    watcher = Watcher()
    kb.searcher.observer = watcher
    watched = ask(kb, encoder, CAPITAL, "nothing?")
    assert watcher.seen[0] == "lookup" and watcher.seen[-1] == "/lookup"
    inner = watcher.seen[1:-1]
    assert inner[:4] == ["search", "/search", "select", "/select"] and set(inner) == set(inner[:4])
    assert watched == unwatched == watcher.lookups


def test_standing_says_how_far_the_index_is_and_moves_nothing(kb: KnowledgeBase, encoder: FakeEncoder):
    ingest(kb, PERU)
    assert (
        kb.lookups.standing().applied_seq,
        kb.lookups.standing().lag,
        kb.lookups.standing().snapshot_at,
    ) == (None, None, None)
    kb.keysets.rekey(encoder)
    ask(kb, encoder, CAPITAL)
    kb.facts.edit(1, "Cusco", actor="tester", reason="lag")
    for _ in range(2):
        found = kb.lookups.standing()
        assert (found.lag, found.head_seq - 1) == (1, found.applied_seq)
    assert found.snapshot_at is not None
    kb.lookups.catch_up()
    assert kb.lookups.standing().lag == 0
