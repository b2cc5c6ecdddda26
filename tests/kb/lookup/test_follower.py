"""A process that follows by itself: by announcement, by poll, across switches and outages."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest
from sqlalchemy import text, update

from colmlm.kb.lookup.follower import Follower
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.tables import KeysetRow
from tests.fakes import FakeEncoder, activated
from tests.kb.corpora import CAPITAL, PERU, RIVER, fact_id, ingest, numbered, values

WHO = {"actor": "tester", "reason": "test"}
NEVER = 3600.0  # as a poll: then only an announcement wakes it


def until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not happened():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


def followed(follower: KnowledgeBase, writer: KnowledgeBase) -> None:
    until(lambda: follower.searcher.applied_seq == writer.log.head_seq())


def listeners(kb: KnowledgeBase) -> list[int]:
    statement = "SELECT pid FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND datname = current_database()"
    with kb.engine.connect() as connection:
        return list(connection.scalars(text(statement)))


@pytest.mark.parametrize("announced", [True, False])
def test_an_edit_reaches_an_index_that_nobody_asks(
    kb: KnowledgeBase, another_process: KnowledgeBase, encoder: FakeEncoder, announced: bool
):
    with Follower(another_process, poll_seconds=NEVER if announced else 0.01):
        until(lambda: bool(listeners(kb)))
        if not announced:
            with kb.engine.begin() as connection:
                connection.execute(text("DROP TRIGGER change_announced ON change"))
        ingest(kb, PERU)
        kb.keysets.rekey(encoder)
        followed(another_process, kb)
        kb.facts.delete([fact_id(kb, "Lima")], **WHO)
        followed(another_process, kb)
    assert len(another_process.searcher.current().candidates) == 2


def test_a_follower_leaves_no_thread_and_no_connection(kb: KnowledgeBase, another_process: KnowledgeBase):
    before = threading.active_count()
    with Follower(another_process, poll_seconds=NEVER):
        until(lambda: bool(listeners(kb)))
    assert threading.active_count() == before
    until(lambda: not listeners(kb))
    assert another_process.engine.pool.checkedout() == 0


def test_a_follower_survives_a_lost_connection_and_says_so_once(
    kb: KnowledgeBase, another_process: KnowledgeBase, encoder: FakeEncoder, caplog: pytest.LogCaptureFixture
):
    def said() -> list[str]:
        return [record.levelname for record in caplog.records if record.name == "colmlm.kb.lookup.follower"]

    ingest(kb, PERU)
    kb.keysets.rekey(encoder)
    with caplog.at_level(logging.INFO), Follower(another_process, poll_seconds=NEVER):
        until(lambda: bool(listeners(kb)))
        (lost,) = listeners(kb)
        with kb.engine.connect() as connection:
            connection.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": lost})
        until(lambda: bool(listeners(kb)) and listeners(kb) != [lost])
        kb.facts.delete([fact_id(kb, "Lima")], **WHO)
        followed(another_process, kb)
        until(lambda: "INFO" in said())  # on a busy machine the first attempt to follow again may fail, too
    assert said() == ["WARNING", "INFO"]


def test_a_follower_goes_on_after_an_error_that_nobody_foresaw(
    kb: KnowledgeBase, another_process: KnowledgeBase, encoder: FakeEncoder, caplog: pytest.LogCaptureFixture
):
    ingest(kb, PERU)
    kb.keysets.rekey(encoder)
    fit = "UPDATE keyset SET index_fit = CAST(:fit AS jsonb)"
    with kb.engine.begin() as connection:
        connection.execute(text(fit), {"fit": '{"lists": "no number"}'})
    with Follower(another_process, poll_seconds=NEVER):
        until(lambda: "cannot follow the change log" in caplog.text)
        assert "Traceback" in caplog.text
        with kb.engine.begin() as connection:
            connection.execute(text(fit), {"fit": None})
        kb.facts.delete([fact_id(kb, "Lima")], **WHO)
        followed(another_process, kb)


def test_a_switch_to_a_keyset_that_passed_its_gate_and_back_opens_no_index_in_a_lookup(
    kb: KnowledgeBase, another_process: KnowledgeBase, encoder: FakeEncoder
):
    ingest(kb, PERU)
    old = kb.keysets.rekey(encoder)
    newer = FakeEncoder(salt="2")
    new = kb.keysets.rekey(newer)
    with kb.sessions.begin() as session:
        session.execute(
            update(KeysetRow)
            .where(KeysetRow.id == new.keyset_id)
            .values(gate={"passed": True, "seq": 1, "criteria": []})
        )
    with Follower(another_process, poll_seconds=0.01):
        until(lambda: another_process.searcher._standby is not None)
    former, standby = another_process.searcher._replica, another_process.searcher._standby
    kb.facts.delete([fact_id(kb, "Lima")], **WHO)
    activated(kb, new.keyset_id)
    assert values(another_process, newer, [CAPITAL, RIVER]) == [None, "Amazon"]
    assert another_process.searcher._replica is standby
    kb.facts.restore([fact_id(kb, "Lima")], **WHO)
    activated(kb, old.keyset_id)
    assert values(another_process, encoder, [CAPITAL, RIVER]) == ["Lima", "Amazon"]
    assert another_process.searcher._replica is former


def test_the_index_of_a_retired_keyset_is_let_go(
    kb: KnowledgeBase, another_process: KnowledgeBase, encoder: FakeEncoder
):
    ingest(kb, PERU)
    old = kb.keysets.rekey(encoder)
    with Follower(another_process, poll_seconds=NEVER):
        followed(another_process, kb)
        activated(kb, kb.keysets.rekey(FakeEncoder(salt="2")).keyset_id)
        until(lambda: another_process.searcher._standby is not None)
        kb.keysets.retire(old.keyset_id)
        until(lambda: another_process.searcher._standby is None)


@pytest.mark.parametrize("by_another", [True, False], ids=["another process built it", "nobody built it"])
def test_an_exact_index_that_is_outgrown_answers_until_another_is_built(
    kb: KnowledgeBase, another_process: KnowledgeBase, encoder: FakeEncoder, by_another: bool
):
    ingest(kb, PERU)
    keyset = kb.keysets.create(encoder.checkpoint, index_spec="IVF4,Flat")
    kb.keysets.rekey(encoder)
    outgrown = another_process.searcher.current()
    assert outgrown.candidates.fit.spec == "IDMap2,Flat"
    ingest(kb, *numbered(20))
    new = [fact for fact in kb.facts.every() if fact.value.startswith("value")]
    keys = encoder.encode_questions([fact.question or "" for fact in new])
    kb.keysets.store_keys(keyset.keyset_id, np.array([fact.fact_id for fact in new]), keys, **WHO)
    if by_another:
        kb.keysets.build(keyset.keyset_id)
    assert values(another_process, encoder, ["Question 3?", CAPITAL]) == ["value 3", "Lima"]
    assert another_process.searcher.current() is outgrown
    with Follower(another_process, poll_seconds=0.01):
        until(lambda: another_process.searcher.current() is not outgrown)
        grown = another_process.searcher.current().candidates
        assert (grown.fit.spec, len(grown)) == ("IVF4,Flat", 23)
        kb.facts.delete([fact_id(kb, "Lima")], **WHO)
        until(lambda: len(grown) == 22)
        assert values(another_process, encoder, ["Question 3?", CAPITAL]) == ["value 3", None]
    assert kb.keysets.show(keyset.keyset_id).index_fit == another_process.searcher.current().candidates.fit


@pytest.mark.parametrize("snapshot", ["none", "old", "of another history"])
def test_a_process_that_starts_late_comes_to_the_same_index(
    kb: KnowledgeBase, another_process: KnowledgeBase, encoder: FakeEncoder, snapshot: str
):
    ingest(kb, *numbered(20))
    kb.keysets.rekey(encoder)
    for file in kb.settings.index_directory.rglob("keyset-*"):
        if snapshot == "none":
            file.unlink()
        elif snapshot == "of another history" and file.suffix == ".history":
            file.write_text('{"seq": 1, "hash": "of nothing"}')
    facts = [fact.fact_id for fact in kb.facts.find(limit=100)]
    kb.facts.delete(facts[:5], **WHO)
    kb.facts.restore(facts[:2], **WHO)
    kb.facts.edit(facts[7], "corrected", **WHO)
    with Follower(another_process):
        followed(another_process, kb)
    kb.lookups.catch_up()
    ours, theirs = (k.searcher.current().candidates.ids for k in (kb, another_process))
    assert ours.tolist() == theirs.tolist() and len(ours) == 17
    asked = [f"Question {n}?" for n in (0, 3, 7)]
    assert values(another_process, encoder, asked) == ["value 0", None, "corrected"]
