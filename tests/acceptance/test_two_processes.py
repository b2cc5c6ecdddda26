"""Two real processes on one base, and several writers at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.settings import MilvusAddress, Settings
from tests.acceptance.two_processes import run
from tests.fakes import FakeEncoder
from tests.kb.corpora import ingest, numbered
from tests.milvus_server import MilvusServer

WHO = {"actor": "tester", "reason": "test"}


@pytest.mark.slow(reason="works on a real server for seconds")
def test_no_process_gives_an_old_answer_once_the_edit_is_acknowledged(settings: Settings):
    outcome = run(settings, operations=600)
    assert outcome.operations == 600 and outcome.wrong == 0 and outcome.chain_ok and outcome.index_ok
    assert min(outcome.deletes, outcome.restores, outcome.updates) > 0


@pytest.mark.slow(reason="works on a real server for seconds")
def test_no_process_does_where_a_server_elsewhere_searches_the_keys(settings: Settings, milvus: MilvusServer):
    there = replace(settings, milvus=MilvusAddress(uri=milvus.uri))
    outcome = run(there, operations=400, index_spec="milvus:acceptance", beside=200)
    assert outcome.operations == 400 and outcome.wrong == 0 and outcome.chain_ok and outcome.index_ok


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
