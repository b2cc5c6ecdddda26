"""A backup is whole or refused; a restore brings everything back but what was erased since."""

from __future__ import annotations

import json
import os
import random
import shutil
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import URL, text

from colmlm.kb.access.tokens import create_token
from colmlm.kb.backup.restore import require_migration, restore_backup
from colmlm.kb.backup.write import archive_tables, open_backup, verify_backup, write_backup
from colmlm.kb.corpus.format import Parsed
from colmlm.kb.errors import LogRefused, SignatureRefused
from colmlm.kb.evidence.records import NewOutput
from colmlm.kb.facts.records import ReviewVerdict
from colmlm.kb.log.signing import KEY_FILE, fingerprint, signing_key
from colmlm.kb.log.witness import export_log, signed_head
from colmlm.kb.removal.erase import Erasure
from colmlm.kb.removal.persons import find_person, read_plan
from colmlm.kb.removal.sealing import default_key_file
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.settings import Settings
from tests.fakes import FakeEncoder
from tests.kb.corpora import CAPITAL, HEIGHT, PERU, RIVER, ask, document, fact_id, ingest
from tests.kb.full import fill
from tests.kb.log.rewriting import tamper
from tests.refusals import raises_code
from tests.servers import clone

WHO = {"actor": "tester", "reason": "test"}


@pytest.fixture
def original(kb: KnowledgeBase, encoder: FakeEncoder) -> KnowledgeBase:
    fill(kb, encoder)
    return kb


@pytest.fixture
def empty(server: URL, kb: KnowledgeBase, tmp_path: Path) -> Iterator[KnowledgeBase]:
    """An empty base in a home that has the signing key of `kb`, as after a move."""
    signing_key(kb.settings.home)
    (tmp_path / "new").mkdir()
    shutil.copy(kb.settings.home / KEY_FILE, tmp_path / "new" / KEY_FILE)
    with (
        clone(server) as url,
        KnowledgeBase.open(Settings(home=tmp_path / "new", database_url=url)) as opened,
    ):
        yield opened


def _backup(kb: KnowledgeBase, tmp_path: Path) -> Path:
    """Write a backup, and give the new home the sealing keys of now."""
    file = tmp_path / "kb.backup"
    write_backup(kb, file, signing_key(kb.settings.home))
    if (new := tmp_path / "new").is_dir():
        shutil.copy(default_key_file(kb.settings), new)
    return file


def _head(kb: KnowledgeBase, tmp_path: Path) -> Path:
    """The signed head of the log alone, as a file."""
    file = tmp_path / "head.json"
    with kb.sessions() as session:
        file.write_text(json.dumps(signed_head(session, signing_key(kb.settings.home))))
    return file


def _log(kb: KnowledgeBase, tmp_path: Path, home: Path | None = None) -> Path:
    """The exported log as a file, signed by the key of this base or of another home."""
    file = tmp_path / "log.jsonl"
    with kb.sessions() as session:
        file.write_text("".join(export_log(session, signing_key(home or kb.settings.home))))
    return file


def _rows(kb: KnowledgeBase) -> dict[str, list[str]]:
    with kb.engine.connect() as connection:
        return {
            table.name: sorted(connection.scalars(text(f"SELECT t::text FROM {table.name} t")))
            for table in archive_tables()
        }


def test_a_restored_base_is_the_original_to_the_last_row(
    original: KnowledgeBase, empty: KnowledgeBase, encoder: FakeEncoder, tmp_path: Path
):
    file = _backup(original, tmp_path)
    assert file.stat().st_mode & 0o777 == 0o600 and verify_backup(file).seq == original.log.head_seq()
    assert restore_backup(empty, file, actor="tester", dry_run=True).backup.rows["fact"] == 4
    assert empty.log.head_seq() == 0 and empty.upkeep.fsck().ok
    assert restore_backup(empty, file, actor="tester", log_file=_head(original, tmp_path)).repeated == ()
    rows = _rows(original)
    restored = _rows(empty)
    (noted,) = set(restored["change"]) - set(rows["change"])
    restored["change"].remove(noted)
    assert "restore-backup" in noted and all(rows.values())
    assert restored == {**rows, "browser_session": []}
    assert empty.upkeep.fsck().ok
    questions = (CAPITAL, RIVER, HEIGHT, "Unheard of?")
    here, there = (
        [replace(found, seq=0) for found in ask(base, encoder, *questions, k=3)] for base in (empty, original)
    )
    assert here == there
    edits = [base.facts.add("New?", "new", **WHO).fact_ids for base in (original, empty)]
    # Five facts have a key each, and one a second: it asked something else before, so its question has a key.
    assert edits[0] == edits[1] and empty.keysets.rekey(encoder).num_keys == 6
    with pytest.raises(Exception, match="append-only"), empty.engine.begin() as connection:
        connection.execute(text("DELETE FROM change"))
    with raises_code("DatabaseNotEmpty"):
        restore_backup(empty, file, actor="tester", without_later_erasures=True)
    with pytest.raises(FileExistsError):
        write_backup(original, file, signing_key(original.settings.home))


def test_any_flipped_bit_and_any_missing_end_is_refused(original: KnowledgeBase, tmp_path: Path):
    file = _backup(original, tmp_path)
    good = file.read_bytes()
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
    starts = [member.header_offset for member in members]
    chance = random.Random(3)
    offsets = {
        *(
            start + within for start in starts for within in (0, 10, 31, 60)
        ),  # header, name, rows of each member
        *range(len(good) - 200, len(good), 7),  # the directory and the seal
        *chance.sample(range(len(good)), 200),
    }
    for offset in sorted(offsets):
        damaged = bytearray(good)
        damaged[offset] ^= 1 << chance.randrange(8)
        file.write_bytes(damaged)
        with raises_code("BackupRefused"):
            verify_backup(file)
    for length in (0, 1, 71, len(good) // 2, len(good) - 71, len(good) - 1):
        file.write_bytes(good[:length])
        with raises_code("BackupRefused"):
            verify_backup(file)
    file.write_bytes(good)
    assert verify_backup(file).rows["fact"] == 4


def test_a_failed_backup_leaves_no_file(original: KnowledgeBase, tmp_path: Path):
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        write_backup(original, tmp_path / "kb.backup", signing_key(original.settings.home), on_bytes=full)
    assert not list(tmp_path.glob("*backup*"))


def test_what_a_killed_backup_left_goes_with_the_next(original: KnowledgeBase, tmp_path: Path):
    died, lives = tmp_path / ".kb.backup.999999999.tmp", tmp_path / f".kb.backup.{os.getppid()}.tmp"
    for left in (died, lives):
        left.write_text("texts")
    _backup(original, tmp_path)
    assert not died.exists() and lives.exists()


def test_what_was_erased_after_the_backup_stays_erased(
    original: KnowledgeBase, empty: KnowledgeBase, encoder: FakeEncoder, tmp_path: Path
):
    file = _backup(original, tmp_path)
    cusco, height = fact_id(original, "Cusco"), fact_id(original, "6,768 m")
    Erasure(original).erase([cusco], **WHO)
    original.facts.delete([height], **WHO)
    original.facts.restore([height], **WHO)
    original.facts.delete([height], **WHO)
    (later,) = original.facts.add("Later?", "later", **WHO).fact_ids
    Erasure(original).erase([later], **WHO)
    log = _log(original, tmp_path)
    report = restore_backup(empty, file, actor="tester", log_file=log, reapply_deletes=True)
    assert (report.erased_again, report.deleted_again) == ((cusco,), (height,))
    (repeated,) = report.repeated
    erased = next(change for change in original.log.changes() if change.kind == "erase")
    assert (repeated.seq, repeated.seq_here, repeated.fact_ids) == (
        erased.seq,
        report.backup.seq + 1,
        (cusco,),
    )
    assert report.log_head is not None and report.log_head.seq == original.log.head_seq()
    assert [lookup.hits for lookup in ask(empty, encoder, CAPITAL, HEIGHT)] == [(), ()]
    told = " ".join(row for rows in _rows(empty).values() for row in rows)
    assert "Cusco" not in told and "Lima" not in told and "6,768 m" in told
    with empty.sessions() as session:
        assert [empty.words.find(session, word, 1) == [] for word in ("Lima", "capital")] == [True, False]
    assert empty.upkeep.fsck().ok
    assert [change.kind for change in empty.log.changes()][-2:] == ["delete", "restore-backup"]


def test_what_was_rejected_or_limited_after_the_backup_is_so_again(
    original: KnowledgeBase, empty: KnowledgeBase, encoder: FakeEncoder, tmp_path: Path
):
    port = document("raw", "In raw stands ", ("Arica", "Where is the port?"), ".")
    original.corpora.ingest([Parsed(port)], "raw", generated=True, **WHO)
    original.corpora.ingest([Parsed(port)], "open", generated=True, **WHO)
    file = _backup(original, tmp_path)
    capital, height = fact_id(original, "Cusco"), fact_id(original, "6,768 m")
    for fact in map(original.facts.show, (capital, height)):
        original.review.settle([ReviewVerdict(fact.fact_id, "reject", fact.version, fact.review)], **WHO)
    original.facts.restore([height], **WHO)
    original.facts.delete([height], **WHO)
    original.review.limit(corpus="raw", accepted_only=True, **WHO)
    for accepted_only in (True, False):
        original.review.limit(corpus="open", accepted_only=accepted_only, **WHO)
    original.review.limit(keyset_id=1, accepted_only=True, **WHO)
    original.corpora.ingest([Parsed(port)], "later", generated=True, **WHO)
    original.review.limit(corpus="later", accepted_only=True, **WHO)
    log = _log(original, tmp_path)
    report = restore_backup(empty, file, actor="tester", log_file=log, reapply_deletes=True)
    assert report.deleted_again == (capital, height)
    assert [(one.corpus, one.keyset) for one in report.limited_again] == [("raw", None), (None, 1)]
    there, here = (
        [(fact.review, fact.deleted_seq is None) for fact in map(base.facts.show, (capital, height))]
        for base in (original, empty)
    )
    assert here == there == [("rejected", False), ("accepted", False)]
    limits = [
        {one.corpus: one.accepted_only for one in base.corpora.all() if one.corpus != "later"}
        for base in (original, empty)
    ]
    assert limits[0] == limits[1] == {"lands": True, "raw": True, "open": False}
    assert [keyset.accepted_only for keyset in empty.keysets.all()] == [True, False]
    kinds = [change.kind for change in empty.log.changes() if change.seq > report.backup.seq]
    assert kinds == ["accepted-only", "accepted-only", "reject", "delete", "restore-backup"]
    empty.facts.restore([capital], **WHO)
    assert empty.facts.show(capital).review == "accepted" and empty.upkeep.fsck().ok


def test_a_backup_of_another_migration_is_refused(original: KnowledgeBase, tmp_path: Path):
    with open_backup(_backup(original, tmp_path)) as archive:
        require_migration(archive)
        other = replace(archive, manifest={**archive.manifest, "migration": "9999"})
        with raises_code("BackupRefused", match="it has migration 9999, but this program has"):
            require_migration(other)


def test_a_repeated_erasure_reaches_as_far_as_it_did(
    original: KnowledgeBase, empty: KnowledgeBase, tmp_path: Path
):
    """In other documents that mention the value, and in outputs that it left at first."""
    ingest(original, document("news", ("Nobody", "Who moved?"), " moved to Cusco, and none to 6,768 m."))
    original.outputs.record(
        NewOutput("How high?", "It has 6,768 m.", "fake", "auto", original.log.head_seq(), ())
    )
    file = _backup(original, tmp_path)
    cusco, height = fact_id(original, "Cusco"), fact_id(original, "6,768 m")
    Erasure(original).erase([cusco], mentions="all", **WHO)
    Erasure(original).erase([height], mentions="none", **WHO)
    Erasure(original).erase([height], **WHO)
    report = restore_backup(empty, file, actor="tester", log_file=_log(original, tmp_path))
    assert report.erased_again == (cusco, height)
    there, here = (
        {name: rows for name, rows in _rows(base).items() if name in ("document", "generation", "fact")}
        for base in (original, empty)
    )
    told = " ".join(here["document"])
    assert "Cusco" not in told and "none to 6,768 m" in told
    assert here["document"] == there["document"]
    assert empty.upkeep.fsck().quoting == original.upkeep.fsck().quoting


def test_a_restore_blanks_again_what_named_a_person_and_repeats_an_erasure_whose_entry_was_blanked(
    original: KnowledgeBase, empty: KnowledgeBase, tmp_path: Path
):
    original.facts.add("What rose?", "The sun", actor="tester", reason="asked by Maria Keller")
    output = NewOutput("Where is Maria Keller?", "", "fake", "auto", original.log.head_seq(), ())
    original.outputs.record(output)
    file = _backup(original, tmp_path)
    cusco = fact_id(original, "Cusco")
    Erasure(original).erase([cusco], actor="tester", reason="for Maria Keller")
    plan = read_plan(original, find_person(original, "Maria Keller").plan)
    done = Erasure(original).erase(plan.fact_ids, **WHO, plan=plan).erased
    assert done is not None and done.places == {"change.reason": 2, "generation.prompt": 1}
    report = restore_backup(empty, file, actor="tester", log_file=_log(original, tmp_path))
    assert report.erased_again == (cusco,) and len(report.repeated) == 2
    told = " ".join(row for rows in _rows(empty).values() for row in rows)
    assert "Keller" not in told and "Cusco" not in told and empty.upkeep.fsck().chain_ok


def test_without_the_newer_log_nothing_that_was_erased_comes_back_unasked(
    original: KnowledgeBase, empty: KnowledgeBase, encoder: FakeEncoder, tmp_path: Path
):
    file = _backup(original, tmp_path)
    Erasure(original).erase([fact_id(original, "Cusco")], **WHO)
    with raises_code("NewerLogNeeded", match="--change-log"):
        restore_backup(empty, file, actor="tester")
    with pytest.raises(LogRefused, match="ends here"):  # the head says that more came, and not what
        restore_backup(empty, file, actor="tester", log_file=_head(original, tmp_path))
    assert empty.log.head_seq() == 0
    assert restore_backup(empty, file, actor="tester", dry_run=True).needs_log
    report = restore_backup(empty, file, actor="tester", without_later_erasures=True)
    assert report.without_later_erasures and not report.needs_log and report.log_head is None
    (found,) = ask(empty, encoder, CAPITAL)
    assert found.hits[0].value == "Cusco"


def test_a_log_without_its_erasure_is_refused_whoever_signed_it(
    original: KnowledgeBase, empty: KnowledgeBase, tmp_path: Path
):
    """Whoever has no key can chain a log anew, and sign it with a key of their own."""
    file, stranger = _backup(original, tmp_path), tmp_path / "stranger"
    Erasure(original).erase([fact_id(original, "Cusco")], **WHO)
    tamper(original, "DELETE FROM change WHERE kind = 'erase'")
    original.facts.add("Who?", "Me", **WHO)
    forged = _log(original, tmp_path, stranger)
    with pytest.raises(SignatureRefused, match="signed by key"):
        restore_backup(empty, file, actor="tester", log_file=forged)
    known, other = (fingerprint(_public(home)) for home in (original.settings.home, stranger))
    with pytest.raises(SignatureRefused, match="signed by key"):
        restore_backup(empty, file, actor="tester", log_file=forged, keys=[known])
    with pytest.raises(SignatureRefused, match="signed by key"):
        verify_backup(file, keys=[other])
    log = _log(original, tmp_path, stranger)
    assert restore_backup(
        empty, file, actor="tester", log_file=log, keys=[known, other], dry_run=True
    ).log_head
    assert empty.log.head_seq() == 0


def test_a_backup_of_an_unknown_signer_is_restored_only_where_its_signer_is_trusted(
    original: KnowledgeBase, empty: KnowledgeBase, tmp_path: Path
):
    """Whoever has no key of ours can still write and sign a base, with an admin's token in it."""
    with original.sessions.begin() as session:
        secret = create_token(session, "their admin", "admin")
    file, stranger = tmp_path / "their.backup", tmp_path / "stranger"
    write_backup(original, file, signing_key(stranger), key_file=default_key_file(empty.settings))
    theirs, own = (fingerprint(_public(home)) for home in (stranger, empty.settings.home))
    for known in (own, None):
        if known is None:  # as on a new machine
            (empty.settings.home / KEY_FILE).unlink()
        for dry_run in (False, True):
            with pytest.raises(SignatureRefused, match=f"--key {theirs}.*--key any") as refusal:
                restore_backup(empty, file, actor="tester", without_later_erasures=True, dry_run=dry_run)
            assert "tokens" in str(refusal.value) and "Nothing was changed" in str(refusal.value)
    assert empty.log.head_seq() == 0 and empty.access.of_secrets([secret]) == [None]
    dry = restore_backup(empty, file, actor="tester", keys=[theirs], dry_run=True)
    assert dry.backup.key == theirs
    restore_backup(empty, file, actor="tester", trust_signer=True, without_later_erasures=True)
    (token,) = empty.access.of_secrets([secret])
    assert token is not None and token.role == "admin"
    assert f'"key":"{theirs}"' in "".join(empty.log.export()).replace(" ", "")


def _public(home: Path) -> bytes:
    return signing_key(home).public_key().public_bytes_raw()


def test_a_log_of_another_life_is_refused(original: KnowledgeBase, empty: KnowledgeBase, tmp_path: Path):
    before = list(original.log.export())
    original.facts.add("Later?", "later", **WHO)
    file, log = _backup(original, tmp_path), tmp_path / "log.jsonl"
    ingest(empty, PERU)
    other = list(empty.log.export())
    newer = list(original.log.export())
    tamper(empty, "TRUNCATE document, fact, fact_version, change CASCADE")
    keys = [fingerprint(_public(base.settings.home)) for base in (original, empty)]
    for lines in (before, other, newer[:-1], [*newer[:3], *newer[4:]]):
        log.write_text("".join(lines))
        with pytest.raises(LogRefused):
            restore_backup(empty, file, actor="tester", log_file=log, keys=keys)
    assert empty.log.head_seq() == 0
