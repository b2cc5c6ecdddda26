"""Several workers on one rekey queue."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.settings import Settings
from tests.fakes import FakeEncoder
from tests.kb.corpora import ingest, numbered

WHO = {"actor": "tester", "reason": "test"}
BUSY = "state = 'idle in transaction' AND datname = current_database()"


def test_workers_share_the_queue_and_encode_nothing_twice(kb: KnowledgeBase, settings: Settings):
    ingest(kb, *numbered(300))
    for n in range(30):
        kb.facts.add(f"Without a document {n}?", f"one {n}", **WHO)
    together = threading.Barrier(3)
    seen: list[str] = []

    class Watched(FakeEncoder):
        """Waits at its first batch until all have one, so that all three do share."""

        def encode_documents(self, documents):
            if not self.calls:
                together.wait(30)
            seen.extend(document.external_id for document in documents)
            return super().encode_documents(documents)

        def encode_questions(self, questions):
            seen.extend(questions)
            return super().encode_questions(questions)

    def work(encoder: FakeEncoder) -> int:
        with KnowledgeBase.open(settings) as own:
            return own.keysets.rekey(encoder, batch=8).num_unkeyed

    encoders = [Watched() for _ in range(3)]
    with ThreadPoolExecutor(max_workers=3) as workers:
        assert list(workers.map(work, encoders)) == [0, 0, 0]
    assert len(seen) == len(set(seen)) == 330
    assert sum(sum(encoder.calls) for encoder in encoders) == 300 and all(e.calls for e in encoders)
    assert kb.keysets.show(kb.keysets.active().keyset_id).num_keys == 330 and kb.upkeep.fsck().ok


def test_what_a_killed_worker_had_claimed_is_left_to_the_others_and_edits_wait_for_nobody(
    kb: KnowledgeBase, settings: Settings
):
    ingest(kb, *numbered(40))
    encoding, killed = threading.Event(), threading.Event()

    class Stuck(FakeEncoder):
        def encode_documents(self, documents):
            encoding.set()
            assert killed.wait(60)
            return super().encode_documents(documents)

    class Last(FakeEncoder):
        """Ends the stuck worker when all that it has not claimed is keyed."""

        def encode_documents(self, documents):
            made = super().encode_documents(documents)
            if sum(self.calls) == 30:
                with kb.engine.connect() as connection:
                    ours = "pid <> (SELECT max(pid) FROM newest)"
                    newest = f"SELECT pid FROM pg_stat_activity WHERE {BUSY} ORDER BY xact_start DESC LIMIT 1"
                    connection.execute(
                        text(
                            f"WITH newest AS ({newest}) SELECT pg_terminate_backend(pid)"
                            f" FROM pg_stat_activity WHERE {BUSY} AND {ours}"
                        )
                    )
            return made

    def work(encoder: FakeEncoder) -> int:
        with KnowledgeBase.open(settings) as own:
            return own.keysets.rekey(encoder, batch=10).num_keys

    with ThreadPoolExecutor(max_workers=1) as workers:
        stuck = workers.submit(work, Stuck())
        assert encoding.wait(60)
        facts = [fact.fact_id for fact in kb.facts.find(limit=100)]
        kb.facts.delete(facts[:1], **WHO)  # claimed by the stuck worker
        assert kb.facts.restore(facts[:1], **WHO).fact_ids == (facts[0],)
        last = Last()
        assert work(last) == 40 and sum(last.calls) == 40
        killed.set()
        with pytest.raises(OperationalError):
            stuck.result()
    assert kb.upkeep.fsck().ok


def test_a_worker_waits_for_the_last_claims_of_another(kb: KnowledgeBase, settings: Settings):
    ingest(kb, *numbered(4))
    encoding, go_on = threading.Event(), threading.Event()

    class Slow(FakeEncoder):
        def encode_documents(self, documents):
            encoding.set()
            assert go_on.wait(60)
            return super().encode_documents(documents)

    def work(encoder: FakeEncoder) -> int:
        with KnowledgeBase.open(settings) as own:
            return own.keysets.rekey(encoder).num_unkeyed

    def waiting() -> bool:
        with kb.engine.connect() as connection:
            statement = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'advisory'"
            return bool(connection.scalar(text(f"{statement} AND datname = current_database()")))

    with ThreadPoolExecutor(max_workers=2) as workers:
        slow = workers.submit(work, Slow())
        assert encoding.wait(60)
        quick = FakeEncoder()
        waiter = workers.submit(work, quick)
        while not waiting():
            assert not waiter.done(), "the keyset was called ready before it was"
        go_on.set()
        assert (slow.result(), waiter.result(), quick.calls) == (0, 0, [])
