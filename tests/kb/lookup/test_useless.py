"""Collections that were to be dropped, and are needed or cannot be asked for by the time that somebody would do it."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from colmlm.kb.keys import activation
from colmlm.kb.lookup import snapshots
from colmlm.kb.removal.erase import Erasure
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.settings import Settings
from colmlm.kb.store.waits import Waits, wait_for_turn
from tests.fakes import FakeEncoder
from tests.gates import await_that, gate, table_locked, watched
from tests.kb.lookup.milvus_bases import NUMBER, WHO, away, broken_off, built, indexed_here, named, on
from tests.milvus_server import MilvusServer
from tests.refusals import raises_code

pytestmark = pytest.mark.slow(reason="starts Milvus, whose searches see a change after seconds")

SECOND = FakeEncoder(salt="2")


@pytest.fixture
def settings(settings: Settings, milvus: MilvusServer) -> Settings:
    return on(settings, milvus)


@pytest.fixture
def beside(kb: KnowledgeBase, encoder: FakeEncoder) -> KnowledgeBase:
    """A base whose active keyset has its index here."""
    return indexed_here(kb, encoder)


def repair(kb: KnowledgeBase) -> None:
    kb.upkeep.repair()


def erase(kb: KnowledgeBase) -> None:
    Erasure(kb).finish(now=False)


@pytest.mark.parametrize("is_keyed", [False, True])
@pytest.mark.parametrize("drop", [repair, erase])
def test_a_collection_is_not_dropped_that_was_filled_while_its_turn_was_awaited(
    beside: KnowledgeBase,
    another_process: KnowledgeBase,
    encoder: FakeEncoder,
    drop: Callable[[KnowledgeBase], None],
    is_keyed: bool,
) -> None:
    keyset_id, url = built(beside, SECOND), beside.settings.database_url
    if not is_keyed:
        beside.facts.add("Who wrote Emma?", "Jane Austen", **WHO)
    there = named(beside)
    mark = there.mark(strong=True)
    assert mark is not None and url is not None
    there._delete([-1 - mark.seq], there.owner)  # as it is while a process fills it
    dropping = threading.Thread(target=drop, args=[beside])
    with another_process.sessions.begin() as filling, watched(url) as reached:
        wait_for_turn(filling, keyset_id)
        dropping.start()
        await_that(reached)
        there.set_mark(mark)
        with another_process.sessions.begin() as session:
            activation.finish_building(session, keyset_id, "tester")
            activation.activate_keyset(session, keyset_id, "tester", "it has all keys", force=True)
    dropping.join()
    assert len(there.ids()) == NUMBER
    (found,) = beside.lookups.find(
        encoder.encode_questions(["Question 0?"]), checkpoint_id=SECOND.checkpoint.checkpoint_id
    )
    assert found.hits[0].value == "value 0"


@pytest.mark.parametrize("is_keyed", [False, True])
def test_a_collection_whose_filling_broke_off_is_dropped_or_filled_to_the_end(
    beside: KnowledgeBase, is_keyed: bool
) -> None:
    broken_off(beside, SECOND)
    if not is_keyed:
        beside.facts.add("Who wrote Emma?", "Jane Austen", **WHO)
    there = named(beside)
    report = beside.upkeep.repair()
    assert any(there.where in said for said in report.mended)
    assert report.left == () and report.after.ok and report.after.mendable == ()
    assert there.exists() == is_keyed
    assert beside.keysets.show(2).state == ("ready" if is_keyed else "building")


def test_a_collection_that_could_not_be_asked_for_is_not_taken_for_useless(
    beside: KnowledgeBase, milvus: MilvusServer
) -> None:
    keyset_id, there = built(beside, SECOND), named(beside)
    with away(milvus):
        with beside.sessions() as session:
            found = snapshots.collection_standings(session, beside.settings)
        assert found.useless == {} and there.where in found.unasked[keyset_id]
        for report in (beside.upkeep.repair(dry_run=True), beside.upkeep.repair()):
            assert report.mended == () and report.after.ok
            (left,) = report.left
            assert there.where in left.problem and "answers" in left.remedy


def test_a_repair_drops_nothing_of_what_did_not_answer_when_it_looked(
    beside: KnowledgeBase, milvus: MilvusServer
) -> None:
    built(beside, SECOND)
    beside.facts.add("Who wrote Emma?", "Jane Austen", **WHO)  # so that nothing but a drop is to be done
    there, url = named(beside), beside.settings.database_url
    assert url is not None
    repairing = threading.Thread(target=repair, args=[beside])
    with table_locked(url, "generation") as reached, away(milvus):
        repairing.start()
        await_that(reached)  # that is read after the collections were looked for
    repairing.join()
    there.load()  # a server that is started anew may have forgotten that
    assert len(there.ids()) == NUMBER and there.mark(strong=True) is not None


def test_a_keyset_whose_collection_is_being_written_is_retired_and_its_keys_are_said_to_be_left(
    beside: KnowledgeBase,
) -> None:
    keyset_id, there = built(beside, SECOND), named(beside)
    hasty = beside.beside("requests", Waits(lock=1.0, statement=60.0), 4)
    with beside.sessions.begin() as writing:
        wait_for_turn(writing, keyset_id)
        with raises_code("KeysLeftElsewhere", match="the index of keyset 2 is being written"):
            hasty.keysets.retire(keyset_id)
        assert hasty.keysets.show(keyset_id).state == "retired" and there.exists()
        level = Erasure(hasty).finish(now=False).levels[1]
        assert level.state == "left" and "the index of keyset 2 is being written" in level.left
        (left,) = hasty.upkeep.repair().left
        assert there.where in left.problem
    assert hasty.keysets.retire(keyset_id).state == "retired" and not there.exists()


def test_a_keyset_is_said_to_be_retired_where_the_database_refuses_to_note_that_its_keys_are_gone(
    beside: KnowledgeBase, settings: Settings
) -> None:
    keyset_id, there, url = built(beside, SECOND), named(beside), settings.database_url
    assert url is not None
    hasty = beside.beside("requests", Waits(lock=1.0, statement=60.0), 4)
    is_noted = "NEW.index_spec LIKE '%(dropped)'"
    with (
        gate(url, "UPDATE ON keyset", is_noted),
        raises_code("KeysLeftElsewhere", match="held a lock"),
    ):
        hasty.keysets.retire(keyset_id)
    assert hasty.keysets.show(keyset_id).state == "retired"
    assert hasty.keysets.retire(keyset_id).state == "retired" and not there.exists()
