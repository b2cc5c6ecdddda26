"""Repair makes anew what is derived, and leaves the truth as it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from sqlalchemy import text

from colmlm.kb.service import KnowledgeBase
from tests.fakes import FakeEncoder
from tests.kb.corpora import CAPITAL, PERU, fact_id, ingest, values
from tests.kb.log.rewriting import tamper

WHO = {"actor": "tester", "reason": "test"}


@pytest.fixture
def keyed(kb: KnowledgeBase, encoder: FakeEncoder) -> KnowledgeBase:
    """Two keysets with snapshots; the first is active."""
    ingest(kb, PERU)
    kb.keysets.rekey(encoder)
    kb.keysets.rekey(FakeEncoder(salt="2"))
    return kb


def _damage(kb: KnowledgeBase, *statements: str) -> None:
    with kb.engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement))


def _snapshot(kb: KnowledgeBase, pattern: str) -> Path:
    (found,) = kb.settings.index_directory.glob(f"*/{pattern}")
    return found


def test_a_sound_base_has_nothing_to_mend(keyed: KnowledgeBase):
    report = keyed.upkeep.repair()
    assert (report.mended, report.left) == ((), ()) and report.after.ok


@pytest.mark.parametrize("keyset_id", [1, 2])
def test_a_snapshot_with_other_keys_is_written_anew(
    keyed: KnowledgeBase, encoder: FakeEncoder, keyset_id: int
):
    _damage(
        keyed,
        f"UPDATE fact_key SET id = 1000 WHERE id = (SELECT min(id) FROM fact_key WHERE keyset_id = {keyset_id})",
    )
    assert not keyed.upkeep.fsck().ok
    dry = keyed.upkeep.repair(dry_run=True)
    assert len(dry.mended) == 1 and dry.left == () and not keyed.upkeep.fsck().ok
    report = keyed.upkeep.repair()
    assert report.mended == dry.mended and report.left == () and report.after.ok
    assert keyed.upkeep.fsck().ok and values(keyed, encoder, [CAPITAL]) == ["Lima"]


def test_what_no_answer_depends_on_is_cleared_up(keyed: KnowledgeBase):
    """Damaged snapshots, files of writers that died and of no keyset, a keyset that nobody finished."""
    for pattern in ("keyset-1-seq-*.faiss", "keyset-2.history"):
        _snapshot(keyed, pattern).write_bytes(b"damaged")
    directory = _snapshot(keyed, "keyset-1.json").parent
    for name in ("keyset-1.tmp", f"keyset-1-seq-9-{'0' * 16}.faiss", "keyset-77.json", "keyset-77.history"):
        (directory / name).write_text("left over")
    (directory / "notes.txt").write_text("not ours")
    _damage(keyed, "UPDATE keyset SET state = 'building' WHERE id = 2")
    before = keyed.upkeep.fsck()
    assert before.ok and len(before.mendable) == 7
    report = keyed.upkeep.repair()
    assert report.mended == before.mendable and report.after.ok and report.after.mendable == ()
    assert {file.name for file in directory.glob("*") if ".faiss" not in file.name} == {
        *("keyset-1.json", "keyset-1.history", "keyset-2.json", "keyset-2.history", "notes.txt")
    }
    assert len(list(directory.glob("*.faiss"))) == 2
    assert json.loads((directory / "keyset-2.history").read_text())["seq"] == keyed.log.head_seq()
    assert [keyset.state for keyset in keyed.keysets.all()] == ["active", "ready"]


def test_sentences_are_written_anew(keyed: KnowledgeBase):
    """Those of a text that an older release stored, of a fact, and of what is gone."""
    (fact,) = keyed.facts.add("Who wrote Emma?", "Jane Austen", **WHO).fact_ids
    with keyed.sessions() as session:
        before = [s[1:5] for s in keyed.words.find(session, "Lima Amazon Austen", 5)]
    _damage(keyed, "DELETE FROM sentence WHERE ordinal < 2", "UPDATE sentence SET words = ''")
    assert not keyed.upkeep.fsck().ok
    dry = keyed.upkeep.repair(dry_run=True)
    assert len(dry.mended) == 2 and str([fact]) in dry.mended[1] and dry.left == ()
    report = keyed.upkeep.repair()
    assert report.mended == dry.mended and report.left == () and report.after.ok
    with keyed.sessions() as session:
        assert [s[1:5] for s in keyed.words.find(session, "Lima Amazon Austen", 5)] == before


def test_the_truth_is_reported_and_never_touched(keyed: KnowledgeBase):
    lima = fact_id(keyed, "Lima")
    _damage(keyed, "UPDATE document SET text = replace(text, 'Lima', 'LIMA')")
    tamper(keyed, "UPDATE change SET reason = 'another' WHERE seq = 2")
    report = keyed.upkeep.repair()
    assert not report.after.ok and len(report.left) == 3
    assert str(lima) in report.left[0].problem and "change 2" in report.left[1].problem
    assert "sha256" in report.left[2].problem and all(left.remedy for left in report.left)
    assert keyed.documents.text(1).count("LIMA") == 1 and keyed.log.changes()[1].reason == "another"
