"""Two real processes on one base, and several writers at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from colmlm.kb.errors import KeysetMismatch
from colmlm.kb.lookup.questions import Questions
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.settings import Settings
from colmlm.lab.faults.harness import faults_in
from colmlm.lab.faults.processes import edits, switch
from tests.fakes import FakeEncoder, activated
from tests.kb.corpora import CAPITAL, PERU, ingest, numbered
from tests.milvus_server import MilvusServer

WHO = {"actor": "tester", "reason": "test"}


@pytest.mark.slow(reason="works on a real server for seconds")
def test_no_process_gives_an_old_answer_once_the_edit_is_acknowledged(settings: Settings):
    found = edits(settings, operations=600)
    assert faults_in(found) == [] and found["operations"] == 600, found
    assert min(found["deletes"], found["restores"], found["updates"]) > 0


@pytest.mark.slow(reason="works on a real server for seconds")
def test_no_process_does_where_a_server_elsewhere_searches_the_keys(settings: Settings, milvus: MilvusServer):
    found = edits(settings, operations=400, backend=milvus.uri, beside=200)
    assert faults_in(found) == [] and found["operations"] == 400, found


@pytest.mark.slow(reason="works on a real server for seconds")
def test_no_process_does_where_torch_searches_the_keys(settings: Settings):
    found = edits(settings, operations=600, backend="torch", beside=200)
    assert faults_in(found) == [] and found["operations"] == 600, found


def test_writers_take_turns_on_the_log(kb: KnowledgeBase, settings: Settings, encoder: FakeEncoder):
    ingest(kb, *numbered(40))
    kb.keysets.rekey(encoder)
    before = kb.log.head_seq()
    facts = [fact.fact_id for fact in kb.facts.find(limit=100)]

    def write(writer: int) -> list[int]:
        """Makes 50 edits of facts that the other writers edit too."""
        with KnowledgeBase.open(settings) as own:
            return [own.facts.edit(facts[(7 * n) % 40], f"by {writer}: {n}", **WHO).seq for n in range(50)]

    with ThreadPoolExecutor(max_workers=4) as writers:
        seqs = sorted(seq for done in writers.map(write, range(4)) for seq in done)
    assert seqs == list(range(before + 1, before + 201))
    report = kb.upkeep.fsck()
    assert report.ok and report.chain_ok and report.changes_checked == before + 200


@pytest.mark.slow(reason="works on a real server for seconds")
@pytest.mark.parametrize("backend", [None, "torch"], ids=["Faiss", "torch"])
def test_no_lookup_fails_and_no_answer_is_mixed_while_the_keyset_switches(
    settings: Settings, backend: str | None
):
    found = switch(settings, seconds=1, backend=backend)
    assert faults_in(found) == [], found
    assert 0 < found["answered_by_new"] < found["requests"] and found["edits"] > 0
    assert found["activations"] >= 2 and found["rollbacks"] >= 2


def test_whoever_has_only_the_old_encoder_is_refused_after_the_switch(kb: KnowledgeBase):
    old, new = FakeEncoder(), FakeEncoder(salt="2", dim=16)
    ingest(kb, PERU)
    kb.keysets.rekey(old)
    both, only_old = Questions(kb, [old, new]), Questions(kb, [old])
    assert both.ask([CAPITAL])[0] == only_old.ask([CAPITAL])[0] == "fake"
    activated(kb, kb.keysets.rekey(new).keyset_id)
    checkpoint_id, (lookup,) = both.ask([CAPITAL], k=2)
    assert checkpoint_id == "fake2" and lookup.hits[0].value == "Lima"
    with pytest.raises(KeysetMismatch):
        only_old.ask([CAPITAL])
