"""Keysets and rekey: the queue, resuming, and which keyset answers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from colmlm.kb.errors import InvalidValue
from colmlm.kb.service import KnowledgeBase
from tests.fakes import FakeEncoder, activated, measured
from tests.kb.corpora import CAPITAL, CHILE, PERU, ask, fact_id, ingest, lose_key, numbered, values
from tests.refusals import raises_code

WHO = {"actor": "tester", "reason": "test"}


def test_a_checkpoint_has_one_keyset_until_that_is_retired(kb: KnowledgeBase, encoder: FakeEncoder):
    first = kb.keysets.create(encoder.checkpoint)
    assert (first.state, first.calibrated, first.dim, first.index_spec) == (
        "building",
        False,
        32,
        "auto",
    )
    assert kb.keysets.create(encoder.checkpoint) == first == kb.keysets.head(first.keyset_id)
    assert [keyset.keyset_id for keyset in kb.keysets.all()] == [first.keyset_id]
    kb.keysets.retire(first.keyset_id)
    assert kb.keysets.create(encoder.checkpoint).keyset_id != first.keyset_id


def test_the_first_keyset_to_be_finished_is_active_and_the_next_only_ready(
    kb: KnowledgeBase, encoder: FakeEncoder
):
    ingest(kb, PERU)
    heard: list[tuple[int, int]] = []
    first = kb.keysets.rekey(encoder, batch=1, on_facts=lambda done, total: heard.append((done, total)))
    assert (first.state, first.num_keys, first.num_unkeyed) == ("active", 3, 0) and heard == [(3, 3)]
    assert kb.keysets.rekey(FakeEncoder(salt="2")).state == "ready"
    assert kb.keysets.active().keyset_id == first.keyset_id


def test_an_unfinished_keyset_cannot_be_activated(kb: KnowledgeBase, encoder: FakeEncoder):
    keyset = kb.keysets.create(encoder.checkpoint)
    with raises_code("KeysetNotReady"):
        activated(kb, keyset.keyset_id)
    with raises_code("KeysetNotFound"):
        activated(kb, 99)


def test_rekey_resumes_where_it_was_stopped(kb: KnowledgeBase, encoder: FakeEncoder):
    ingest(kb, *numbered(10))

    def stop_at_six(done: int, _: int) -> None:
        if done >= 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        kb.keysets.rekey(encoder, batch=2, on_facts=stop_at_six)
    (keyset,) = kb.keysets.all()
    assert (keyset.state, keyset.num_keys, keyset.num_unkeyed) == ("building", 6, 4)
    encoder.calls.clear()
    assert kb.keysets.rekey(encoder, batch=2).num_keys == 10 and encoder.calls == [2, 2]


def test_progress_is_told_within_a_batch(kb: KnowledgeBase, encoder: FakeEncoder):
    ingest(kb, *numbered(600))
    heard: list[tuple[int, int]] = []
    kb.keysets.rekey(encoder, batch=400, on_facts=lambda done, total: heard.append((done, total)))
    assert heard == [(256, 600), (400, 600), (600, 600)] and encoder.calls == [256, 144, 200]


def test_rekey_leaves_deleted_facts_out_and_keys_them_once_restored(kb: KnowledgeBase, encoder: FakeEncoder):
    ingest(kb, PERU)
    kb.facts.delete([fact_id(kb, "Lima")], **WHO)
    assert kb.keysets.rekey(encoder).num_keys == 2
    kb.facts.restore([fact_id(kb, "Lima")], **WHO)
    assert kb.keysets.show(kb.keysets.active().keyset_id).num_unkeyed == 1
    kb.keysets.rekey(encoder)
    assert values(kb, encoder, [CAPITAL]) == ["Lima"]


def test_an_encoder_sees_the_text_as_it_was_whatever_was_edited(kb: KnowledgeBase, encoder: FakeEncoder):
    ingest(kb, PERU)
    kb.facts.edit(fact_id(kb, "Lima"), "Cusco", **WHO)
    kb.facts.delete([fact_id(kb, "Amazon")], **WHO)
    seen: list[object] = []

    class Listening(FakeEncoder):
        def encode_documents(self, documents):
            seen.extend(documents)
            return super().encode_documents(documents)

    kb.keysets.rekey(Listening())
    lima, *others = PERU.facts
    unanswered = replace(lima, answer=None)  # it said the value before
    assert seen == [replace(PERU, facts=(unanswered, *others))]


def test_a_fact_deleted_while_it_is_encoded_gets_no_key(kb: KnowledgeBase):
    ingest(kb, PERU)

    class Deleting(FakeEncoder):
        def encode_documents(self, documents):
            kb.facts.delete([fact_id(kb, "Lima")], **WHO)
            return super().encode_documents(documents)

    assert kb.keysets.rekey(Deleting()).num_keys == 2 and kb.upkeep.fsck().ok


def test_rekey_of_one_corpus_leaves_the_others(kb: KnowledgeBase, encoder: FakeEncoder):
    ingest(kb, PERU)
    ingest(kb, CHILE, corpus="others")
    assert kb.keysets.rekey(encoder, corpus="others").num_keys == 1
    ids, keys = kb.keysets.keys(kb.keysets.active().keyset_id, corpus="others")
    assert ids.tolist() == [fact_id(kb, "Santiago")] and keys.shape == (1, 32) and keys.dtype == np.float32
    assert kb.keysets.keys(kb.keysets.active().keyset_id, corpus="lands")[1].shape == (0, 32)


def test_keys_that_cannot_be_compared_are_refused(kb: KnowledgeBase, subtests: pytest.Subtests):
    ingest(kb, PERU)

    class Damaged(FakeEncoder):
        def encode_documents(self, documents):
            return [damages[damage](keys) for keys in super().encode_documents(documents)]

    damages = {
        "longer": lambda keys: keys * 2,
        "no numbers": lambda keys: keys * np.nan,
        "narrow": lambda keys: keys[:, :3],
        "none": lambda keys: keys[:0],
    }
    for damage in damages:
        with subtests.test(damage=damage), raises_code("InvalidKeys"):
            kb.keysets.rekey(Damaged())


def test_a_threshold_holds_from_the_next_lookup_on(
    kb: KnowledgeBase, another_process: KnowledgeBase, encoder: FakeEncoder
):
    ingest(kb, PERU)
    keyset = kb.keysets.rekey(encoder)
    assert values(another_process, encoder, [CAPITAL]) == ["Lima"]
    assert kb.keysets.calibrate(keyset.keyset_id, measured(1.0)).calibrated
    assert not kb.keysets.set_threshold(keyset.keyset_id, 1.0).calibrated
    (lookup,) = ask(another_process, encoder, "Other?")
    assert lookup.hits == () and lookup.threshold == 1.0
    with pytest.raises(InvalidValue):
        kb.keysets.set_threshold(keyset.keyset_id, float("nan"))


def test_retiring_drops_the_keys_and_never_the_active_ones(kb: KnowledgeBase, encoder: FakeEncoder):
    ingest(kb, PERU)
    old = kb.keysets.rekey(encoder)
    with raises_code("KeysetActive"):
        kb.keysets.retire(old.keyset_id)
    activated(kb, kb.keysets.rekey(FakeEncoder(salt="2")).keyset_id)
    retired = kb.keysets.retire(old.keyset_id)
    assert (retired.state, retired.num_keys) == ("retired", 0)
    with raises_code("KeysetNotReady"):
        activated(kb, old.keyset_id)
    assert kb.upkeep.fsck().ok


def test_an_index_of_the_papers_kind_follows_edits(kb: KnowledgeBase, encoder: FakeEncoder):
    ingest(kb, *numbered(300))
    kb.keysets.create(encoder.checkpoint, index_spec="IVF4,Flat")
    kb.keysets.rekey(encoder, batch=300)
    questions = [f"Question {n}?" for n in range(0, 300, 10)]
    assert values(kb, encoder, questions) == [f"value {n}" for n in range(0, 300, 10)]
    kb.facts.delete([fact_id(kb, "value 10"), fact_id(kb, "value 20")], **WHO)
    kb.facts.add("New?", "fresh", **WHO)
    kb.keysets.rekey(encoder)
    assert values(kb, encoder, ["Question 10?", "New?", "Question 30?"]) == [None, "fresh", "value 30"]
    assert kb.upkeep.fsck().ok


def test_a_spec_that_needs_more_keys_to_train_is_searched_exactly_until_then(
    kb: KnowledgeBase, encoder: FakeEncoder
):
    ingest(kb, PERU)
    kb.keysets.create(encoder.checkpoint, index_spec="IVF64,PQ8")
    kb.keysets.rekey(encoder)
    assert values(kb, encoder, [CAPITAL]) == ["Lima"]


def test_a_keyset_is_on_disk_before_it_is_activated(kb: KnowledgeBase, encoder: FakeEncoder):
    ingest(kb, PERU)
    kb.keysets.rekey(encoder)
    newer = FakeEncoder(salt="2")
    keyset = kb.keysets.rekey(newer)
    activated(kb, keyset.keyset_id)
    lose_key(kb, "Amazon")
    assert values(kb, newer, [CAPITAL]) == ["Lima"]
    assert len(kb.searcher.current().candidates) == 3, "it was to be ready"
