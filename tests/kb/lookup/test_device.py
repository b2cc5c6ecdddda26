"""Exact search by torch, on tensors in main memory: against brute force, beside edits, and as the index of a base."""

from __future__ import annotations

import gc
import random
import threading
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest
import torch

from colmlm.kb.errors import CandidatesUnavailable, IndexInvariant, SnapshotRefused
from colmlm.kb.keys import keysets
from colmlm.kb.keys.keycopy import indexed_ids
from colmlm.kb.keys.keysets import AUTO_SPEC
from colmlm.kb.lookup.device import (
    MAIN_MEMORY,
    ROWS_AT_ONCE,
    DeviceCandidates,
    DeviceIndex,
    DevicePlace,
    choose_device,
    may_use_cuda,
    read_to_device,
    row_bytes,
    search_rows,
    split_queries,
)
from colmlm.kb.lookup.follower import Follower
from colmlm.kb.lookup.in_process import require_spec
from colmlm.kb.lookup.index import IdBits
from colmlm.kb.lookup.replica import Replica, load_saved_replica, save_replica, snapshots_of
from colmlm.kb.lookup.shared import folder_of, leftover_files, noted_snapshots
from colmlm.kb.lookup.specs import TORCH_SPEC
from colmlm.kb.removal.erase import Erasure, erase_facts
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.database import connection_of
from colmlm.kb.store.settings import Settings
from tests.fakes import FakeEncoder, activated
from tests.kb.corpora import fact_id, ingest, numbered, values
from tests.kb.lookup.test_follower import until

DIM, NUMBER = 16, 60
FAILING = "meta"  # torch's device without memory: whatever is read from it fails
WHO = {"actor": "tester", "reason": "test"}


def unit_rows(number: int, seed: int = 0, dim: int = DIM) -> np.ndarray:
    """Makes rows of length 1 whose numbers have 16 bits, as stored keys do."""
    rows = np.random.default_rng(seed).standard_normal((number, dim))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float16).astype(np.float32)


XB, XQ = unit_rows(3_000), unit_rows(130, seed=1)


def index_of(ids: Iterable[int], **given: int) -> DeviceIndex:
    """Makes an index that holds row i of XB under id i."""
    index, ids = DeviceIndex(DIM, MAIN_MEMORY, **given), np.array(list(ids), np.int64)
    index.add(ids, XB[ids])
    return index


def assert_exact(index: DeviceIndex, live: Iterable[int], only: IdBits | None = None, k: int = 5) -> None:
    """The index finds the best of these rows, in the order of their scores, as brute force does."""
    ids = np.array(sorted(live), np.int64)
    scores = XQ @ XB[ids].T
    D, I = index.search(XQ, k, only)  # noqa: E741
    best = -np.sort(-scores, axis=1)[:, :k]
    assert D[:, : best.shape[1]] == pytest.approx(best, abs=1e-6)
    assert (I[:, best.shape[1] :] == -1).all() and np.isneginf(D[:, best.shape[1] :]).all()
    for row, found, scored in zip(scores, I, D, strict=True):
        there = found >= 0
        assert row[np.searchsorted(ids, found[there])] == pytest.approx(scored[there], abs=1e-6)
        assert len(set(found[there])) == there.sum()


def test_any_sequence_of_edits_answers_as_brute_force() -> None:
    drawn, index, live = random.Random(3), DeviceIndex(DIM, MAIN_MEMORY), set[int]()
    for _ in range(60):
        some = set(drawn.sample(range(len(XB)), drawn.choice([1, 40, 500])))
        if drawn.random() < 0.5:
            new = sorted(some - live, reverse=True)
            index.add(np.array(new, np.int64), XB[new])
            live |= some
        else:
            assert index.remove(some) == len(some & live)
            live -= some
        assert index.ids.tolist() == sorted(live) and len(index) == len(live)
        assert index.missing(some).tolist() == sorted(some - live)
        assert_exact(index, live)
    assert index.capacity <= 2 * len(XB), "free rows are used again"


def test_each_refused_add_leaves_the_index_as_it_was() -> None:
    index = index_of(range(10))
    for ids, keys in (
        ([10, 10], XB[:2]),
        ([9, 10], XB[:2]),
        ([-1], XB[:1]),
        ([10], XB[:2]),
        ([10], XB[:1, :8]),
        ([10], np.full((1, DIM), np.nan)),
    ):
        with pytest.raises(IndexInvariant):
            index.add(ids, keys)
    assert_exact(index, range(10))


def test_the_capacity_doubles_and_memory_is_told() -> None:
    index = index_of(range(1000), capacity=1000)
    before = index.memory
    assert (before.device, before.num_keys, before.capacity) == (MAIN_MEMORY, 1000, 1024)
    assert (before.device_bytes, before.main_bytes) == (0, 1024 * row_bytes(DIM))
    index.add(np.arange(1000, 1100), XB[1000:1100])
    assert index.capacity == 2048 and not index.is_spilled
    index.add(np.arange(1100, 3000), XB[1100:])
    assert index.capacity == 4096
    assert_exact(index, range(3000))
    assert row_bytes(576) == 1161


def test_more_rows_than_are_multiplied_at_once_and_more_queries_than_a_batch_are_searched() -> None:
    number = 2 * ROWS_AT_ONCE[MAIN_MEMORY] + 7
    keys, index = unit_rows(number, seed=2), DeviceIndex(DIM, MAIN_MEMORY, capacity=number)
    index.add(np.arange(number), keys)
    index.remove([0, number - 1])
    D, I = index.search(XQ, 3)  # noqa: E741
    best = -np.sort(-(XQ @ keys[1:-1].T), axis=1)[:, :3]
    assert np.abs(D - best).max() < 1e-6 and I.min() > 0 and I.max() < number - 1
    assert index.search(XQ[:0], 3)[0].shape == (0, 3) and index.search(XQ, 0)[1].shape == (len(XQ), 0)


def test_what_has_no_room_on_the_device_stays_in_main_memory_and_is_found() -> None:
    room = 1500 * row_bytes(DIM)
    index = index_of(range(1000), most_bytes=room)
    assert not index.is_spilled
    index.add(np.arange(1000, 1400), XB[1000:1400])
    assert not index.is_spilled and index.capacity == 1500, "it takes what is left there"
    index.add(np.arange(1400, 3000), XB[1400:])
    assert index.is_spilled
    assert_exact(index, range(3000))
    candidates = DeviceCandidates(index, 1)
    assert candidates.has_outgrown(AUTO_SPEC) and not candidates.has_outgrown(TORCH_SPEC)


def test_fewer_rows_at_once_give_the_same() -> None:
    index = index_of(range(3000))
    index.remove(range(0, 3000, 3))
    (block,) = index._blocks
    for only in (None, IdBits(np.arange(0, 3000, 2))):
        whole = search_rows(block, XQ, 7, only, 4096)
        for at_once in (5, 64, 1024):
            D, I = search_rows(block, XQ, 7, only, at_once)  # noqa: E741
            assert pytest.approx(whole[0], abs=1e-6) == D and (whole[1] == I).mean() > 0.99


def test_a_query_of_any_length_is_the_sum_of_two_of_16_bits() -> None:
    lengths = np.geomspace(1e-12, 1e12, len(XQ), dtype=np.float32)[:, None]
    halves, scale = split_queries(torch.from_numpy(XQ * lengths))
    assert halves.dtype == torch.float16 and halves.isfinite().all()
    high, low = halves.float().chunk(2)
    assert (((high + low) * scale).numpy() / lengths) == pytest.approx(XQ, abs=3e-7)
    halves, scale = split_queries(torch.zeros(1, DIM))
    assert not halves.any() and scale.isfinite().all()


def test_only_keys_whose_bits_are_set_are_found() -> None:
    index, some = index_of(range(3000)), range(0, 500, 7)
    bits = IdBits(np.array(some[:-1], np.int64))  # they end before the last id of the index
    assert len(bits.bits) * 8 < 10_000
    bits.put(np.array(some[-1:], np.int64))
    assert_exact(index, some, bits)
    index.remove(some[:10])
    assert_exact(index, some[10:], bits)
    far = IdBits(np.array([5], np.int64))
    index.add([40_000], XB[:1])
    assert set(index.search(XQ, 3, far)[1].ravel().tolist()) == {5, -1}


def test_a_removed_key_leaves_no_row_in_memory_and_its_row_is_used_again() -> None:
    index = index_of(range(20))
    index.remove([3])
    (block,) = index._blocks
    assert (block.keys.float().numpy() @ XB[3]).max() < 0.99 and not block.keys[3].any()
    assert block.dead[3] and block.ids[3] == -1
    index.add([500], XB[500:501])
    assert block.ids[3] == 500
    assert_exact(index, {*range(20), 500} - {3})


def test_the_rows_of_an_index_that_is_dropped_are_zeroed() -> None:
    index = index_of(range(20))
    keys = index._blocks[0].keys
    assert keys[:20].any()
    del index
    gc.collect()
    assert not keys.any()


def test_an_index_whose_device_fails_holds_nothing_more_and_says_so() -> None:
    index = DeviceIndex(DIM, FAILING)
    index.add(range(10), XB[:10])
    assert len(index) == 10 and not index.is_lost
    with pytest.raises(CandidatesUnavailable, match=r"the device meta: .*No lookup was answered"):
        index.search(XQ, 3)
    assert index.is_lost and (len(index), index.capacity) == (0, 0)
    for call in (lambda: index.search(XQ, 3), lambda: index.add([1], XB[:1]), lambda: index.remove([1])):
        with pytest.raises(CandidatesUnavailable, match="reads the keys again"):
            call()


def test_a_search_beside_edits_gives_no_key_the_id_of_another() -> None:
    index, stop, wrong = index_of(range(200)), threading.Event(), list[int]()

    def search() -> None:
        while not stop.is_set():
            D, I = index.search(XQ[:8], 10)  # noqa: E741
            exact = np.einsum("bd,bkd->bk", XQ[:8], XB[I])
            wrong.extend(I[np.abs(D - exact) > 1e-5].tolist())

    searching = [threading.Thread(target=search) for _ in range(3)]
    for thread in searching:
        thread.start()
    for n in range(300):
        index.remove([n % 200, 200 + n % 7])
        index.add([200 + n % 7, n % 200], XB[[200 + n % 7, n % 200]])
    stop.set()
    for thread in searching:
        thread.join()
    assert wrong == []


# The index of a base.


@pytest.fixture
def torch_kb(kb: KnowledgeBase, encoder: FakeEncoder) -> KnowledgeBase:
    """A base of numbered facts whose active keyset torch searches."""
    ingest(kb, *numbered(NUMBER))
    kb.keysets.create(encoder.checkpoint, TORCH_SPEC)
    kb.keysets.rekey(encoder)
    return kb


def held(kb: KnowledgeBase) -> DeviceCandidates:
    candidates = kb.searcher.current().candidates
    assert isinstance(candidates, DeviceCandidates)
    return candidates


def wanted(kb: KnowledgeBase, keyset_id: int = 1) -> list[int]:
    with kb.sessions() as session:
        return indexed_ids(session, keyset_id).tolist()


def test_edits_of_another_process_hold_at_once(
    torch_kb: KnowledgeBase, another_process: KnowledgeBase, encoder: FakeEncoder
) -> None:
    assert values(another_process, encoder, ["Question 7?"]) == ["value 7"]
    seven = fact_id(torch_kb, "value 7")
    torch_kb.facts.delete([seven], **WHO)
    assert values(another_process, encoder, ["Question 7?"]) == [None]
    another_process.lookups.catch_up()
    assert len(held(another_process)) == NUMBER - 1
    torch_kb.facts.restore([seven], **WHO)
    assert values(another_process, encoder, ["Question 7?"]) == ["value 7"]
    torch_kb.facts.edit(seven, "value VII", **WHO)
    assert values(another_process, encoder, ["Question 7?"]) == ["value VII"]
    ingest(torch_kb, *numbered(NUMBER + 3))
    torch_kb.keysets.rekey(encoder)
    assert values(another_process, encoder, [f"Question {NUMBER + 2}?"]) == [f"value {NUMBER + 2}"]
    another_process.lookups.catch_up()
    assert held(another_process).ids.tolist() == wanted(torch_kb)


def test_the_keyset_is_built_checked_switched_to_and_left_again(
    kb: KnowledgeBase, another_process: KnowledgeBase, encoder: FakeEncoder
) -> None:
    ingest(kb, *numbered(NUMBER))
    kb.keysets.rekey(encoder)
    second = FakeEncoder(salt="2")
    keyset_id = kb.keysets.create(second.checkpoint, TORCH_SPEC).keyset_id
    kb.keysets.rekey(second)
    kb.keysets.set_threshold(keyset_id, 0.5)
    built = kb.keysets.build(keyset_id)
    assert (built.index_spec, built.num_keys) == (TORCH_SPEC, NUMBER)
    report = kb.keysets.check(keyset_id, second, active_encoder=encoder)
    recalls = {c.name: c.figure for c in report.criteria if c.name.startswith("index recall")}
    assert set(recalls.values()) == {1.0} and "index ids wrong" not in report.failed
    with Follower(another_process, poll_seconds=0.01):
        activated(kb, keyset_id)
        assert values(another_process, second, ["Question 7?"]) == ["value 7"]
        until(lambda: another_process.searcher.keyset_in_use == keyset_id)
        assert another_process.searcher.memory == held(another_process).index.memory
        kb.keysets.rollback()
        assert values(another_process, encoder, ["Question 7?"]) == ["value 7"]
        assert another_process.searcher.memory is None


def test_no_snapshot_is_written_and_the_base_is_sound(
    torch_kb: KnowledgeBase, settings: Settings, encoder: FakeEncoder
) -> None:
    torch_kb.lookups.snapshot()
    assert not list(settings.index_directory.rglob("keyset-*"))
    assert torch_kb.upkeep.snapshot() is None and torch_kb.upkeep.is_read_at_start()
    report = torch_kb.upkeep.fsck()
    assert report.ok and report.index_ids == NUMBER and report.mendable == ()
    with torch_kb.sessions() as session, pytest.raises(SnapshotRefused, match="from the database"):
        load_saved_replica(session, keysets.keyset_head(session, 1), settings)
    with KnowledgeBase.open(settings) as reopened:
        reopened.searcher.open_here()
        assert reopened.searcher.applied_seq is None, (
            "a process that forks leaves torch to those that it forks"
        )
        assert values(reopened, encoder, ["Question 7?"]) == ["value 7"]
        standing = reopened.lookups.standing()
    assert standing.lag == 0 and standing.memory is not None and standing.memory.num_keys == NUMBER


def test_an_erased_key_is_in_no_row_and_the_erasure_reaches_its_level(torch_kb: KnowledgeBase) -> None:
    index, seven = held(torch_kb).index, fact_id(torch_kb, "value 7")
    key = FakeEncoder().vector("Question 7?")
    assert (index._blocks[0].keys.float().cpu().numpy() @ key).max() > 0.99
    assert Erasure(torch_kb).erase([seven], **WHO).levels[1].state == "reached"
    assert (index._blocks[0].keys.float().cpu().numpy() @ key).max() < 0.99
    assert index.ids.tolist() == wanted(torch_kb)


def test_a_process_with_a_device_leaves_no_snapshot_and_keeps_the_fit_of_the_others(
    kb: KnowledgeBase, settings: Settings, encoder: FakeEncoder
) -> None:
    ingest(kb, *numbered(NUMBER))
    kb.keysets.rekey(encoder)
    kb.lookups.snapshot()
    before = kb.keysets.show(1).index_fit
    with kb.sessions.begin() as session:
        keyset = keysets.keyset_head(session, 1)
        directory = snapshots_of(session, settings.index_directory)
        assert list(directory.glob("keyset-1*"))
        candidates = read_to_device(session, keyset, DevicePlace(MAIN_MEMORY))
        replica = Replica(keyset.keyset_id, keyset.checkpoint_id, keyset.dim, candidates)
        assert save_replica(session, replica, settings, share=True)
    assert before is not None and kb.keysets.show(1).index_fit == before
    assert not list(directory.glob("keyset-1*")), "it would keep keys that are erased later"
    assert candidates.ids.tolist() == wanted(kb)


def test_a_lookup_is_answered_though_the_device_fails(torch_kb: KnowledgeBase, encoder: FakeEncoder) -> None:
    with torch_kb.sessions() as session:
        keyset = keysets.keyset_head(session, 1)
        failing = read_to_device(session, keyset, DevicePlace(FAILING))
    lookups = torch_kb.searcher.of_keyset(1, Replica(1, keyset.checkpoint_id, keyset.dim, failing))
    (found,) = lookups.find(encoder.encode_questions(["Question 7?"]), checkpoint_id=keyset.checkpoint_id)
    assert [hit.value for hit in found.hits] == ["value 7"]
    assert failing.is_lost and not lookups.current().candidates.is_lost
    assert lookups.current().candidates.ids.tolist() == wanted(torch_kb)


def test_a_shared_snapshot_from_before_an_erasure_is_forgotten_where_torch_searches(
    first: KnowledgeBase,
) -> None:
    first.lookups.snapshot(share=True)
    with first.sessions.begin() as session:
        keyset = keysets.keyset_head(session, 1)
        candidates = read_to_device(session, keyset, DevicePlace(MAIN_MEMORY))
        replica = Replica(1, keyset.checkpoint_id, keyset.dim, candidates)
        assert save_replica(session, replica, first.settings, share=True)
        assert 1 in noted_snapshots(session), "it holds no erased key, and others may use it"
    with first.sessions.begin() as session:
        erase_facts(session, [fact_id(first, "value 7")], **WHO)
    with first.sessions.begin() as session:
        replica.catch_up(connection_of(session))
        assert save_replica(session, replica, first.settings, share=True)
        assert 1 not in noted_snapshots(session)
        folder = folder_of(session, first.settings)
        assert folder is not None and leftover_files(session, folder), "a purge removes what nobody names"


def test_torch_is_chosen_by_name_and_by_itself_only_where_a_device_may_be_used(
    kb: KnowledgeBase, settings: Settings, encoder: FakeEncoder
) -> None:
    without = replace(settings, index_device_percent=0)
    assert not may_use_cuda(without)
    keyset_id = kb.keysets.create(encoder.checkpoint).keyset_id
    with kb.sessions() as session:
        keyset = keysets.keyset_head(session, keyset_id)
        assert choose_device(session, keyset, without) is None
        named = replace(keyset, index_spec=TORCH_SPEC)
        assert choose_device(session, named, without) == DevicePlace(MAIN_MEMORY)
        for spec in ("IDMap2,Flat", "milvus:facts"):
            assert choose_device(session, replace(keyset, index_spec=spec), settings) is None
    require_spec(DIM, TORCH_SPEC)
    with pytest.raises(IndexInvariant):
        require_spec(DIM, "torch:other")
