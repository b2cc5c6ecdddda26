"""The index against brute force, its snapshots against damage and crashes, and both against threads.

`IVF4,Flat` reads all four lists (nprobe is at least nlist), so it is exact too and brute force judges it.
With PQ the scores are estimates, and the keys that stay must score the same after others have gone.
"""

from __future__ import annotations

import hashlib
import json
import resource
import struct
import subprocess
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from colmlm.kb import interpreter
from colmlm.kb.errors import IndexInvariant, KBError, SnapshotRefused
from colmlm.kb.lookup.index import KeyIndex
from colmlm.kb.lookup.specs import default_spec, paper_spec

DIM = 16
FLAT, IVF, PAPER, BITS = "IDMap2,Flat", "IVF4,Flat", "OPQ4_16,IVF4,PQ4", "RR16,IVF4,RaBitQ"
CODED = (PAPER, BITS)
REMEDY = "The server rebuilds the index from the database"


def clustered(n: int, seed: int = 0, d: int = DIM) -> np.ndarray:
    """n unit rows in 8 loose clusters: neighbours that differ little, as keys do."""
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((8, d))[rng.integers(8, size=n)] + 0.5 * rng.standard_normal((n, d))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


XB = clustered(400)
XQ = clustered(5, seed=1)


def index_of(ids: Iterable[int], spec: str = FLAT) -> KeyIndex:
    """An index that holds row i of XB under id i."""
    index, ids = KeyIndex(DIM, spec), list(ids)
    index.add(np.array(ids), XB[ids])
    return index


def answers(index: KeyIndex, xq: np.ndarray = XQ) -> list[dict[int, float]]:
    """For each query every id found and its score."""
    D, I = index.search(xq, len(index) + 3)  # noqa: E741
    return [dict(zip(i[i >= 0].tolist(), d[i >= 0].tolist(), strict=True)) for d, i in zip(D, I, strict=True)]


def assert_estimates(index: KeyIndex, live: set[int], estimates: list[dict[int, float]]) -> None:
    """The index finds the keys `live` and no others, each with the score that it had at first."""
    assert index.ids.tolist() == sorted(live)
    for found, scores in zip(answers(index), estimates, strict=True):
        assert found == pytest.approx({i: scores[i] for i in live}, abs=1e-5)


def assert_exact(index: KeyIndex, live: set[int], k: int = 4) -> None:
    """The index answers as brute force over rows `live` of XB does."""
    rows = sorted(live)
    assert index.ids.tolist() == rows and len(index) == len(rows)
    exact = XQ @ XB[rows].T
    for found, scores in zip(answers(index), exact, strict=True):
        assert found == pytest.approx(dict(zip(rows, scores.tolist(), strict=True)), abs=1e-5)
    best = -np.sort(-exact, axis=1)[:, :k]
    assert index.search(XQ, k)[0][:, : best.shape[1]] == pytest.approx(best, abs=1e-5)


class AnyEdits(RuleBasedStateMachine):
    """Any sequence of adds, removals, refused adds and restarts leaves what brute force says.

    Where the index has codes, a key that comes again scores as it did before it went.
    """

    spec = FLAT
    some_ids = st.sets(st.integers(0, 60), max_size=12)

    @initialize(ids=st.sets(st.integers(0, 60), min_size=8, max_size=20))
    def begin(self, ids: set[int]) -> None:
        self.index, self.live = index_of(range(400), self.spec), ids  # trained on all
        self.estimates = answers(self.index)
        self.index.remove(set(range(400)) - ids)

    @rule(ids=some_ids)
    def add(self, ids: set[int]) -> None:
        new = sorted(ids - self.live, reverse=True)
        self.index.add(np.array(new, dtype=np.int64), XB[new])
        self.live |= ids

    @rule(ids=some_ids)
    def remove(self, ids: set[int]) -> None:
        assert self.index.remove(ids) == len(ids & self.live)
        self.live -= ids

    @rule(ids=some_ids)
    def refused_add(self, ids: set[int]) -> None:
        if ids & self.live:
            with pytest.raises(IndexInvariant):
                self.index.add(sorted(ids), XB[sorted(ids)])

    @rule(seq=st.integers(0, 9))
    def restart(self, seq: int) -> None:
        path = self.directory()
        self.index.save(path, keyset_id=1, applied_seq=seq)
        self.index, applied_seq = KeyIndex.load(path, keyset_id=1, dim=DIM)
        assert applied_seq == seq

    @invariant()
    def agrees_with_brute_force(self) -> None:
        if not hasattr(self, "index"):
            return
        if self.spec in CODED:
            assert_estimates(self.index, self.live, self.estimates)
        else:
            assert_exact(self.index, self.live)

    directory: Callable[[], Path]


@pytest.mark.parametrize("spec", [FLAT, IVF, PAPER, BITS])
def test_any_sequence_of_edits_and_restarts_answers_as_brute_force(spec: str, tmp_path: Path) -> None:
    class Edits(AnyEdits):
        directory = staticmethod(lambda: tmp_path)

    Edits.spec = spec
    limits = settings(max_examples=25, stateful_step_count=12, derandomize=True, deadline=None, database=None)
    run_state_machine_as_test(Edits, settings=limits)


@pytest.mark.parametrize("spec", [FLAT, IVF, PAPER, BITS])
def test_keys_that_stay_keep_their_ids_and_scores_when_others_go(spec: str, tmp_path: Path) -> None:
    index = index_of(range(400), spec)
    before = answers(index)
    assert set(before[0]) == set(range(400))
    for gone in (range(0, 400, 7), range(1, 400, 3), range(390, 400)):
        index.remove(gone)
        stay = set(index.ids.tolist())
        assert not stay & set(gone)
        for found, all_scores in zip(answers(index), before, strict=True):
            assert found == pytest.approx({i: all_scores[i] for i in stay}, abs=1e-6)
    index.save(tmp_path, keyset_id=1, applied_seq=1)
    assert answers(KeyIndex.load(tmp_path, keyset_id=1, dim=DIM)[0]) == answers(index)


@pytest.mark.parametrize("spec", [FLAT, IVF])
def test_the_last_key_can_go_and_come_back(spec: str) -> None:
    index = index_of(range(10), spec)
    assert index.remove(range(100)) == 10
    assert len(index) == 0 and (index.search(XQ, 3)[1] == -1).all()
    index.add([7], XB[7:8])
    assert_exact(index, {7})


@pytest.mark.parametrize("spec", [FLAT, PAPER])
def test_an_empty_index_finds_nothing(spec: str, tmp_path: Path) -> None:
    index = KeyIndex(DIM, spec)
    assert index.remove([1]) == 0 and index.ids.tolist() == []
    index.add([], np.empty((0, DIM)))
    index.save(tmp_path, keyset_id=1, applied_seq=0)
    scores, ids = KeyIndex.load(tmp_path, keyset_id=1, dim=DIM)[0].search(XQ, 2)
    assert (scores == -np.inf).all() and (ids == -1).all() and ids.shape == (len(XQ), 2)


def test_what_is_missing_is_padded_after_what_is_found() -> None:
    scores, ids = index_of([3, 5]).search(XQ, 4)
    assert scores.dtype == np.float32 and ids.dtype == np.int64
    assert (np.sort(ids[:, :2]) == [3, 5]).all() and (ids[:, 2:] == -1).all()
    assert np.isfinite(scores[:, :2]).all() and (scores[:, 2:] == -np.inf).all()


def test_lists_that_are_not_read_leave_padding_too() -> None:
    index = index_of(range(400), "IVF128,Flat")  # 64 of the 128 lists are read
    scores, ids = index.search(XQ, 400)
    assert ((ids == -1) == (scores == -np.inf)).all()
    assert (ids[:, 0] >= 0).all() and (ids[:, -1] == -1).all()


def test_no_queries_give_no_rows() -> None:
    assert index_of([3]).search(np.empty((0, DIM)), 2)[1].shape == (0, 2)


REFUSED: dict[str, tuple[Any, Any]] = {
    "id twice in the call": ([8, 9, 8], XB[:3]),
    "id present": ([9, 2], XB[:2]),
    "negative id": ([-1], XB[:1]),
    "fractional id": ([1.5], XB[:1]),
    "fewer keys than ids": ([8, 9], XB[:1]),
    "another width": ([8], XB[:1, :8]),
    "a single row": ([8], XB[0]),
    "NaN": ([8, 9], np.vstack([XB[:1], np.full((1, DIM), np.nan)])),
    "infinity": ([8, 9], np.vstack([XB[:1], np.full((1, DIM), np.inf)])),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("spec", [FLAT, IVF])
def test_a_refused_add_adds_nothing(spec: str, case: str) -> None:
    index = index_of(range(5), spec)
    with pytest.raises(IndexInvariant):
        index.add(*REFUSED[case])
    assert_exact(index, set(range(5)))


@pytest.mark.parametrize("xq", [XQ[0], XQ[:, :8], np.full((1, DIM), np.nan)], ids=["a row", "width", "NaN"])
def test_queries_that_cannot_be_compared_are_refused(xq: np.ndarray) -> None:
    with pytest.raises(IndexInvariant):
        index_of([3]).search(xq, 1)


@pytest.mark.parametrize("n", [0, 255])
def test_too_few_keys_to_train_on_are_refused_and_the_index_stays_usable(n: int) -> None:
    index = KeyIndex(DIM, "IVF4,PQ4")
    if n:
        with pytest.raises(IndexInvariant, match="255 of 256"):
            index.add(range(n), XB[:n])
    assert len(index) == 0
    index.add(range(256), XB[:256])
    assert len(index) == 256


def test_a_rotation_is_learnt_from_as_many_keys_as_they_are_wide() -> None:
    """Faiss writes beyond its memory otherwise."""
    index, keys = KeyIndex(576, "OPQ144_576,IVF4,PQ144"), clustered(575, d=576)
    with pytest.raises(IndexInvariant, match="575 of 576"):
        index.add(range(575), keys)
    assert (index.train_min, len(index)) == (576, 0)


@pytest.mark.parametrize(
    "spec",
    [
        "IDMap2,IVF4,Flat",
        "IDMap,OPQ4,IVF4,PQ4",
        "Flat",
        "HNSW32",
        "IVF4,PQ4x4fs",
        "RR16,IVF4,RaBitQfs",
        "IDMap2,IVF4,RaBitQ",
        "IVF4,Flat,RFlat",
        "no",
        "",
    ],
)
def test_a_spec_that_does_not_remove_rightly_is_refused(spec: str) -> None:
    with pytest.raises(IndexInvariant):
        KeyIndex(DIM, spec)


def test_a_spec_that_does_not_fit_the_width_is_refused() -> None:
    with pytest.raises(IndexInvariant, match="width 16"):
        KeyIndex(DIM, "IVF4,PQ5")


@pytest.mark.parametrize(
    ("num_keys", "dim", "spec"),
    [
        (0, 576, FLAT),
        (50_000, 576, FLAT),
        (50_001, 576, "RR576,IVF512,RaBitQ"),
        (1_000_000, 960, "RR960,IVF2048,RaBitQ"),
        (10**9, 960, "RR960,IVF65536,RaBitQ"),
        (50_001, 128, "OPQ32_128,IVF512,PQ32"),
        (10**6, 3, FLAT),
        (10**6, 18, "OPQ4_16,IVF2048,PQ4"),
    ],
)
def test_default_spec_by_size(num_keys: int, dim: int, spec: str) -> None:
    assert default_spec(num_keys, dim) == spec
    assert KeyIndex(dim, default_spec(min(num_keys, 10**6), dim)).dim == dim


# Snapshots

HALF_A_TERABYTE = 2**39


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    index_of(range(20)).save(tmp_path / "index", keyset_id=1, applied_seq=7)
    return tmp_path / "index"


def index_file(path: Path) -> Path:
    (file,) = path.glob("*.faiss")
    return file


def load(path: Path) -> tuple[KeyIndex, int]:
    return KeyIndex.load(path, keyset_id=1, dim=DIM)


def assert_refused(path: Path, match: str | None = None, **other: int) -> None:
    with pytest.raises(SnapshotRefused, match=match) as refusal:
        KeyIndex.load(path, **{"keyset_id": 1, "dim": DIM} | other)
    assert REMEDY in str(refusal.value) and isinstance(refusal.value, KBError)


@pytest.mark.parametrize("spec", [FLAT, IVF, PAPER, BITS])
def test_a_loaded_snapshot_is_the_index_that_was_saved(spec: str, tmp_path: Path) -> None:
    index = index_of(range(300), spec)
    index.save(tmp_path, keyset_id=1, applied_seq=41)
    loaded, applied_seq = load(tmp_path)
    assert (applied_seq, loaded.spec, loaded.dim) == (41, spec, DIM)
    assert answers(loaded) == answers(index)
    loaded.add([399], XB[399:])  # it is trained and can be edited on
    assert loaded.remove([399, 0]) == 2 and loaded.ids.tolist() == list(range(1, 300))


def test_a_new_snapshot_replaces_the_old_one_of_its_keyset_only(saved: Path) -> None:
    index_of([5]).save(saved, keyset_id=11, applied_seq=3)
    for rows in (range(30), range(40)):  # the same seq, other keys
        index_of(rows).save(saved, keyset_id=1, applied_seq=8)
    assert len(load(saved)[0]) == 40
    assert len(KeyIndex.load(saved, keyset_id=11, dim=DIM)[0]) == 1
    assert len(list(saved.iterdir())) == 4


@pytest.mark.parametrize("at", [0, 0.5, -1])
def test_a_flipped_bit_in_the_index_file_is_refused(saved: Path, at: float) -> None:
    data = bytearray(index_file(saved).read_bytes())
    data[-1 if at < 0 else int(at * len(data))] ^= 1
    index_file(saved).write_bytes(data)
    assert_refused(saved, "checksum")


@pytest.mark.parametrize("cut", [slice(0, 0), slice(0, 100), slice(0, -1)])
def test_a_truncated_index_file_is_refused(saved: Path, cut: slice) -> None:
    index_file(saved).write_bytes(index_file(saved).read_bytes()[cut])
    assert_refused(saved, "checksum")


def test_a_flipped_bit_anywhere_in_the_manifest_is_refused(saved: Path) -> None:
    manifest = saved / "keyset-1.json"
    good = manifest.read_bytes()
    for at in range(len(good)):
        manifest.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        assert_refused(saved)
    manifest.write_bytes(good)
    assert load(saved)[1] == 7


@pytest.mark.parametrize("text", [b"", b"[]", b"null", b"{}", b"\xff", b'{"manifest_sha256": 1}'])
def test_a_manifest_that_is_none_is_refused(saved: Path, text: bytes) -> None:
    (saved / "keyset-1.json").write_bytes(text)
    assert_refused(saved)


def test_missing_pieces_are_refused(saved: Path) -> None:
    assert_refused(saved / "nowhere", "No such file")
    index_file(saved).unlink()
    assert_refused(saved, "No such file")
    (saved / "keyset-1.json").unlink()
    assert_refused(saved, "No such file")


def test_another_keyset_or_width_is_refused(saved: Path) -> None:
    assert_refused(saved, "No such file", keyset_id=2)
    (saved / "keyset-2.json").write_bytes((saved / "keyset-1.json").read_bytes())
    assert_refused(saved, r"of another index \(keyset 1, not 2\)", keyset_id=2)
    assert_refused(saved, r"\(dimensions 16, not 8\)", dim=8)


@pytest.mark.parametrize("lie", [{"count": 19}, {"format": 2}, {"spec": "HNSW32"}, {"count": None}])
def test_a_manifest_that_does_not_fit_its_file_is_refused(saved: Path, lie: dict[str, Any]) -> None:
    tell(saved, lie)
    assert_refused(saved)


def test_a_file_that_asks_for_more_memory_than_there_is_is_refused(saved: Path) -> None:
    """Its manifest fits it: who can write snapshots can write both."""
    file, size = index_file(saved), struct.pack("<Q", 20 * DIM)
    good = file.read_bytes()
    assert good.count(size) == 1
    file.write_bytes(good.replace(size, struct.pack("<Q", HALF_A_TERABYTE // 4)))
    tell(saved, {"sha256": hashlib.sha256(file.read_bytes()).hexdigest()})
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (HALF_A_TERABYTE, before[1]))  # some systems promise any amount
    try:
        assert_refused(saved)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def tell(path: Path, lie: dict[str, Any]) -> None:
    """Change the manifest in these fields, and its own checksum with them."""
    manifest = path / "keyset-1.json"
    fields = json.loads(manifest.read_text()) | lie
    del fields["manifest_sha256"]
    digest = hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
    manifest.write_text(json.dumps(fields | {"manifest_sha256": digest}, indent=1))


# Loads the old snapshot in argv[1]; one child per step then dies just before that step of saving a new one.
CRASHES = """
import os, shutil, sys
from pathlib import Path
import numpy as np
from colmlm.kb.lookup import index as key_index
old, step, done = Path(sys.argv[1]), 0, False
def dying(call, budget):
    def wrapped(*args, **kwargs):
        budget[0] -= 1
        if budget[0] < 0:
            os._exit(9)
        return call(*args, **kwargs)
    return wrapped
while not done:
    path = old.parent / f"crash-{step:02}"
    shutil.copytree(old, path)
    if (child := os.fork()) == 0:
        index, _ = key_index.KeyIndex.load(path, keyset_id=1, dim=16)
        index.remove([0])
        budget = [step]
        os.fsync = dying(os.fsync, budget)
        key_index.faiss.write_index = dying(key_index.faiss.write_index, budget)
        for name in ("replace", "unlink", "write_text"):
            setattr(Path, name, dying(getattr(Path, name), budget))
        index.save(path, keyset_id=1, applied_seq=8)
        os._exit(0)
    done, step = os.waitpid(child, 0)[1] == 0, step + 1
"""


def test_a_crash_at_any_step_of_saving_leaves_the_old_snapshot_or_the_new(saved: Path) -> None:
    subprocess.run(interpreter.command("-c", CRASHES, saved), check=True, timeout=120)
    crashed = sorted(saved.parent.glob("crash-*"))
    seqs = []
    for path in crashed:
        index, seq = load(path)
        assert_exact(index, set(range(20)) if seq == 7 else set(range(1, 20)))
        seqs.append(seq)
        index.save(path, keyset_id=1, applied_seq=9)  # clears up what the crash left
        assert load(path)[1] == 9 and len(list(path.iterdir())) == 2
    assert seqs == sorted(seqs) and seqs.count(7) >= 5 and seqs.count(8) >= 3


def test_a_save_that_fails_leaves_the_old_snapshot_and_no_scraps(saved: Path) -> None:
    index = index_of(range(3))
    (saved / "keyset-1.tmp").mkdir()  # Faiss can't write there
    with pytest.raises((OSError, RuntimeError)):
        index.save(saved, keyset_id=1, applied_seq=8)
    (saved / "keyset-1.tmp").rmdir()
    assert load(saved)[1] == 7 and len(list(saved.iterdir())) == 2


# Threads


def started(call: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    return thread


def is_waiting(thread: threading.Thread) -> bool:
    thread.join(timeout=0.2)
    return thread.is_alive()


def test_searches_run_beside_each_other_but_not_beside_an_edit() -> None:
    index = index_of(range(5))
    with index._lock.reading():
        beside = started(lambda: index.search(XQ, 1))
        beside.join(timeout=60)
        assert not beside.is_alive()
        edits = [started(lambda: index.remove([0])), started(lambda: index.add([9], XB[9:10]))]
        assert all(map(is_waiting, edits)) and len(index) == 5
    for edit in edits:
        edit.join(timeout=60)
    assert_exact(index, {1, 2, 3, 4, 9})
    with index._lock.writing():
        search = started(lambda: index.search(XQ, 1))
        assert is_waiting(search)
    search.join(timeout=60)
    assert not search.is_alive()


def test_an_edit_that_waits_goes_before_searches_that_come_later() -> None:
    index, outcomes = index_of(range(5)), list[str]()
    with index._lock.reading():
        edit = started(lambda: outcomes.append(f"edit {index.remove([0])}"))
        assert is_waiting(edit)
        search = started(lambda: outcomes.append(f"search {(index.search(XQ, 5)[1] == 0).sum()}"))
        assert is_waiting(search)
    for thread in (edit, search):
        thread.join(timeout=60)
    assert sorted(outcomes) == ["edit 1", "search 0"]  # the search no longer finds id 0


@pytest.mark.parametrize("spec", [FLAT, IVF, PAPER, BITS])
def test_searches_beside_edits_give_right_ids_and_none_already_removed(spec: str, tmp_path: Path) -> None:
    index = index_of(range(300), spec)
    codes = answers(index)[0]  # what each of the first 300 scores for XQ[0], exactly, whatever its neighbours
    gone: set[int] = set()
    ended = threading.Event()
    failures: list[BaseException] = []
    searches = [0] * 3

    def search(worker: int) -> None:
        try:
            while not ended.is_set():
                gone_before = set(gone)
                (scores,), (ids,) = index.search(XQ[:1], 20)
                assert not gone_before & set(ids.tolist())
                known = {int(i): float(s) for i, s in zip(ids, scores, strict=True) if 0 <= i < 300}
                assert known == pytest.approx({i: codes[i] for i in known}, abs=1e-5)
                assert set(ids.tolist()) <= set(range(-1, 400))
                searches[worker] += 1
        except BaseException as failure:
            failures.append(failure)

    def edit() -> None:
        try:
            for step in range(40):
                index.add([300 + step], XB[300 + step : 301 + step])
                batch = range(3 * step, 3 * step + 2)
                assert index.remove(batch) == 2
                gone.update(batch)
                if step % 20 == 0:
                    index.save(tmp_path, keyset_id=1, applied_seq=step)
        except BaseException as failure:
            failures.append(failure)

    searchers = [started(lambda worker=worker: search(worker)) for worker in range(3)]  # type: ignore[misc]
    editor = started(edit)
    editor.join(timeout=120)  # searches without pause don't starve it
    is_starved = editor.is_alive()
    ended.set()
    for thread in searchers:
        thread.join(timeout=60)
    assert not is_starved and not failures and min(searches) > 0
    assert index.ids.tolist() == sorted(set(range(340)) - gone)


@pytest.mark.parametrize(
    ("num_keys", "lists"), [(240_000_000, 65_536), (145_000_000, 65_536), (1_000_000, 2_048)]
)
def test_the_papers_spec_has_its_lists_at_the_papers_sizes(num_keys: int, lists: int) -> None:
    assert paper_spec(num_keys, 960) == f"OPQ240_960,IVF{lists},PQ240"
