"""Lookups whose keys a real Milvus server searches: right after every edit, refused where it is not to be trusted."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from colmlm.api.errors import status_of
from colmlm.cli.errors import DATABASE, INDEX, explain
from colmlm.kb.errors import CandidatesRefused, CandidatesUnavailable, IndexInvariant, KBError
from colmlm.kb.keys.keycopy import indexed_ids
from colmlm.kb.lookup import remote
from colmlm.kb.lookup.follower import Follower
from colmlm.kb.lookup.in_process import require_spec
from colmlm.kb.lookup.remote import CollectionCandidates, hand_on_changes, merge_hits
from colmlm.kb.removal.erase import Erasure
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.settings import Settings
from tests.fakes import FakeEncoder, activated
from tests.kb.corpora import ask, fact_id, values
from tests.kb.lookup.milvus_bases import NUMBER, collection, filled, held, on
from tests.milvus_server import MilvusServer

pytestmark = pytest.mark.slow(reason="starts Milvus, whose searches see a change after seconds")

WHO = {"actor": "tester", "reason": "test"}
ASKED = [f"Question {number}?" for number in (0, 7, 39)]
RIGHT: list[str | None] = ["value 0", "value 7", "value 39"]


@pytest.fixture
def settings(settings: Settings, milvus: MilvusServer) -> Settings:
    return on(settings, milvus)


@pytest.fixture
def elsewhere(kb: KnowledgeBase, encoder: FakeEncoder) -> KnowledgeBase:
    """A base whose keys are in a collection of this test's own."""
    return filled(kb, encoder)


def eventually(kb: KnowledgeBase, encoder: FakeEncoder, seconds: float = 90) -> list[str | None]:
    """Asks until Milvus answers again; whatever it says before that must be an error."""
    end = time.monotonic() + seconds
    while True:
        try:
            return values(kb, encoder, ASKED)
        except CandidatesUnavailable:
            if time.monotonic() > end:
                raise
            time.sleep(0.3)


def until(happened: Callable[[], bool], step: Callable[[], object] = lambda: None) -> None:
    end = time.monotonic() + 30
    while not happened():
        assert time.monotonic() < end, "it did not happen"
        step()
        time.sleep(0.1)


def test_edits_hold_in_every_process_at_once_and_new_facts_are_found(
    elsewhere: KnowledgeBase, another_process: KnowledgeBase, encoder: FakeEncoder
):
    assert values(another_process, encoder, ASKED) == RIGHT
    seven = fact_id(elsewhere, "value 7")
    elsewhere.facts.delete([seven], **WHO)
    assert values(another_process, encoder, ASKED) == ["value 0", None, "value 39"]
    elsewhere.facts.add("Who wrote Emma?", "Jane Austen", **WHO)
    elsewhere.keysets.rekey(encoder)
    assert values(another_process, encoder, ["Who wrote Emma?", ASKED[0]]) == ["Jane Austen", "value 0"]
    elsewhere.facts.restore([seven], **WHO)
    assert values(another_process, encoder, ASKED) == RIGHT
    assert elsewhere.upkeep.fsck().ok


def test_scores_are_exact_and_ranked_as_by_an_index_here(elsewhere: KnowledgeBase, encoder: FakeEncoder):
    ids, keys = elsewhere.keysets.keys(elsewhere.keysets.active().keyset_id)
    (query,) = encoder.encode_questions(["Nothing like it?"])
    scores = keys @ query
    (lookup,) = ask(elsewhere, encoder, "Nothing like it?", k=NUMBER, threshold=-1)
    assert [hit.fact_id for hit in lookup.hits] == ids[np.argsort(-scores)].tolist()
    assert [hit.score for hit in lookup.hits] == pytest.approx(np.sort(scores)[::-1], abs=1e-6)


def test_a_follower_hands_on_what_was_edited_and_the_next_process_begins_there(
    elsewhere: KnowledgeBase, another_process: KnowledgeBase, encoder: FakeEncoder, settings: Settings
):
    with Follower(another_process, poll_seconds=0.05):
        elsewhere.facts.delete([fact_id(elsewhere, "value 7")], **WHO)
        elsewhere.facts.add("Who wrote Emma?", "Jane Austen", **WHO)
        another_process.lookups.catch_up()
        head = elsewhere.log.head_seq()
        elsewhere.keysets.rekey(encoder)
        until(lambda: (mark := collection(another_process).mark(strong=True)) is not None and mark.seq > head)
        with elsewhere.sessions() as session:
            wanted = indexed_ids(session, elsewhere.keysets.active().keyset_id)
        assert sorted(wanted.tolist()) == collection(another_process).ids().tolist()
    with KnowledgeBase.open(settings) as third:
        assert held(third).mark.seq > head
        assert values(third, encoder, [*ASKED, "Who wrote Emma?"]) == [
            "value 0",
            None,
            "value 39",
            "Jane Austen",
        ]


def test_what_is_handed_on_leaves_the_tail_when_every_search_sees_it(
    elsewhere: KnowledgeBase, encoder: FakeEncoder
):
    now = [0.0]
    opened = held(elsewhere)
    there = CollectionCandidates(opened.collection, opened.mark, age=0, clock=lambda: now[0])
    key = encoder.encode_questions(["Who wrote Emma?"])
    there.put(np.array([1000]), key)
    there.remove([1])
    there.advance(there.mark.seq + 1)
    assert there.is_ahead and len(there._tail) == 1
    opened.collection.insert(np.array([1000]), key)
    opened.collection.delete([1])
    opened.collection.set_mark(replace(there.mark, seq=there.mark.seq + 1))
    now[0] = 5
    until(
        lambda: (there.advance(there.mark.seq + 1), not there.is_ahead)[1],
        step=lambda: now.__setitem__(0, now[0] + 2),
    )
    assert len(there._tail) == 1, "it was let go of before every search sees it in the collection"
    now[0] += remote.SETTLED_SECONDS + remote.LOOK_SECONDS
    there.advance(there.mark.seq + 1)
    assert len(there._tail) == 0 and 1000 in there.search(key, 1)[1]


def test_while_one_process_writes_no_other_does(elsewhere: KnowledgeBase, another_process: KnowledgeBase):
    keyset_id = elsewhere.keysets.active().keyset_id
    with elsewhere.sessions.begin() as mine, another_process.sessions.begin() as theirs:
        assert hand_on_changes(mine, keyset_id, collection(elsewhere))
        assert not hand_on_changes(theirs, keyset_id, collection(elsewhere))


def test_a_wiped_collection_is_an_error_until_it_is_repaired(
    elsewhere: KnowledgeBase, another_process: KnowledgeBase, encoder: FakeEncoder
):
    assert values(another_process, encoder, ASKED) == RIGHT
    collection(elsewhere).drop()
    for kb in (elsewhere, another_process):
        with pytest.raises(CandidatesRefused, match=r"does not exist.*doctor --data --repair"):
            values(kb, encoder, ASKED)
    report = elsewhere.upkeep.fsck()
    assert not report.ok and len(report.keys_missing_from_index) == NUMBER
    assert elsewhere.upkeep.repair().after.ok
    assert values(elsewhere, encoder, ASKED) == values(another_process, encoder, ASKED) == RIGHT


def test_keys_that_are_lost_left_over_or_stored_twice_are_found_and_mended(
    elsewhere: KnowledgeBase, encoder: FakeEncoder, milvus: MilvusServer
):
    there, key = collection(elsewhere), encoder.encode_questions(["Question 0?"])
    there.delete([1])
    there.insert(np.array([5000]), key)
    report = elsewhere.upkeep.fsck()
    assert report.keys_missing_from_index == (1,) and report.index_ids_without_live_key == (5000,)
    assert elsewhere.upkeep.repair().after.ok and values(elsewhere, encoder, ASKED) == RIGHT
    if milvus.is_lite:
        return  # it stores no id twice
    there.insert(np.array([1]), key)
    assert values(elsewhere, encoder, ASKED) == RIGHT
    report = elsewhere.upkeep.fsck()
    assert not report.ok and "1 stored twice" in report.mendable[0]
    assert elsewhere.upkeep.repair().after.ok and values(elsewhere, encoder, ASKED) == RIGHT


def test_what_another_keyset_stored_is_neither_read_nor_dropped(
    elsewhere: KnowledgeBase, encoder: FakeEncoder
):
    second = FakeEncoder(salt="2")
    elsewhere.keysets.create(second.checkpoint, f"milvus:{collection(elsewhere).name}")
    with pytest.raises(CandidatesRefused, match="other data is stored there"):
        elsewhere.keysets.rekey(second)
    assert values(elsewhere, encoder, ASKED) == RIGHT


def test_an_erasure_is_out_of_the_collection_once_it_is_compacted(
    elsewhere: KnowledgeBase, encoder: FakeEncoder, milvus: MilvusServer
):
    if milvus.is_lite:
        pytest.skip("Milvus Lite does not tell what it has compacted")
    there = collection(elsewhere)
    report = Erasure(elsewhere).erase([fact_id(elsewhere, "value 7")], **WHO)
    second = report.levels[1]
    assert second.state == "reached" and "Milvus has compacted" in second.left
    assert there.num_rows() == there.count(strong=True) + 1 == NUMBER, "a mark is a row, too"
    there.drop()
    report = Erasure(elsewhere).erase([fact_id(elsewhere, "value 0")], **WHO)
    assert report.levels[1].state == "left" and "does not exist" in report.levels[1].left


def test_its_standing_is_told_and_nothing_is_opened_before_a_fork(
    elsewhere: KnowledgeBase, another_process: KnowledgeBase
):
    standing = elsewhere.upkeep.snapshot()
    assert standing is not None and standing.num_keys == standing.num_wanted == NUMBER
    another_process.searcher.open_here()
    assert another_process.searcher.applied_seq is None


def test_retiring_a_keyset_drops_its_collection(elsewhere: KnowledgeBase, encoder: FakeEncoder):
    there, first = collection(elsewhere), elsewhere.keysets.active()
    second = FakeEncoder(salt="2")
    activated(elsewhere, elsewhere.keysets.rekey(second).keyset_id)
    elsewhere.keysets.retire(first.keyset_id)
    assert not there.exists() and values(elsewhere, second, ASKED) == RIGHT


def test_a_server_that_is_killed_is_an_error_and_answers_rightly_when_it_is_back(
    elsewhere: KnowledgeBase, encoder: FakeEncoder, milvus: MilvusServer
):
    assert values(elsewhere, encoder, ASKED) == RIGHT
    milvus.kill()
    with pytest.raises(CandidatesUnavailable, match="COLMLM_MILVUS_URI"):
        values(elsewhere, encoder, ASKED)
    elsewhere.facts.delete([fact_id(elsewhere, "value 7")], **WHO)
    milvus.start()
    assert eventually(elsewhere, encoder) == ["value 0", None, "value 39"]


def test_a_server_that_is_put_back_to_an_older_state_loses_nothing(
    elsewhere: KnowledgeBase, another_process: KnowledgeBase, encoder: FakeEncoder, milvus: MilvusServer
):
    assert values(another_process, encoder, ASKED) == RIGHT
    milvus.kill()
    older = milvus.directory.with_name("older")
    shutil.copytree(milvus.directory, older)
    milvus.start()
    eventually(elsewhere, encoder)
    elsewhere.facts.delete([fact_id(elsewhere, "value 7")], **WHO)
    elsewhere.facts.add("Who wrote Emma?", "Jane Austen", **WHO)
    elsewhere.keysets.rekey(encoder)
    with KnowledgeBase.open(elsewhere.settings) as later:
        newest = held(later).mark.seq
        milvus.kill()
        shutil.rmtree(milvus.directory)
        older.rename(milvus.directory)
        milvus.start()
        right = ["value 0", None, "value 39"]
        assert eventually(later, encoder) == eventually(another_process, encoder) == right
        assert held(later).mark.seq < newest, "it was to be older"
        assert values(later, encoder, ["Who wrote Emma?"]) == ["Jane Austen"]
        later.lookups.snapshot()
        assert later.upkeep.fsck().ok


@pytest.mark.parametrize(
    ("error", "status", "code"), [(CandidatesUnavailable, 503, DATABASE), (CandidatesRefused, 503, INDEX)]
)
def test_each_edge_tells_what_is_elsewhere_from_what_is_wrong(error: type[KBError], status: int, code: int):
    told = error("Collection facts", "it is away")
    assert status_of(told) == status and explain(told).exit_code == code


def test_two_searches_give_each_id_once_and_the_best_first():
    one = np.array([[0.9, 0.5, 0.5]], np.float32), np.array([[1, 2, 2]])
    other = np.array([[0.9, 0.7, -np.inf]], np.float32), np.array([[1, 3, -1]])
    _, ids = merge_hits(one, other, 3)
    assert ids.tolist() == [[1, 3, 2]]


def test_a_collection_has_a_name_that_milvus_takes():
    require_spec(8, "milvus:facts_1")
    with pytest.raises(IndexInvariant):
        require_spec(8, "milvus:no spaces")
