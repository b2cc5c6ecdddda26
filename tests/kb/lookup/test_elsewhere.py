"""Collections that hold what they must not: of every state of a keyset, and of writers that lost their turn."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from sqlalchemy import text

from colmlm.kb.errors import CandidatesRefused, CandidatesUnavailable
from colmlm.kb.keys.keycopy import indexed_ids
from colmlm.kb.keys.keysets import Ids, Vectors
from colmlm.kb.lookup.collection import Collection
from colmlm.kb.lookup.remote import CollectionCandidates, hand_on_changes
from colmlm.kb.removal.erase import Erasure, erase_facts
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.settings import Settings
from tests.fakes import FakeEncoder
from tests.kb.corpora import fact_id, values
from tests.kb.lookup.milvus_bases import (
    NUMBER,
    WHO,
    active,
    broken_off,
    built,
    collection,
    filled,
    held,
    indexed_here,
    named,
    on,
    ready,
)
from tests.milvus_server import MilvusServer
from tests.refusals import raises_code

pytestmark = pytest.mark.slow(reason="starts Milvus, whose searches see a change after seconds")

ASKED = ["Question 0?", "Question 7?"]


@pytest.fixture
def settings(settings: Settings, milvus: MilvusServer) -> Settings:
    return on(settings, milvus)


@pytest.fixture
def base(kb: KnowledgeBase, encoder: FakeEncoder) -> KnowledgeBase:
    """A base whose active keyset's keys are in a collection of this test's own."""
    return filled(kb, encoder)


@pytest.fixture
def beside(kb: KnowledgeBase, encoder: FakeEncoder) -> KnowledgeBase:
    """A base whose active keyset has its index here, so that a second one may be in any state."""
    return indexed_here(kb, encoder)


def wanted(kb: KnowledgeBase, keyset_id: int) -> list[int]:
    with kb.sessions() as session:
        return indexed_ids(session, keyset_id).tolist()


@pytest.mark.parametrize("make", [built, broken_off, ready, active])
def test_no_keyset_in_any_state_keeps_an_erased_key_elsewhere(
    beside: KnowledgeBase,
    milvus: MilvusServer,
    make: Callable[[KnowledgeBase, FakeEncoder], int],
) -> None:
    keyset_id = make(beside, FakeEncoder(salt="2"))
    there = named(beside)
    assert len(there.ids()) == NUMBER
    told = [said for said in beside.upkeep.fsck().mendable if there.where in said]
    assert len(told) == (1 if make is broken_off else 0)
    second = Erasure(beside).erase([fact_id(beside, "value 7")], **WHO).levels[1]
    if milvus.is_lite and make is not broken_off:
        assert second.state == "left", "Milvus Lite does not tell what it has compacted"
    else:
        assert second.state == "reached" and "Milvus has compacted" in second.left
    if make is broken_off:
        assert not there.exists()
    else:
        assert there.ids().tolist() == wanted(beside, keyset_id) and len(there.ids()) == NUMBER - 1
    assert not any(there.where in said for said in beside.upkeep.fsck().mendable)


def test_the_keys_of_a_keyset_that_was_retired_while_milvus_was_away_are_told_of_until_they_are_dropped(
    beside: KnowledgeBase, milvus: MilvusServer
) -> None:
    keyset_id, there = ready(beside, FakeEncoder(salt="2")), named(beside)
    milvus.kill()
    with raises_code(
        "KeysLeftElsewhere", match=r"copies of its keys are still on the Milvus server.*--repair"
    ):
        beside.keysets.retire(keyset_id)
    assert beside.keysets.show(keyset_id).state == "retired"
    erasure, erased = Erasure(beside), [fact_id(beside, "value 7")]
    traces = erasure.traces(erased)
    second = erasure.erase(erased, **WHO).levels[1]
    assert second.state == "left" and there.where in second.left
    residue = erasure.residue(traces)
    assert not residue.clean and any(there.where in said for said in residue.unseen)
    (told,) = beside.upkeep.fsck().mendable
    assert there.where in told and "retired" in told
    milvus.start()
    (told,) = beside.upkeep.fsck().mendable
    assert there.where in told and there.exists()
    assert erasure.finish(now=False).levels[1].state == "reached" and not there.exists()
    assert beside.upkeep.fsck().mendable == ()
    milvus.kill()
    assert erasure.finish(now=False).levels[1].state == "reached", "it is known to be gone"
    milvus.start()


def test_a_repair_drops_a_retired_keysets_collection(beside: KnowledgeBase, milvus: MilvusServer) -> None:
    keyset_id, there = ready(beside, FakeEncoder(salt="2")), named(beside)
    milvus.kill()
    with raises_code("KeysLeftElsewhere"):
        beside.keysets.retire(keyset_id)
    milvus.start()
    assert beside.upkeep.repair().after.mendable == () and not there.exists()


def test_a_retired_keysets_collection_is_not_taken_for_dropped_where_another_server_is_asked(
    beside: KnowledgeBase, milvus: MilvusServer, settings: Settings
) -> None:
    keyset_id, there = ready(beside, FakeEncoder(salt="2")), named(beside)
    milvus.kill()
    with raises_code("KeysLeftElsewhere"):
        beside.keysets.retire(keyset_id)
    milvus.start()
    there.drop()  # so that this server is, to whoever calls it by another name, one that never had it
    other = replace(settings.milvus, uri=milvus.uri.replace("127.0.0.1", "localhost"))
    with KnowledgeBase.open(replace(settings, milvus=other)) as operator:
        second = Erasure(operator).erase([fact_id(beside, "value 7")], **WHO).levels[1]
    assert second.state == "left" and milvus.uri in second.left
    assert Erasure(beside).finish(now=False).levels[1].state == "reached"


@dataclass(slots=True)
class Held(Collection):
    """A collection whose writer is held up between what it reads and what it writes."""

    reached: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)

    def present(self, ids: Any) -> set[int]:
        found = Collection.present(self, ids)
        self.reached.set()
        assert self.go_on.wait(60)
        return found


def test_a_writer_that_lost_its_turn_writes_no_key_that_was_erased_meanwhile(
    base: KnowledgeBase, another_process: KnowledgeBase, encoder: FakeEncoder
) -> None:
    there, keyset_id = collection(base), base.keysets.active().keyset_id
    base.facts.add("Who wrote Emma?", "Jane Austen", **WHO)
    emma = fact_id(base, "Jane Austen")
    base.keysets.store_keys(keyset_id, np.array([emma]), encoder.encode_questions(["Who wrote Emma?"]), **WHO)
    late = Held(there.address, there.name, there.dim, there.owner)
    pids: list[int] = []
    raised: list[Exception] = []

    def write() -> None:
        try:
            with another_process.sessions.begin() as session:
                pids.append(session.scalars(text("SELECT pg_backend_pid()")).one())
                hand_on_changes(session, keyset_id, late)
        except Exception as error:
            raised.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    assert late.reached.wait(60)
    with base.engine.begin() as connection:
        connection.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": pids[0]})
    Erasure(base).erase([emma], **WHO)
    late.go_on.set()
    writer.join()
    assert len(raised) == 1
    assert there.ids().tolist() == wanted(base, keyset_id)


def test_a_key_that_came_too_late_goes_before_the_level_is_reached(
    base: KnowledgeBase, encoder: FakeEncoder, milvus: MilvusServer
) -> None:
    there, keyset_id = collection(base), base.keysets.active().keyset_id
    before = set(there.ids().tolist())
    with base.sessions.begin() as session:
        erase_facts(session, [fact_id(base, "value 7")], **WHO)
    base.lookups.snapshot()
    (key_id,) = before - set(there.ids().tolist())
    there.insert(np.array([key_id]), encoder.encode_questions(["Question 7?"]))
    assert set(there.ids().tolist()) == before
    second = Erasure(base).finish(now=False).levels[1]
    assert second.state == ("left" if milvus.is_lite else "reached")
    assert there.ids().tolist() == wanted(base, keyset_id)


def test_fewer_rows_than_are_live_are_no_compacted_collection(base: KnowledgeBase) -> None:
    there = collection(base)

    class Unwritten(Collection):
        def num_rows(self) -> int | None:
            return (Collection.num_rows(self) or 1) - 1

    assert not Unwritten(there.address, there.name, there.dim, there.owner).compact(0)


def test_a_mark_that_cannot_be_read_is_refused_and_the_collection_filled_anew(
    base: KnowledgeBase, encoder: FakeEncoder
) -> None:
    there, before = collection(base), held(base).mark
    key = np.zeros(there.dim, np.float32)
    there._insert([{"id": -2 - before.seq, "note": "of a stranger", "key": key}], there.owner)
    with pytest.raises(CandidatesRefused, match="mark cannot be read"):
        there.mark(strong=True)
    assert not base.upkeep.fsck().ok
    assert base.upkeep.repair().after.ok
    after = there.mark(strong=True)
    assert after is not None and after.fill != before.fill
    assert values(base, encoder, ASKED) == ["value 0", "value 7"]


def test_what_was_mended_is_seen_by_every_search_since_its_mark_is_new(
    base: KnowledgeBase, encoder: FakeEncoder, settings: Settings
) -> None:
    there = collection(base)
    before = there.mark(strong=True)
    there.delete([1])
    assert base.upkeep.repair().after.ok
    after = there.mark(strong=True)
    assert before is not None and after is not None
    assert (after.seq, after.fill) == (before.seq, before.fill) and after.at > before.at
    assert there.has_mark(after.seq, after.fill, strong=True)
    assert len(there._marks("id < 0", 10, True)) == 1
    with KnowledgeBase.open(settings) as other:
        assert values(other, encoder, ASKED) == ["value 0", "value 7"]


@dataclass(slots=True)
class WipedMeanwhile(Collection):
    """A collection that somebody fills anew just before a search of it."""

    def search(self, queries_BD: npt.NDArray[Any], k: int, *, strong: bool) -> tuple[Vectors, Ids]:
        self.create()
        return Collection.search(self, queries_BD, k, strong=True)


def test_a_search_of_what_was_wiped_after_it_began_is_no_answer(
    base: KnowledgeBase, encoder: FakeEncoder
) -> None:
    opened = held(base)
    there = opened.collection
    wiped = WipedMeanwhile(there.address, there.name, there.dim, there.owner)
    remote = CollectionCandidates(wiped, opened.mark, age=0)
    with pytest.raises(CandidatesRefused, match="its mark is missing"):
        remote.search(encoder.encode_questions(ASKED), 3)


def test_a_lookup_waits_no_longer_for_the_newest_state_than_for_any(
    base: KnowledgeBase, milvus: MilvusServer
) -> None:
    there, mark = collection(base), held(base).mark
    raised: list[CandidatesUnavailable] = []

    def ask() -> None:
        try:
            there.has_mark(mark.seq, mark.fill, strong=True)
        except CandidatesUnavailable as error:
            raised.append(error)

    asking = threading.Thread(target=ask, daemon=True)
    assert milvus.process is not None
    os.killpg(milvus.process.pid, signal.SIGSTOP)
    try:
        asking.start()
        asking.join(40)
        assert raised
    finally:
        os.killpg(milvus.process.pid, signal.SIGCONT)
