"""Counting keys takes seconds among millions, so nothing does it that keeps others waiting or is asked often."""

from __future__ import annotations

from colmlm.kb.service import KnowledgeBase
from tests.fakes import FakeEncoder, activated, measured
from tests.kb.corpora import PERU, ingest, numbered
from tests.kb.counting import counting


def test_no_edit_of_keysets_counts_keys_while_the_log_is_locked(kb: KnowledgeBase) -> None:
    ingest(kb, PERU, *numbered(20))
    new = FakeEncoder(salt="new")
    with counting(kb.engine) as counts:
        first = kb.keysets.rekey(FakeEncoder())
        kb.keysets.calibrate(first.keyset_id, measured(0.6))
        kb.keysets.set_threshold(first.keyset_id, 0.5)
        second = kb.keysets.rekey(new)
        kb.keysets.calibrate(second.keyset_id, measured(0.6))
        kb.keysets.check(second.keyset_id, new)
        assert activated(kb, second.keyset_id).num_keys == second.num_keys == 23
        assert kb.keysets.rollback().keyset_id == first.keyset_id
        assert kb.keysets.retire(second.keyset_id).state == "retired"
    assert counts.heard and counts.locked == []


def test_what_is_asked_often_counts_no_keys(kb: KnowledgeBase) -> None:
    ingest(kb, PERU)
    encoder = FakeEncoder()
    keyset_id = kb.keysets.rekey(encoder).keyset_id
    queries = encoder.encode_questions(["What is the capital of Peru?"])
    kb.lookups.catch_up()
    with counting(kb.engine) as counts:
        assert kb.keysets.active().keyset_id == kb.keysets.head(keyset_id).keyset_id == keyset_id
        assert [one.keyset_id for one in kb.keysets.in_use()] == [keyset_id]
        assert kb.lookups.find(queries, checkpoint_id=encoder.checkpoint.checkpoint_id)[0].hits
        kb.facts.add("Who?", "Ann", actor="tester", reason="test")
        kb.lookups.catch_up()
        activated(kb, keyset_id)
    assert len(counts.heard) == 1  # what activating gives
