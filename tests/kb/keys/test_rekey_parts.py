"""A rekey that processes elsewhere work in parts, whatever they do of it and how often."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from sqlalchemy import text

from colmlm.kb.errors import InvalidValue
from colmlm.kb.evidence.records import NewOutput, Splice
from colmlm.kb.keys.records import RekeyPart
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.settings import Settings
from tests.fakes import FakeEncoder, TurnedEncoder
from tests.kb.corpora import ingest, numbered

WHO = {"actor": "tester", "reason": "test"}


class Elsewhere:
    """Works parts in other knowledge bases on the same database, each `times` over, the last one first or `in_order`.

    With `lost`, what the first time stored is never heard of, as where a process dies after its commit.
    """

    def __init__(
        self,
        settings: Settings,
        encoder: FakeEncoder,
        times: int = 1,
        share: int = 1,
        *,
        in_order: bool = False,
        lost: bool = False,
    ) -> None:
        self.settings, self.encoder, self.times, self.share = settings, encoder, times, share
        self.in_order, self.lost = in_order, lost
        self.asked: list[list[RekeyPart]] = []
        self.ended = False

    def __call__(self, parts: Sequence[RekeyPart]) -> Generator[int, None, None]:
        self.asked.append(list(parts))
        try:
            with KnowledgeBase.open(self.settings) as own:
                for part in [*(parts if self.in_order else reversed(parts))][:: self.share]:
                    yield 0
                    for time in range(self.times):
                        stored = own.keysets.rekey_part(self.encoder, part)
                        yield 0 if self.lost and time == 0 else stored
        finally:
            self.ended = True


@pytest.mark.slow(reason="keys a corpus several times")
def test_parts_worked_backwards_and_twice_give_the_keys_of_one_process(
    kb: KnowledgeBase, settings: Settings
) -> None:
    ingest(kb, *numbered(300))
    for n in range(30):
        kb.facts.add(f"Without a document {n}?", f"one {n}", **WHO)
    there, here = Elsewhere(settings, FakeEncoder("ray"), times=2), FakeEncoder("ray")
    told: list[tuple[int, int]] = []
    both = ("context", "question")
    made = kb.keysets.rekey(
        here, batch=8, kinds=both, elsewhere=there, on_facts=lambda done, total: told.append((done, total))
    )
    assert made.num_unkeyed == 0 and told[-1][0] == told[-1][1] == made.num_keys
    assert [parts[0].queue for parts in there.asked] == ["context", "question of a document", "question"]
    assert here.calls == [] and sum(there.encoder.calls) == 300, "no document was encoded twice"
    spans = [(part.first, part.last) for part in there.asked[0]]
    assert all(last < first for (_, last), (first, _) in pairwise(spans))
    ids, keys = kb.keysets.keys(made.keyset_id)
    alone = np.concatenate(FakeEncoder("ray").encode_documents(list(kb.corpora.export("lands"))))
    assert len(set(ids.tolist())) == 300 and np.allclose(keys, alone, atol=1e-3)
    assert kb.upkeep.fsck().ok


@pytest.mark.timeout(60)
def test_parts_of_predicted_keys_end_where_another_part_is_asked_for(
    kb: KnowledgeBase, settings: Settings
) -> None:
    ingest(kb, *numbered(240))
    kb.keysets.rekey(FakeEncoder())
    adapted, _ = kb.keysets.adapt(TurnedEncoder(), sample=120)
    with kb.engine.connect() as connection:
        keys = "SELECT max(f.document_id) FROM fact f JOIN fact_key k ON k.fact_id = f.id WHERE k.id IN"
        predicted = (
            "(SELECT max(id) FROM fact_key WHERE keyset_id = :keyset)"  # the newest keys are the predicted
        )
        document = connection.scalar(text(f"{keys} {predicted}"), {"keyset": adapted.keyset_id})
    fact = next(one for one in kb.facts.every() if one.source and one.source.document_id == document)
    splice = Splice(0, len(fact.value), "hit", fact.fact_id, fact.version, 0.9)
    kb.outputs.record(NewOutput("p", fact.value, "fake", "forced", kb.log.head_seq(), (splice,)))
    there, here = Elsewhere(settings, TurnedEncoder(), in_order=True), TurnedEncoder()
    made = kb.keysets.rekey(here, replace=True, batch=8, elsewhere=there)
    assert made.num_predicted == 0 and len(there.asked[0]) > 1
    assert sum(there.encoder.calls) + sum(here.calls) == 120, "no document was encoded twice"


def test_progress_ends_at_the_total_where_a_process_dies_after_its_commit(
    kb: KnowledgeBase, settings: Settings
) -> None:
    ingest(kb, *numbered(100))
    there = Elsewhere(settings, FakeEncoder(), times=2, lost=True)
    told: list[tuple[int, int]] = []
    kb.keysets.rekey(
        FakeEncoder(), batch=10, elsewhere=there, on_facts=lambda done, total: told.append((done, total))
    )
    assert told[-1] == (100, 100)


def test_what_others_leave_is_done_here(kb: KnowledgeBase, settings: Settings) -> None:
    ingest(kb, *numbered(100))
    there, here = Elsewhere(settings, FakeEncoder(), share=10_000), FakeEncoder()
    made = kb.keysets.rekey(here, batch=10, elsewhere=there)
    assert made.num_unkeyed == 0 and sum(there.encoder.calls) == 90 and sum(here.calls) == 10


def test_a_queue_of_one_batch_is_not_sent_anywhere(kb: KnowledgeBase, settings: Settings) -> None:
    ingest(kb, *numbered(20))
    there = Elsewhere(settings, FakeEncoder())
    assert kb.keysets.rekey(FakeEncoder(), elsewhere=there).num_unkeyed == 0 and there.asked == []


def test_whoever_works_elsewhere_is_ended_where_the_work_is(kb: KnowledgeBase, settings: Settings) -> None:
    ingest(kb, *numbered(100))
    there = Elsewhere(settings, FakeEncoder())

    def cancel(done: int, total: int) -> None:
        if done >= 30:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        kb.keysets.rekey(FakeEncoder(), batch=10, elsewhere=there, on_facts=cancel)
    assert there.ended and kb.keysets.all()[0].num_keys == 30
    assert kb.keysets.rekey(FakeEncoder()).num_unkeyed == 0


def test_a_part_of_another_base_is_refused(kb: KnowledgeBase, settings: Settings) -> None:
    ingest(kb, *numbered(20))
    there = Elsewhere(settings, FakeEncoder())
    kb.keysets.rekey(FakeEncoder(), batch=10, elsewhere=there)
    part = replace(there.asked[0][0], database_id="0123456789abcdef")
    with pytest.raises(InvalidValue, match="0123456789abcdef"):
        kb.keysets.rekey_part(FakeEncoder(), part)
