"""Any sequence of edits, rekeys, restarts, damage and lagging readers answers as brute force over a dictionary does.

MACHINE_EXAMPLES=200 in the environment runs that many sequences, and longer ones.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings, strategies
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from sqlalchemy import URL

from colmlm.kb.corpus.format import AnnotatedDocument
from colmlm.kb.removal.erase import Erasure
from colmlm.kb.removal.forget import Forgetting
from colmlm.kb.removal.selector import Selector
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.settings import Settings
from tests.fakes import FakeEncoder, activated
from tests.kb.corpora import ask, document, ingest
from tests.servers import clone

WHO = {"actor": "machine", "reason": "test"}
PICKS = strategies.integers(0, 10**6)
EXAMPLES = int(os.environ.get("MACHINE_EXAMPLES", "0"))
SPECS = ("IDMap2,Flat", "IVF4,PQ8x4")  # of the first encoder's keyset and of the second's
FACTS = 20  # enough to train the second; fewer, and it is searched exactly


def edition(number: int, edition: int) -> AnnotatedDocument:
    """A text whose beginning changes from edition to edition, and whose fact stays with a stale key."""
    before = f"Edition {edition}. What was once asked under number {number:05} is answered thus: "
    return document(f"d{number}", before, (f"value {number}", f"Question {number}?"), ".")


class Machine(RuleBasedStateMachine):
    """`live`, `dead`: value by fact id. `abstaining`: the dead that stay in the index.

    `questions`: by fact id. `keyed`: facts that each encoder's keyset has a key of. `editions`: by document.
    """

    server: URL

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.live: dict[int, str] = {}
        self.dead: dict[int, str] = {}
        self.abstaining: set[int] = set()
        self.questions: dict[int, str] = {}
        self.encoders = [FakeEncoder(), FakeEncoder(salt="2")]
        self.keyed: list[set[int]] = [set(), set()]
        self.editions: dict[int, int] = {}
        self.active = 0
        self.count = 0

    @initialize()
    def start(self) -> None:
        home = Path(self.stack.enter_context(tempfile.TemporaryDirectory()))
        url = self.stack.enter_context(clone(self.server))
        self.settings = Settings(home=home, database_url=url, actor="machine")
        self.kb = KnowledgeBase.open(self.settings)
        self.other = KnowledgeBase.open(self.settings)
        ingest(self.kb, *(edition(n, 0) for n in range(FACTS)))
        for fact in self.kb.facts.find():
            assert fact.question is not None
            self.live[fact.fact_id], self.questions[fact.fact_id] = fact.value, fact.question
            self.editions[fact.fact_id] = 0
        self.rekey(0)

    def teardown(self) -> None:
        if hasattr(self, "kb"):
            self.ask_the_lagging_reader()
            self.kb.close()
            self.other.close()
        self.stack.close()

    @rule()
    def insert(self) -> None:
        self.count += 1
        question, value = f"Inserted {self.count}?", f"inserted {self.count}"
        (fact_id,) = self.kb.facts.add(question, value, **WHO).fact_ids
        self.live[fact_id], self.questions[fact_id] = value, question

    @rule(pick=PICKS)
    def update(self, pick: int) -> None:
        if self.live:
            fact_id = sorted(self.live)[pick % len(self.live)]
            self.live[fact_id] = f"updated {pick}"
            self.kb.facts.edit(fact_id, self.live[fact_id], **WHO)

    @rule(picks=strategies.lists(PICKS, min_size=1, max_size=6), abstain=strategies.booleans())
    def delete(self, picks: list[int], abstain: bool) -> None:
        def delete(fact_ids: list[int]) -> None:
            self.kb.facts.delete(fact_ids, abstain=abstain, **WHO)
            self.abstaining |= set(fact_ids) if abstain else set()

        self._move(picks, self.live, self.dead, delete)

    @rule(picks=strategies.lists(PICKS, min_size=1, max_size=3))
    def restore(self, picks: list[int]) -> None:
        def restore(fact_ids: list[int]) -> None:
            self.other.facts.restore(fact_ids, **WHO)
            self.abstaining -= set(fact_ids)

        self._move(picks, self.dead, self.live, restore)

    @rule(picks=strategies.lists(PICKS, min_size=1, max_size=3), abstain=strategies.booleans())
    def forget(self, picks: list[int], abstain: bool) -> None:
        def forget(fact_ids: list[int]) -> None:
            selector, policy = Selector(fact_ids=tuple(fact_ids)), "abstain" if abstain else "successor"
            run = Forgetting(self.kb).plan(selector, policy=policy, **WHO).run_id
            Forgetting(self.kb).apply(run, **WHO)
            self.abstaining |= set(fact_ids) if abstain else set()

        self._move(picks, self.live, self.dead, forget)

    @rule(pick=PICKS)
    def erase(self, pick: int) -> None:
        """A live fact or a deleted one; its question stays to be asked."""
        there = self.live | self.dead
        if there:
            fact_id = sorted(there)[pick % len(there)]
            Erasure(self.kb).erase([fact_id], **WHO)
            self.live.pop(fact_id, None)
            self.dead.pop(fact_id, None)
            for kept in (self.abstaining, *self.keyed):
                kept.discard(fact_id)

    def _move(
        self,
        picks: list[int],
        source: dict[int, str],
        target: dict[int, str],
        verb: Callable[[list[int]], None],
    ) -> None:
        chosen = {sorted(source)[pick % len(source)] for pick in picks if source}
        if chosen:
            verb(sorted(chosen))
            target.update({fact_id: source.pop(fact_id) for fact_id in chosen})

    @rule(pick=PICKS)
    def ingest_another_edition(self, pick: int) -> None:
        """The fact keeps its id, its corrections and its tombstone, and loses its keys, which are stale now."""
        fact_id = sorted(self.editions)[pick % len(self.editions)]
        self.editions[fact_id] += 1
        number = int(self.questions[fact_id].split()[1][:-1])
        report = ingest(self.kb, edition(number, self.editions[fact_id]))
        assert (report.replaced, report.facts) == (1, 0)
        for keyed in self.keyed:
            keyed.discard(fact_id)

    @rule(which=strategies.integers(0, 1))
    def rekey(self, which: int) -> None:
        self.kb.keysets.create(self.encoders[which].checkpoint, SPECS[which])
        self.kb.keysets.rekey(self.encoders[which], batch=8)
        self.keyed[which] |= {*self.live, *self.abstaining}

    @rule()
    def flip(self) -> None:
        for keyset in self._ready():
            activated(self.kb, keyset)
            self.active = 1 - self.active

    @rule()
    def retire(self) -> None:
        for keyset in self._ready():
            self.kb.keysets.retire(keyset)
            self.keyed[1 - self.active] = set()

    def _ready(self) -> list[int]:
        """The keyset that does not answer and could; there may be none."""
        return [keyset.keyset_id for keyset in self.kb.keysets.all() if keyset.state == "ready"]

    @rule()
    def snapshot(self) -> None:
        self.other.lookups.snapshot()

    @rule()
    def catch_up(self) -> None:
        assert self.other.lookups.catch_up() == self.kb.log.head_seq()

    @rule(pick=PICKS, bit=strategies.integers(0, 7), cut=strategies.booleans())
    def damage_a_snapshot(self, pick: int, bit: int, cut: bool) -> None:
        """And open the base again, which has to notice."""
        files = sorted(file for file in self.settings.index_directory.rglob("*") if file.is_file())
        if files:
            file = files[pick % len(files)]
            data = bytearray(file.read_bytes())
            at = pick // len(files) % len(data)
            data[at] ^= 1 << bit
            file.write_bytes(data[:at] if cut else data)
            self.reopen()

    @rule()
    def reopen(self) -> None:
        self.kb.close()
        self.kb = KnowledgeBase.open(self.settings)

    @rule()
    def ask_the_lagging_reader(self) -> None:
        self._answers_as_the_dictionary_does(self.other)

    @invariant()
    def answers_as_the_dictionary_does(self) -> None:
        if self.questions:
            self._answers_as_the_dictionary_does(self.kb)

    def _answers_as_the_dictionary_does(self, kb: KnowledgeBase) -> None:
        keyed, fact_ids = self.keyed[self.active], sorted(self.questions)
        found = ask(kb, self.encoders[self.active], *(self.questions[f] for f in fact_ids), threshold=0.95)
        answers = [
            (lookup.hits[0].fact_id, lookup.hits[0].value) if lookup.hits else lookup.abstained
            for lookup in found
        ]
        assert answers == [self._expected(f) if f in keyed else None for f in fact_ids]

    def _expected(self, fact_id: int) -> tuple[int, str] | int | None:
        if fact_id in self.live:
            return fact_id, self.live[fact_id]
        return fact_id if fact_id in self.abstaining else None

    @invariant()
    def nothing_is_missing_or_left_over(self) -> None:
        if self.questions:
            report = self.kb.upkeep.fsck()
            assert report.ok, report
            assert report.live_facts == len(self.live)
            assert report.unkeyed_facts == len({*self.live, *self.abstaining} - self.keyed[self.active])


@pytest.mark.slow(reason="draws many examples of edits")
def test_any_sequence_of_edits_answers_as_brute_force(server: URL):
    Machine.server = server
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=EXAMPLES or 6,
            stateful_step_count=60 if EXAMPLES else 16,
            derandomize=not EXAMPLES,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )
