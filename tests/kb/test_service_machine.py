"""Any sequence of edits, rekeys, restarts and lagging readers answers as brute force over a dictionary does."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, settings, strategies
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from sqlalchemy import URL

from kb.service import KnowledgeBase
from kb.settings import Settings
from tests.conftest import clone
from tests.fakes import FakeEncoder
from tests.kb.corpora import ask, ingest, numbered

WHO = {"actor": "machine", "reason": "test"}
PICKS = strategies.integers(0, 10**6)


class Machine(RuleBasedStateMachine):
    """`live`, `dead`: value by fact id. `questions`: by fact id. `keyed`: facts the active keyset has a key of."""

    server: URL

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.live: dict[int, str] = {}
        self.dead: dict[int, str] = {}
        self.questions: dict[int, str] = {}
        self.encoders = [FakeEncoder(), FakeEncoder(salt="2")]
        self.keyed: list[set[int]] = [set(), set()]
        self.active = 0
        self.count = 0

    @initialize()
    def start(self) -> None:
        home = Path(self.stack.enter_context(tempfile.TemporaryDirectory()))
        url = self.stack.enter_context(clone(self.server))
        self.settings = Settings(home=home, database_url=url, actor="machine")
        self.kb = KnowledgeBase.open(self.settings)
        self.other = KnowledgeBase.open(self.settings)
        ingest(self.kb, *numbered(6))
        for fact in self.kb.facts():
            assert fact.question is not None
            self.live[fact.fact_id], self.questions[fact.fact_id] = fact.value, fact.question
        self.rekey(0)

    def teardown(self) -> None:
        if self.stack and hasattr(self, "kb"):
            self.kb.close()
            self.other.close()
        self.stack.close()

    @rule()
    def insert(self) -> None:
        self.count += 1
        question, value = f"Inserted {self.count}?", f"inserted {self.count}"
        (fact_id,) = self.kb.insert(question, value, **WHO).fact_ids
        self.live[fact_id], self.questions[fact_id] = value, question

    @rule(pick=PICKS)
    def update(self, pick: int) -> None:
        if self.live:
            fact_id = sorted(self.live)[pick % len(self.live)]
            self.live[fact_id] = f"updated {pick}"
            self.kb.update(fact_id, self.live[fact_id], **WHO)

    @rule(picks=strategies.lists(PICKS, min_size=1, max_size=3))
    def delete(self, picks: list[int]) -> None:
        self._move(picks, self.live, self.dead, self.kb.delete)

    @rule(picks=strategies.lists(PICKS, min_size=1, max_size=3))
    def restore(self, picks: list[int]) -> None:
        self._move(picks, self.dead, self.live, self.other.restore)

    def _move(self, picks: list[int], source: dict[int, str], target: dict[int, str], verb: Any) -> None:
        chosen = {sorted(source)[pick % len(source)] for pick in picks if source}
        if chosen:
            verb(sorted(chosen), **WHO)
            target.update({fact_id: source.pop(fact_id) for fact_id in chosen})

    @rule(which=strategies.integers(0, 1))
    def rekey(self, which: int) -> None:
        self.kb.rekey(self.encoders[which], batch=2)
        self.keyed[which] |= set(self.live)

    @rule()
    def flip(self) -> None:
        ready = [keyset for keyset in self.kb.keysets() if keyset.state == "ready"]
        if ready:
            self.kb.activate(ready[0].keyset_id)
            self.active = 1 - self.active

    @rule()
    def snapshot(self) -> None:
        self.other.snapshot()

    @rule()
    def reopen(self) -> None:
        self.kb.close()
        self.kb = KnowledgeBase.open(self.settings)

    @invariant()
    def both_answer_as_the_dictionary_does(self) -> None:
        if not self.questions:
            return
        fact_ids = sorted(self.questions)
        for kb in (self.kb, self.other):
            found = ask(
                kb, self.encoders[self.active], *(self.questions[f] for f in fact_ids), threshold=0.95
            )
            answers = [
                (lookup.hits[0].fact_id, lookup.hits[0].value) if lookup.hits else None for lookup in found
            ]
            expected = [
                (f, self.live[f]) if f in self.live and f in self.keyed[self.active] else None
                for f in fact_ids
            ]
            assert answers == expected

    @invariant()
    def nothing_is_missing_or_left_over(self) -> None:
        if self.questions:
            report = self.kb.fsck()
            assert report.ok, report
            assert report.live_facts == len(self.live)
            assert report.unkeyed_facts == len(set(self.live) - self.keyed[self.active])


def test_any_sequence_of_edits_answers_as_brute_force(server: URL):
    Machine.server = server
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=8,
            stateful_step_count=12,
            derandomize=True,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )
