"""The place of shared snapshots: one that is another, not there or not mounted is never taken for the servers'."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import pytest
from sqlalchemy import text

from colmlm.kb.errors import SharedSnapshotsUnavailable
from colmlm.kb.lookup import shared
from colmlm.kb.lookup.shared import SharedFolder, publish_snapshot
from colmlm.kb.removal.erase import Erasure
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.settings import Settings
from colmlm.kb.store.waits import wait_for_turn
from tests.fakes import FakeEncoder
from tests.kb.corpora import fact_id, ingest, numbered
from tests.kb.lookup.sharing_servers import FACTS, folder_of, here, noted
from tests.s3_server import BUCKET, with_permissions

WHO = {"actor": "tester", "reason": "test"}


@contextmanager
def operator(settings: Settings, place: str | None) -> Iterator[KnowledgeBase]:
    """Opens the base as an operator elsewhere does, to whom this place of shared snapshots is named."""
    home = settings.home / "operator"
    with KnowledgeBase.open(replace(settings, home=home, shared_snapshots=place)) as opened:
        yield opened


@contextmanager
def turn_of(kb: KnowledgeBase) -> Iterator[Callable[[], bool]]:
    """Has the turn of keyset 1 in the block. Yields a check of whether another process waits for it."""
    with kb.sessions.begin() as session:
        wait_for_turn(session, 1)
        yield lambda: bool(session.scalar(text("SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)")))


def until(happened: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not happened():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


def is_outlived(kb: KnowledgeBase) -> bool:
    with kb.sessions() as session:
        return shared.may_hold_erased_keys(session, noted(kb))


@pytest.mark.parametrize("named", ["no place", "another directory", "a copy of the place"])
def test_an_erasure_from_where_another_place_is_named_says_so(
    first: KnowledgeBase, settings: Settings, tmp_path: Path, place: str, named: str
) -> None:
    other = None if named == "no place" else str(tmp_path / "other")
    (tmp_path / "other" / Path(folder_of(first).where).name).mkdir(parents=True)
    if named == "a copy of the place":
        copy = tmp_path / "other" / Path(folder_of(first).where).name / noted(first).file
        copy.write_bytes(Path(folder_of(first).where, noted(first).file).read_bytes())
    with operator(settings, other) as kb:
        erasure, erased = Erasure(kb), [fact_id(kb, "value 4")]
        traces = erasure.traces(erased)
        second = erasure.erase(erased, **WHO).levels[1]
        assert second.state == "left" and place in second.left and "COLMLM_SHARED_SNAPSHOTS" in second.remedy
        residue = erasure.residue(traces)
        assert not residue.clean and any(place in said for said in residue.unseen)
    assert Erasure(first).finish(now=False).levels[1].state == "reached" and not is_outlived(first)
    with operator(settings, f"file://{place}/") as kb:
        assert Erasure(kb).finish(now=False).levels[1].state == "reached", (
            "the same place in another spelling"
        )


@pytest.mark.parametrize("there", ["nothing", "an empty directory"])
def test_a_place_that_is_not_mounted_is_not_made_and_not_taken_for_an_empty_one(
    first: KnowledgeBase, place: str, there: str
) -> None:
    kept = Path(place).rename(Path(place).with_name("mounted elsewhere"))
    if there == "an empty directory":
        Path(place).mkdir()
    with pytest.raises(SharedSnapshotsUnavailable, match="mount"):
        first.lookups.snapshot(share=True)
    second = Erasure(first).erase([fact_id(first, "value 4")], **WHO).levels[1]
    assert second.state == "left" and "mount" in second.left
    first.lookups.snapshot()
    assert Path(place).is_dir() is (there == "an empty directory") and list(Path(place).rglob("*")) == []
    if there == "an empty directory":
        Path(place).rmdir()
    kept.rename(place)
    assert Erasure(first).finish(now=False).levels[1].state == "reached" and not is_outlived(first)


def test_a_folder_that_is_lost_is_made_again_by_the_repair_that_the_refusal_names(
    first: KnowledgeBase,
) -> None:
    shutil.rmtree(folder_of(first).where)
    with pytest.raises(SharedSnapshotsUnavailable, match=r"Mount its disk.*`colmlm doctor --data --repair`"):
        first.lookups.snapshot(share=True)
    assert first.upkeep.repair().after.mendable == ()
    assert folder_of(first).names() == [noted(first).file]


def test_a_file_with_erased_keys_that_is_gone_is_forgotten_by_a_repair_alone(first: KnowledgeBase) -> None:
    Path(folder_of(first).where, noted(first).file).unlink()
    second = Erasure(first).erase([fact_id(first, "value 4")], **WHO).levels[1]
    assert second.state == "left" and noted(first).file in second.left
    assert first.upkeep.repair().after.mendable == () and not is_outlived(first)
    assert Erasure(first).finish(now=False).levels[1].state == "reached"


def test_servers_move_to_another_place_by_a_repair(
    first: KnowledgeBase, settings: Settings, tmp_path: Path, place: str
) -> None:
    (tmp_path / "other").mkdir()
    with operator(settings, str(tmp_path / "other")) as kb:
        with pytest.raises(SharedSnapshotsUnavailable, match=place):
            kb.lookups.snapshot(share=True)
        (told,) = kb.upkeep.fsck().mendable
        assert place in told and noted(kb).place == place
        assert kb.upkeep.repair().after.mendable == ()
        assert noted(kb).place == str(tmp_path / "other") and folder_of(kb).names() == here(kb)


def test_a_retired_keysets_snapshot_is_known_until_it_is_removed(
    first: KnowledgeBase, settings: Settings
) -> None:
    first.keysets.activate(first.keysets.rekey(FakeEncoder(salt="2")).keyset_id, force=True)
    with first.engine.begin() as connection:
        connection.execute(text("UPDATE keyset SET shared_snapshot = NULL WHERE id = 2"))
    first.keysets.retire(1)
    with operator(settings, None) as kb:
        assert Erasure(kb).erase([fact_id(kb, "value 4")], **WHO).levels[1].state == "left"
    assert Erasure(first).finish(now=False).levels[1].state == "reached"
    assert folder_of(first).names() == [noted(first).file]
    with first.sessions() as session:
        assert set(shared.named_snapshots(session)) == {2}


@pytest.mark.parametrize("by", ["a release before", "a process that died"])
def test_a_retired_keysets_snapshot_that_was_removed_and_is_named_still_leaves_no_doubt(
    first: KnowledgeBase, settings: Settings, place: str, by: str
) -> None:
    removed, folder = noted(first).file, Path(folder_of(first).where)
    first.keysets.activate(first.keysets.rekey(FakeEncoder(salt="2")).keyset_id, force=True)
    first.keysets.retire(1)
    (folder / removed).unlink()
    if by == "a release before":
        with first.engine.begin() as connection:
            connection.execute(
                text("UPDATE keyset SET shared_snapshot = shared_snapshot - 'place' WHERE id = 1")
            )
    with operator(settings, place) as kb:
        kept = (folder / noted(kb).file).rename(settings.home / "kept")
        second = Erasure(kb).erase([fact_id(kb, "value 4")], **WHO).levels[1]
        assert second.state == "left" and removed in second.left, (
            "nothing shows that the folder is the servers'"
        )
        kept.rename(folder / noted(kb).file)
        assert kb.upkeep.fsck().mendable == ("shared snapshot of keyset 2: is from before an erasure",)
        assert Erasure(kb).finish(now=False).levels[1].state == "reached"
        with kb.sessions() as session:
            assert set(shared.named_snapshots(session)) == {2}


def test_an_erasure_that_comes_between_has_a_snapshot_made_and_shared_anew(
    first: KnowledgeBase, settings: Settings
) -> None:
    sharing_one = threading.Thread(target=lambda: first.lookups.snapshot(share=True))
    with operator(settings, None) as kb, turn_of(kb) as somebody_waits:
        sharing_one.start()
        until(somebody_waits)
        Erasure(kb).erase([fact_id(kb, "value 4")], **WHO)
    sharing_one.join()
    assert not is_outlived(first) and folder_of(first).names() == [noted(first).file]


def test_a_server_that_ends_waits_for_nobody_who_shares(first: KnowledgeBase, settings: Settings) -> None:
    with operator(settings, None) as kb, turn_of(kb):
        Erasure(kb).erase([fact_id(kb, "value 4")], **WHO)
        first.lookups.snapshot()
    assert is_outlived(first), "the erasure replaces it"


def test_the_former_file_is_there_until_the_new_one_is_committed(first: KnowledgeBase) -> None:
    first.facts.edit(fact_id(first, "value 1"), "edited", **WHO)
    first.lookups.snapshot()
    with first.sessions() as session:
        assert publish_snapshot(session, 1, first.keysets.show(1).dim, first.settings, anyway=True)
        session.rollback()
    assert noted(first).file in folder_of(first).names() and len(folder_of(first).names()) == 2
    first.lookups.snapshot(share=True)
    assert folder_of(first).names() == [noted(first).file]


def test_a_file_with_the_same_bytes_is_not_written_again(first: KnowledgeBase) -> None:
    file = Path(folder_of(first).where, noted(first).file)
    before = file.stat().st_mtime_ns
    first.lookups.snapshot(share=True)
    assert noted(first).file == file.name and file.stat().st_mtime_ns == before


def test_what_is_wrong_beside_the_storage_is_not_told_as_its_fault(first: KnowledgeBase) -> None:
    folder, name = folder_of(first), noted(first).file
    with pytest.raises(ZeroDivisionError), folder.reading(name) as stream:
        assert stream.read(1) and 1 / 0
    with pytest.raises(FileNotFoundError):
        folder.get(name, Path("/no/such/directory/here"), noted(first).num_bytes)
    with pytest.raises(SharedSnapshotsUnavailable), folder.reading("nothing"):
        raise AssertionError("it was opened")


def test_a_bucket_that_is_missing_is_out_of_reach_and_a_new_folder_is_empty(
    s3: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3.items():
        monkeypatch.setenv(name, value)
    assert SharedFolder(f"s3://{BUCKET}/new", "base").names() == []
    with pytest.raises(SharedSnapshotsUnavailable, match="bucket"):
        SharedFolder("s3://missing/new", "base").names()


@pytest.mark.slow(reason="shares snapshots by a server of object storage")
def test_parts_of_uploads_that_were_never_finished_are_told_of_and_go_with_an_erasure(
    settings: Settings, encoder: FakeEncoder, s3: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3.items():
        monkeypatch.setenv(name, value)
    with operator(settings, f"s3://{BUCKET}/uploads") as kb:
        ingest(kb, *numbered(FACTS))
        kb.keysets.rekey(encoder)
        storage, folder = fsspec.filesystem("s3"), folder_of(kb)
        for name in (noted(kb).file, "somebody's notes"):
            key = f"uploads/{folder.name}/{name}"
            storage.call_s3("create_multipart_upload", Bucket=BUCKET, Key=key)
        (told,) = kb.upkeep.fsck().mendable
        assert noted(kb).file in told and "parts" in told
        erasure, erased = Erasure(kb), [fact_id(kb, "value 4")]
        assert any("parts of an upload" in said for said in erasure.residue(erasure.traces(erased)).unseen)
        assert erasure.erase(erased, **WHO).levels[1].state == "reached"
        assert folder.unfinished_uploads().names == ("somebody's notes",) and folder.names() == [
            noted(kb).file
        ]


@pytest.mark.slow(reason="shares snapshots by a server of object storage")
@pytest.mark.parametrize("seen", [False, True])
def test_who_may_not_drop_parts_of_uploads_has_files_removed_and_is_told(
    settings: Settings,
    encoder: FakeEncoder,
    s3: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    seen: bool,
) -> None:
    files = ("s3:ListBucket", "s3:GetObject", "s3:PutObject", "s3:DeleteObject")
    parts = ("s3:ListBucketMultipartUploads",) if seen else ()
    with (
        with_permissions(s3, *files, *parts) as permitted,
        s3_as(permitted, monkeypatch) as storage,
        operator(settings, f"s3://{BUCKET}/permitted-{seen}") as kb,
    ):
        ingest(kb, *numbered(FACTS))
        kb.keysets.rekey(encoder)
        folder, former = folder_of(kb), noted(kb).file
        key = f"permitted-{seen}/{folder.name}/{former}"
        storage.call_s3("create_multipart_upload", Bucket=BUCKET, Key=key)
        told = f"{former} (parts of it)" if seen else "parts of unfinished uploads may not be listed"
        assert any(told in said for said in kb.upkeep.fsck().mendable)
        assert any(told in said for said in kb.upkeep.repair().after.mendable)
        erasure, erased = Erasure(kb), [fact_id(kb, "value 4")]
        traces = erasure.traces(erased)
        second = erasure.erase(erased, **WHO).levels[1]
        assert second.state == ("left" if seen else "reached") and told in second.left
        assert "s3:AbortMultipartUpload" in (second.remedy if seen else second.left)
        assert folder.names() == [noted(kb).file] != [former]
        assert any("parts of" in said for said in erasure.residue(traces).unseen)


@contextmanager
def s3_as(variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Has fsspec take these credentials in the block, and afterwards those before, and gives its storage."""
    with monkeypatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        fsspec.get_filesystem_class("s3").clear_instance_cache()
        try:
            yield fsspec.filesystem("s3")
        finally:
            fsspec.get_filesystem_class("s3").clear_instance_cache()
