"""Nothing that is done later changes an answer of the past: it stays as it was, or says that it cannot be told.

MACHINE_EXAMPLES=200 in the environment runs that many sequences, and longer ones.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings, strategies
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from sqlalchemy import URL

from colmlm.kb.corpus.format import AnnotatedDocument
from colmlm.kb.errors import Conflict, KeysetMismatch
from colmlm.kb.lookup.records import AsOfLookup, Lookup
from colmlm.kb.removal.erase import Erasure
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.settings import Settings
from tests.fakes import FakeEncoder, Vectors, activated
from tests.kb.corpora import document, ingest
from tests.kb.log import rewriting
from tests.refusals import raises_code
from tests.servers import clone

WHO: dict[str, Any] = {"actor": "machine", "reason": "test"}
PICKS = strategies.integers(0, 10**6)
EXAMPLES = int(os.environ.get("MACHINE_EXAMPLES", "0"))
FACTS = 4
THRESHOLD = 0.9


class ContextEncoder(FakeEncoder):
    """Keys facts from what stands before them, so that a question finds one only by a key of its own."""

    def encode_documents(self, documents: Sequence[AnnotatedDocument]) -> list[Vectors]:
        return [self._stack([d.text[: span.start] for span in d.facts]) for d in documents]


def before(number: int, edition: int) -> str:
    """What stands before a fact: another edition differs further back than what a fact is known again by."""
    return f"Edition {edition}. What was once asked under number {number:05} is answered thus: "


def edition(number: int, edition: int) -> AnnotatedDocument:
    text = before(number, edition)
    return document(f"d{number}", text, (f"value {number}", f"Question {number}?"), ".")


def said(found: Lookup) -> tuple[object, ...]:
    """A lookup but for the last bits of its scores, which depend on how many rows were multiplied at once."""
    hits = tuple((hit.fact_id, hit.version, hit.value, hit.key_id, round(hit.score, 4)) for hit in found.hits)
    return hits, found.abstained, round(found.threshold, 6)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a question was answered with at a change; `missing` were redacted or without a key."""

    encoder: int
    seq: int
    query_D: Vectors
    said: tuple[object, ...]
    missing: int


class Machine(RuleBasedStateMachine):
    """Every answer is taken from the live base when it is the present, and asked for again when it is the past."""

    server: URL

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.encoders = [ContextEncoder(), ContextEncoder(salt="2")]
        self.editions = dict.fromkeys(range(FACTS), 0)
        self.answers: list[Answer] = []

    @initialize()
    def start(self) -> None:
        home = Path(self.stack.enter_context(tempfile.TemporaryDirectory()))
        url = self.stack.enter_context(clone(self.server))
        self.kb = KnowledgeBase.open(Settings(home=home, database_url=url, actor="machine"))
        ingest(self.kb, *(edition(n, 0) for n in self.editions))
        self.kb.keysets.rekey(self.encoders[0])
        self.ask()

    def teardown(self) -> None:
        if hasattr(self, "kb"):
            self.ask_again()
            self.kb.close()
        self.stack.close()

    @rule()
    def ask(self) -> None:
        """Keep what the base answers now, which the past must say of now too."""
        texts = [text for n, last in self.editions.items() for text in (f"Question {n}?", before(n, last))]
        for which, encoder in enumerate(self.encoders):
            queries, of = encoder._stack(texts), {"checkpoint_id": encoder.checkpoint.checkpoint_id}
            seq = self.kb.log.head_seq()
            try:
                now = self.kb.lookups.find(queries, k=2, **of)
            except KeysetMismatch:
                with raises_code("NotAnsweredThen"):
                    self.kb.lookups.as_of(seq).find(queries, k=2, **of)
                continue
            then = self.kb.lookups.as_of(seq).find(queries, k=2, **of)
            assert [said(one) for one in now] == [said(one) for one in then]
            self.answers += [
                Answer(which, seq, query_D, said(one), missing(one))
                for query_D, one in zip(queries, then, strict=True)
            ]

    @rule()
    def ask_again(self) -> None:
        for answer in self.answers:
            of = self.encoders[answer.encoder].checkpoint.checkpoint_id
            try:
                (found,) = self.kb.lookups.as_of(answer.seq).find(
                    answer.query_D[np.newaxis], checkpoint_id=of, k=2
                )
            except Conflict as error:
                assert error.code == "NotAnsweredThen" and "retired" in str(error)
                continue
            assert missing(found) >= answer.missing
            if missing(found) == answer.missing:
                assert said(found) == answer.said, (answer.seq, self.kb.log.changes(limit=1000))

    @rule(which=strategies.integers(0, 1), questions=strategies.booleans())
    def rekey(self, which: int, questions: bool) -> None:
        kinds = ("context", "question") if questions else ("context",)
        self.kb.keysets.rekey(self.encoders[which], kinds=kinds)

    @rule(pick=PICKS)
    def activate(self, pick: int) -> None:
        ready = [one.keyset_id for one in self.kb.keysets.all() if one.state == "ready"]
        if ready:
            activated(self.kb, ready[pick % len(ready)])

    @rule(pick=PICKS)
    def retire(self, pick: int) -> None:
        ready = [one.keyset_id for one in self.kb.keysets.all() if one.state == "ready"]
        if ready and pick % 3 == 0:  # seldom: it ends what can be asked
            self.kb.keysets.retire(ready[0])

    @rule(threshold=strategies.sampled_from((0.5, THRESHOLD, 1.0)))
    def set_threshold(self, threshold: float) -> None:
        self.kb.keysets.set_threshold(self.kb.keysets.active().keyset_id, threshold)

    @rule(pick=PICKS)
    def add_an_alias(self, pick: int) -> None:
        """A key by which the question of another fact finds this one."""
        live = self.kb.facts.find(limit=1000)
        if live:
            active = self.kb.keysets.active()
            (encoder,) = (e for e in self.encoders if e.checkpoint.checkpoint_id == active.checkpoint_id)
            key = encoder.encode_questions([f"Question {pick % FACTS}?"])
            facts = np.array([live[pick % len(live)].fact_id])
            self.kb.keysets.store_keys(active.keyset_id, facts, key, "alias", **WHO)

    @rule(pick=PICKS, abstain=strategies.booleans())
    def delete(self, pick: int, abstain: bool) -> None:
        if live := self.kb.facts.find(limit=1000):
            self.kb.facts.delete([live[pick % len(live)].fact_id], abstain=abstain, **WHO)

    @rule(pick=PICKS)
    def restore(self, pick: int) -> None:
        gone = [fact for fact in self.kb.facts.find(deleted=True, limit=1000) if fact.erased_seq is None]
        if gone:
            self.kb.facts.restore([gone[pick % len(gone)].fact_id], **WHO)

    @rule(pick=PICKS)
    def update(self, pick: int) -> None:
        if live := self.kb.facts.find(limit=1000):
            self.kb.facts.edit(live[pick % len(live)].fact_id, f"corrected {pick}", **WHO)

    @rule(pick=PICKS)
    def ingest_another_edition(self, pick: int) -> None:
        number = pick % FACTS
        self.editions[number] += 1
        ingest(self.kb, edition(number, self.editions[number]))

    @rule(pick=PICKS)
    def erase(self, pick: int) -> None:
        live = self.kb.facts.find(limit=1000)
        if live and pick % 3 == 0:
            Erasure(self.kb).erase([live[pick % len(live)].fact_id], **WHO)


def missing(found: AsOfLookup) -> int:
    return found.redacted + found.unkeyed


@pytest.mark.slow(reason="draws many examples of histories")
def test_no_later_change_alters_an_answer_of_the_past(server: URL) -> None:
    Machine.server = server
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=EXAMPLES or 6,
            stateful_step_count=40 if EXAMPLES else 25,
            deadline=None,
            derandomize=not EXAMPLES,
            database=None,
            phases=(Phase.generate, Phase.shrink) if EXAMPLES else (Phase.generate,),
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_keys_of_a_log_that_did_not_tell_their_ids_are_dated_by_the_facts_it_names(
    kb: KnowledgeBase,
) -> None:
    encoder = ContextEncoder()

    def ask(seq: int) -> list[tuple[object, ...]]:
        queries = encoder._stack([f"Question {n}?" for n in range(3)] + [before(n, 0) for n in range(3)])
        return [said(one) for one in kb.lookups.as_of(seq).find(queries, checkpoint_id="fake", threshold=0.9)]

    ingest(kb, *(edition(n, 0) for n in range(3)))
    kb.keysets.rekey(encoder)
    first = kb.log.head_seq()
    asked = {first: ask(first)}
    kb.keysets.rekey(encoder, kinds=("question",))
    second = kb.log.head_seq()
    asked[second] = ask(second)
    rewriting.forget(kb, "keys")
    assert asked[first] != asked[second]
    ingest(kb, edition(7, 0))
    kb.keysets.rekey(encoder)
    assert {seq: ask(seq) for seq in asked} == asked
