"""Snapshots that servers share: built by one and fetched by the others, never believed for their names, and pruned."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import text

from colmlm.kb.errors import SettingsError, SharedSnapshotsUnavailable
from colmlm.kb.jobs.kinds import WriteSnapshot
from colmlm.kb.jobs.queue import Jobs
from colmlm.kb.removal.erase import Erasure
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.settings import Settings
from tests.fakes import FakeEncoder
from tests.kb.corpora import fact_id, ingest, numbered, values
from tests.kb.lookup.sharing_servers import FACTS, Opened, folder_of, here, noted
from tests.s3_server import BUCKET, CREDENTIALS

QUESTIONS = [f"Question {n}?" for n in range(FACTS)]
EXPECTED = [f"value {n}" for n in range(FACTS)]
WHO = {"actor": "tester", "reason": "test"}


def fetched(caplog: pytest.LogCaptureFixture) -> int:
    return sum("fetched the shared snapshot" in record.message for record in caplog.records)


@pytest.mark.parametrize("kind", ["directory", "address of a directory", "memory", "s3"])
def test_a_snapshot_is_built_once_and_fetched_by_others(
    settings: Settings,
    encoder: FakeEncoder,
    tmp_path: Path,
    kind: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if kind == "s3":
        for name, value in request.getfixturevalue("s3").items():
            monkeypatch.setenv(name, value)
    (tmp_path / "shared").mkdir()
    place = {
        "directory": str(tmp_path / "shared"),
        "address of a directory": f"file://{tmp_path}/shared",
        "memory": f"memory://{tmp_path.name}",
        "s3": f"s3://{BUCKET}/servers/of/one/base",
    }[kind]
    there = replace(settings, shared_snapshots=place)
    with caplog.at_level(logging.DEBUG), ExitStack() as stack:
        first, second = (
            stack.enter_context(KnowledgeBase.open(replace(there, home=settings.home / machine)))
            for machine in ("first", "second")
        )
        ingest(first, *numbered(FACTS))
        keyset = first.keysets.rekey(encoder)
        assert folder_of(first).names() == [noted(first).file] == here(first)
        assert values(second, encoder, QUESTIONS) == EXPECTED
        assert here(second) == [noted(first).file] and fetched(caplog) == 1
        first.facts.delete([fact_id(first, "value 3")], **WHO)
        assert values(second, encoder, QUESTIONS[2:4]) == ["value 2", None]
        first.keysets.build(keyset.keyset_id)
        assert folder_of(first).names() == [noted(first).file] != here(second)
        assert second.upkeep.fsck().mendable == ()
    assert CREDENTIALS["AWS_SECRET_ACCESS_KEY"] not in caplog.text


def test_a_directory_of_shared_snapshots_is_its_owners_alone(first: KnowledgeBase) -> None:
    assert Path(folder_of(first).where).stat().st_mode & 0o077 == 0 and noted(first).num_bytes > 0


def test_of_servers_that_start_at_once_one_builds_and_the_others_fetch(
    first: KnowledgeBase, server_on: Opened, encoder: FakeEncoder, caplog: pytest.LogCaptureFixture
) -> None:
    folder_of(first).remove([noted(first).file])
    with first.engine.begin() as connection:
        connection.execute(text("UPDATE keyset SET shared_snapshot = NULL"))
    servers = [server_on(machine) for machine in ("a", "b", "c", "d")]
    with caplog.at_level(logging.INFO), ThreadPoolExecutor(len(servers)) as threads:
        for said in threads.map(lambda kb: values(kb, encoder, QUESTIONS), servers):
            assert said == EXPECTED
    assert fetched(caplog) == len(servers) - 1
    assert [here(kb) for kb in servers] == [[noted(first).file]] * len(servers)


@pytest.mark.parametrize("damage", ["other bytes", "shorter", "gone", "the place is a file"])
def test_a_shared_snapshot_is_not_believed_and_made_anew(
    first: KnowledgeBase, server_on: Opened, encoder: FakeEncoder, damage: str
) -> None:
    folder, record = folder_of(first), noted(first)
    file = Path(folder.where, record.file)
    data = file.read_bytes()
    if damage == "other bytes":
        file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    elif damage == "shorter":
        file.write_bytes(data[:-1])
    else:
        file.unlink()
    if damage == "the place is a file":
        file.parent.rmdir()
        file.parent.write_text("not a directory")
    (told,) = first.upkeep.fsck().mendable
    assert "shared snapshot" in told
    second = server_on("second")
    assert values(second, encoder, QUESTIONS) == EXPECTED
    if damage == "the place is a file":
        file.parent.unlink()
    repaired = first.upkeep.repair()
    assert repaired.after.ok and repaired.after.mendable == ()
    assert Path(folder.where, noted(first).file).exists()
    assert values(server_on("third"), encoder, QUESTIONS) == EXPECTED


def test_a_shared_snapshot_of_another_history_is_not_taken(
    first: KnowledgeBase, server_on: Opened, encoder: FakeEncoder, caplog: pytest.LogCaptureFixture
) -> None:
    with first.engine.begin() as connection:
        said = """UPDATE keyset SET shared_snapshot = shared_snapshot || '{"log_hash": "of another life"}'"""
        connection.exec_driver_sql(said)
    with caplog.at_level(logging.INFO):
        assert values(server_on("second"), encoder, QUESTIONS) == EXPECTED
    assert fetched(caplog) == 0 and noted(first).log_hash != "of another life"


def test_an_old_snapshot_here_gives_way_to_one_that_is_far_ahead(
    first: KnowledgeBase, server_on: Opened, encoder: FakeEncoder
) -> None:
    second = server_on("second")
    values(second, encoder, QUESTIONS)
    old = noted(first).file
    ingest(first, *numbered(3 * FACTS))
    first.keysets.rekey(encoder)
    assert here(second) == [old] and noted(first).file != old
    assert values(server_on("second"), encoder, ["Question 30?"]) == ["value 30"]
    assert here(second) == [noted(first).file]


def test_a_few_changes_do_not_make_every_server_copy_its_snapshot_when_it_ends(first: KnowledgeBase) -> None:
    before = noted(first)
    first.facts.edit(fact_id(first, "value 1"), "edited", **WHO)
    first.lookups.snapshot()
    assert noted(first) == before and here(first) != [before.file]
    first.lookups.snapshot(share=True)
    assert noted(first).applied_seq == first.log.head_seq() and folder_of(first).names() == here(first)


def test_files_that_nobody_names_are_told_of_and_pruned(first: KnowledgeBase) -> None:
    names = ["keyset-1-seq-3-0123456789abcdef.faiss", "keyset-77-seq-3-0123456789abcdef.faiss"]
    for name in (*names, "somebody's notes"):
        Path(folder_of(first).where, name).write_bytes(b"left over")
    report = first.upkeep.fsck()
    assert report.ok and all(any(name in told for told in report.mendable) for name in names)
    assert first.upkeep.repair().after.mendable == ()
    assert folder_of(first).names() == sorted([noted(first).file, "somebody's notes"])


@pytest.mark.slow(reason="shares snapshots by a server of object storage")
def test_erased_keys_are_in_no_shared_snapshot(
    first: KnowledgeBase, server_on: Opened, encoder: FakeEncoder
) -> None:
    second = server_on("second")  # as an operator elsewhere, without a snapshot of its own
    erasure, erased = Erasure(second), [fact_id(first, "value 4")]
    traces = erasure.traces(erased)
    place = folder_of(first).where
    Path(place, "keyset-77-seq-3-0123456789abcdef.faiss").write_bytes(
        Path(place, noted(first).file).read_bytes()
    )
    before = erasure.residue(traces)
    assert sum(file.path.startswith(place) for file in before.files) == 2
    report = erasure.erase(erased, **WHO)
    assert (report.level, report.levels[1].state) == (2, "reached")
    after = erasure.residue(traces)
    assert after.found["snapshots"] == 0 and folder_of(first).names() == [noted(first).file]
    assert Erasure(first).residue(traces).found["snapshots"] == 1, "the other server's own, until it saves"
    first.lookups.snapshot()
    assert Erasure(first).residue(traces).found["snapshots"] == 0
    assert values(first, encoder, QUESTIONS[3:6]) == ["value 3", None, "value 5"]


def test_an_erasure_says_that_the_shared_place_is_out_of_reach(first: KnowledgeBase, place: str) -> None:
    erased, kept = [fact_id(first, "value 4")], Path(place).rename(Path(place).with_name("elsewhere"))
    Path(place).write_text("not a directory")
    erasure = Erasure(first)
    traces = erasure.traces(erased)
    second = erasure.erase(erased, **WHO).levels[1]
    assert second.state == "left" and "cannot be used" in second.left
    assert any("cannot be used" in said for said in erasure.residue(traces).unseen)
    Path(place).unlink()
    kept.rename(place)
    assert erasure.finish(now=False).levels[1].state == "reached"
    assert not any(file.path.startswith(place) for file in erasure.residue(traces).files)


def test_a_retired_keysets_snapshot_goes_with_the_next_repair(first: KnowledgeBase) -> None:
    old = noted(first).file
    new = first.keysets.rekey(FakeEncoder(salt="2")).keyset_id
    assert len(folder_of(first).names()) == 2
    first.keysets.activate(new, force=True)
    first.keysets.retire(1)
    assert any(old in told for told in first.upkeep.fsck().mendable)
    first.upkeep.repair()
    assert folder_of(first).names() == [noted(first).file] != [old]


def test_workers_queue_one_snapshot_when_the_shared_one_is_old(
    first: KnowledgeBase, server_on: Opened
) -> None:
    for n in range(4):
        first.facts.edit(fact_id(first, f"value {n}"), f"edited {n}", **WHO)
    assert Jobs(first).share_snapshots(5) is None
    workers = [Jobs(server_on(machine)) for machine in ("a", "b")]
    with ThreadPoolExecutor(2) as threads:
        made = [job for job in threads.map(lambda jobs: jobs.share_snapshots(4), workers) if job is not None]
    assert [job.kind for job in made] == [WriteSnapshot.kind]
    assert Jobs(first).share_snapshots(4) is None, "one waits already"


def test_before_a_fork_a_snapshot_is_fetched_without_a_thread_that_stays(
    first: KnowledgeBase, server_on: Opened, encoder: FakeEncoder
) -> None:
    second, third = server_on("second"), server_on("third")
    threads = threading.active_count()
    second.searcher.open_here()
    assert second.searcher.applied_seq == first.log.head_seq() and here(second) == [noted(first).file]
    folder_of(first).remove([noted(first).file])
    third.searcher.open_here()
    assert third.searcher.applied_seq is None, "a server opens it after the fork"
    assert threading.active_count() == threads and values(third, encoder, QUESTIONS) == EXPECTED


def test_only_who_asks_to_share_is_told_that_the_place_is_out_of_reach(
    first: KnowledgeBase, place: str
) -> None:
    Path(place).rename(Path(place).with_name("elsewhere"))
    Path(place).write_text("not a directory")
    ingest(first, *numbered(3 * FACTS))
    first.keysets.rekey(FakeEncoder())
    with pytest.raises(SharedSnapshotsUnavailable, match="COLMLM_SHARED_SNAPSHOTS"):
        first.lookups.snapshot(share=True)


@pytest.mark.parametrize("refused", ["s3://key:hunter2@bucket/x", "simplecache::s3://hunter2/x", "hunter2/x"])
def test_a_place_holds_no_password_and_no_second_protocol(refused: str) -> None:
    with pytest.raises(SettingsError, match="COLMLM_SHARED_SNAPSHOTS") as told:
        Settings.from_environment({"HOME": "/", "COLMLM_SHARED_SNAPSHOTS": refused})
    assert "hunter2" not in str(told.value)
