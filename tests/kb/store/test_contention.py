"""Locks are taken in one order, and what met other work all the same is done again."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from colmlm.kb.facts import suppression
from colmlm.kb.log import audit
from colmlm.kb.removal.erase import erase_facts
from colmlm.kb.removal.forget import Forgetting
from colmlm.kb.removal.selector import Selector
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.waits import ATTEMPTS, refusal_of, retry_on_contention
from tests.fakes import FakeEncoder
from tests.kb.corpora import PERU, fact_id, ingest
from tests.kb.removal.test_erasure_race import await_lock
from tests.refusals import raises_code

BY = {"actor": "tester", "reason": "request"}


def test_restore_of_a_run_waits_for_the_erasure_of_its_fact(kb: KnowledgeBase, encoder: FakeEncoder) -> None:
    ingest(kb, PERU)
    kb.keysets.rekey(encoder)
    lima, forgetting = fact_id(kb, "Lima"), Forgetting(kb)
    run = forgetting.plan(Selector(fact_ids=(lima,)), **BY)
    forgetting.apply(run.run_id, **BY)
    with ThreadPoolExecutor() as threads, kb.sessions() as session:
        suppression.begin_erasure(session)
        audit.begin_change(session, **BY)
        restoring = threads.submit(forgetting.restore, run.run_id, **BY)
        await_lock(kb)
        erase_facts(session, [lima], **BY)  # redacts the run that is to be restored
        session.commit()
        with raises_code("ForgetRunState", match="erased"):
            restoring.result()
    assert kb.facts.show(lima).erased_seq == kb.log.head_seq() and kb.upkeep.fsck().ok


def test_transactions_that_wait_for_each_other_are_both_done(kb: KnowledgeBase) -> None:
    ingest(kb, PERU)
    first, second = fact_id(kb, "Lima"), fact_id(kb, "Amazon")
    met, attempts = threading.Barrier(2), []

    @retry_on_contention
    def lock(one: int, other: int) -> None:
        attempts.append(one)
        with kb.sessions.begin() as session:
            session.execute(text("SELECT FROM fact WHERE id = :id FOR UPDATE"), {"id": one})
            if len(attempts) <= 2:
                met.wait(60)
            session.execute(text("SELECT FROM fact WHERE id = :id FOR UPDATE"), {"id": other})

    with ThreadPoolExecutor() as threads:
        for locking in [threads.submit(lock, first, second), threads.submit(lock, second, first)]:
            locking.result()
    assert len(attempts) == 3


def test_work_that_never_gets_through_is_refused_with_what_to_do(kb: KnowledgeBase) -> None:
    attempts = []

    @retry_on_contention
    def collide() -> None:
        attempts.append(1)
        with kb.sessions.begin() as session:
            session.execute(text("DO $$ BEGIN RAISE EXCEPTION 'met' USING ERRCODE = '40P01'; END $$"))

    with pytest.raises(OperationalError) as met:
        collide()
    refused = refusal_of(met.value)
    assert refused is not None and refused.code == "Collided" and len(attempts) == ATTEMPTS
