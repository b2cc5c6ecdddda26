"""Try to read erased texts in an older backup: with today's keys that fails, with those of then it succeeds."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pyrage
import pytest
from sqlalchemy import URL, text

from colmlm.kb import interpreter
from colmlm.kb.backup.restore import restore_backup
from colmlm.kb.backup.sealed_rows import (
    LOST,
    RowForm,
    RowOpener,
    archive_columns,
    join_rows,
    sealed_columns,
    split_rows,
)
from colmlm.kb.backup.write import (
    BLOCK,
    MANIFEST,
    UNSEALED,
    PassingFile,
    archive_tables,
    open_backup,
    verify_backup,
    write_backup,
)
from colmlm.kb.evidence.records import NewFeedback, NewOutput, QuotedStretch, Splice
from colmlm.kb.facts.redaction import MARK
from colmlm.kb.jobs.kinds import MakeBackup, VerifyBackup
from colmlm.kb.jobs.queue import Jobs
from colmlm.kb.log import signing
from colmlm.kb.log.signing import KEY_FILE, signing_key
from colmlm.kb.log.witness import export_log
from colmlm.kb.removal.erase import Erasure
from colmlm.kb.removal.sealing import (
    OWNERS,
    default_key_file,
    describe_key_file,
    owner_number,
    read_key_file,
    read_tree,
    write_key_file,
)
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.settings import Settings
from colmlm.kb.tables import TableRow
from tests.fakes import FakeEncoder
from tests.kb.corpora import ask, document, fact_id, ingest
from tests.kb.full import fill
from tests.kb.jobs.process import worker
from tests.refusals import raises_code
from tests.servers import clone

WHO = {"actor": "tester", "reason": "test"}
WORD = "Quillaxtambo"
HER = replace(
    document(
        "her",
        ("Edda Quillaxtambo", "Who keeps the archive?"),
        " keeps the archive in ",
        ("Tarma", "Where?"),
        ".",
    ),
    title="Keepers",
)
LAKE = document("lake", "The lake is ", ("Junin", "Which lake is it?"), ".")


@pytest.fixture
def base(kb: KnowledgeBase, encoder: FakeEncoder) -> KnowledgeBase:
    """Fill a base whose rows of all kinds say a word, and others that do not."""
    fill(kb, encoder)
    ingest(kb, HER, LAKE, corpus="people")
    kb.keysets.rekey(encoder)
    (alone,) = kb.facts.add("Who is the keeper?", f"{WORD} herself", **WHO).fact_ids
    her = fact_id(kb, "Edda Quillaxtambo")
    seq = kb.log.head_seq()
    said = Splice(0, 17, "hit", her, 1, 0.9)
    output = kb.outputs.record(
        NewOutput("Who keeps the archive?", "Edda Quillaxtambo.", "fake", "auto", seq, (said,))
    )
    kb.outputs.give_feedback(output, NewFeedback("down", f"Edda {WORD} it is", f"Edda {WORD}"), actor="ann")
    kb.outputs.record(NewOutput(f"Is it Edda {WORD}?", "It is Edda Quillaxtambo.", "fake", "auto", seq, ()))
    (there,) = (one.document_id for one in kb.documents.find() if one.external_id == "her")
    part = Splice(21, 26, "hit", fact_id(kb, "Tarma"), 1, 0.9, None, 0, 5, 39, 44)
    assert HER.text[39:44] == "Tarma"
    quotes = QuotedStretch(there, 18, 44)
    kb.outputs.record(NewOutput("Where?", HER.text[18:44], "", "read", seq, (part,), quotes))
    for fact in (her, alone):
        kb.facts.edit(fact, f"{WORD} the younger", **WHO)
    with kb.engine.begin() as connection:
        for statement in (
            f"UPDATE question SET text = 'Is Edda {WORD} in?', expected = '{{Edda {WORD},x}}', fact_ids = '{{{her}}}'",
            f"UPDATE question_outcome SET question = 'Is Edda {WORD}?', value = 'Edda {WORD}', fact_ids = '{{{her}}}'",
            f"UPDATE erasure_request SET reason = 'Edda {WORD} asked', fact_ids = '{{{her}}}'",
            "INSERT INTO forget_run (state, policy, selector, fact_ids, plan, planned_seq, actor, reason)"
            f""" VALUES ('planned', 'abstain', '{{"text": "Edda {WORD}"}}', '{{{her}}}', '{{"a": ["Edda {WORD}"]}}',"""
            f" 3, 'ann', 'Edda {WORD}')",
            f"UPDATE idempotency SET body = 'Edda {WORD}'",
        ):
            connection.execute(text(statement.replace("%", "%%")))
    return kb


@pytest.fixture
def empty(server: URL, kb: KnowledgeBase, tmp_path: Path) -> Iterator[KnowledgeBase]:
    with _empty(server, kb, tmp_path / "new") as opened:
        yield opened


@contextmanager
def _empty(server: URL, kb: KnowledgeBase, home: Path) -> Iterator[KnowledgeBase]:
    """Make an empty base in a home that has the signing key of `kb` and no sealing keys."""
    signing_key(kb.settings.home)
    home.mkdir()
    shutil.copy(kb.settings.home / KEY_FILE, home / KEY_FILE)
    with clone(server) as url, KnowledgeBase.open(Settings(home=home, database_url=url)) as opened:
        yield opened


def _backup(kb: KnowledgeBase, file: Path) -> Path:
    write_backup(kb, file, signing_key(kb.settings.home))
    return file


def _log(kb: KnowledgeBase, tmp_path: Path) -> Path:
    file = tmp_path / "log.jsonl"
    with kb.sessions() as session:
        file.write_text("".join(export_log(session, signing_key(kb.settings.home))))
    return file


def _rows(kb: KnowledgeBase, *tables: str) -> dict[str, list[str]]:
    """Give every row of every table as text, with bytes as text where they are one."""
    with kb.engine.connect() as connection:
        found = {
            table.name: sorted(connection.scalars(text(f"SELECT t::text FROM {table.name} t")))
            for table in TableRow.metadata.sorted_tables
            if not tables or table.name in tables
        }
        if "idempotency" in found:
            found["idempotency"] += connection.scalars(
                text("SELECT convert_from(body, 'UTF8') FROM idempotency WHERE body IS NOT NULL")
            )
    return found


def _saying(kb: KnowledgeBase, word: str = WORD) -> list[str]:
    return sorted(
        name for name, rows in _rows(kb).items() if any(word.lower() in row.lower() for row in rows)
    )


SAID_IN = [
    "document",
    "erasure_request",
    "fact_past",
    "fact_version",
    "feedback",
    "forget_run",
    "generation",
    "idempotency",
    "question",
    "question_outcome",
]  # fmt: skip


def _members(file: Path) -> bytes:
    with zipfile.ZipFile(file) as archive:
        return file.read_bytes() + b"".join(archive.read(name) for name in archive.namelist())


def test_what_was_erased_since_cannot_be_read_with_the_keys_of_today(
    base: KnowledgeBase, empty: KnowledgeBase, server: URL, encoder: FakeEncoder, tmp_path: Path
):
    assert [name for name in _saying(base) if not name.startswith("sentence")] == SAID_IN
    file, then = _backup(base, tmp_path / "kb.backup"), tmp_path / "then.keys"
    shutil.copy(default_key_file(base.settings), then)
    raw = _members(file)
    assert WORD.encode() not in raw and b"Edda" not in raw and b"keeper" not in raw and b"Junin" not in raw
    with base.engine.connect() as connection:
        ids = list(
            connection.scalars(
                text(f"SELECT DISTINCT fact_id FROM fact_version WHERE value LIKE '%{WORD}%' ORDER BY 1")
            )
        )
    assert len(ids) == 2
    Erasure(base).erase(ids, **WHO)
    assert [name for name in _saying(base) if not name.startswith("sentence")] == []
    log, today = _log(base, tmp_path), default_key_file(base.settings)
    report = restore_backup(empty, file, actor="tester", log_file=log, key_file=today)
    assert _saying(empty) == [] and _saying(empty, "Tarma") == []
    assert {name: len(found) for name, found in report.lost.items()} == {
        "document": 1, "fact": 1, "generation": 2, "forget_run": 1, "erasure_request": 1, "feedback": 1,
        "question": 1, "question_outcome": 1, "idempotency": 1,
    }  # fmt: skip
    assert empty.upkeep.fsck().ok and empty.log.verify().ok
    (document_id,) = report.lost["document"]
    with empty.engine.connect() as connection:
        of_lost = text("SELECT title, text FROM document WHERE id = :id")
        title, said = connection.execute(of_lost, {"id": document_id}).one()
    assert title == LOST and set(said) == {MARK} and len(said) >= len(HER.text)
    told = next(change for change in empty.log.changes() if change.reason == LOST)
    assert told.kind == "erase" and set(ids) < set(told.fact_ids)
    # The rest of the base is there.
    kept = (
        "api_key",
        "checkpoint",
        "hold",
        "retention_rule",
        "question_set",
        "secret",
        "corpus_review",
    )
    assert _rows(empty, *kept) == _rows(base, *kept)
    (found,) = ask(empty, encoder, "Which lake is it?")
    assert found.hits[0].value == "Junin"
    # It has keys to be backed up with, and that backup is whole.
    assert describe_key_file(empty) == (default_key_file(empty.settings), None)
    again = _backup(empty, tmp_path / "again.backup")
    with _empty(server, base, tmp_path / "third") as third:
        assert not restore_backup(
            third, again, actor="tester", without_later_erasures=True,
            key_file=default_key_file(empty.settings),
        ).lost  # fmt: skip
        assert third.upkeep.fsck().ok
    # With the keys of then everything comes back.
    with _empty(server, base, tmp_path / "old") as old:
        report = restore_backup(old, file, actor="tester", without_later_erasures=True, key_file=then)
        assert not report.lost and old.upkeep.fsck().ok
        assert [name for name in _saying(old) if not name.startswith("sentence")] == SAID_IN


def test_the_database_destroys_just_the_key_that_the_program_derives(kb: KnowledgeBase):
    chance = random.Random(5)
    owners = [
        owner_number(table, row)
        for table in OWNERS
        for row in (1, 2, 3, 2**40, *chance.sample(range(10**6), 9))
    ]

    def names() -> dict[int, bytes | None]:
        with kb.sessions() as session:
            tree = read_tree(session)
        found = {owner: tree.key_of(owner) for owner in chance.sample(owners, len(owners))}
        return {owner: key and key.name for owner, key in found.items()}

    before = names()
    assert len(set(before.values())) == len(owners) and None not in before.values()
    gone = set(chance.sample(owners, 40))
    with kb.sessions() as session:
        then = dict(read_tree(session).seeds)
    with kb.engine.begin() as connection:
        for owner in gone:
            destroying = text("SELECT destroy_sealing_key(:kind, :row)")
            connection.execute(destroying, {"kind": owner >> 56, "row": owner & (2**56 - 1)})
    after = names()
    assert {owner for owner in owners if before[owner] != after[owner]} == gone and None not in after.values()
    with kb.sessions() as session:
        seeds = dict(read_tree(session).seeds)
    assert then.keys() == {""} and not set(then.values()) & set(seeds.values())
    # No seed stands above another one, so none leads to what was destroyed.
    assert not [path for path in seeds if any(path[:length] in seeds for length in range(len(path)))]


def test_only_what_redacts_destroys_a_key(base: KnowledgeBase):
    with base.sessions() as session:
        before = dict(read_tree(session).seeds)
    river = fact_id(base, "Tarma")
    base.facts.edit(river, "Jauja", **WHO)
    base.facts.delete([river], **WHO)
    base.facts.restore([river], **WHO)
    base.outputs.give_feedback(1, NewFeedback("up", "better", None), actor="ann")
    base.outputs.give_feedback(1, NewFeedback("down", "worse", None), actor="ann")
    ingest(base, replace(LAKE, title="A lake"), corpus="people")
    with base.sessions() as session:
        assert read_tree(session).seeds == before
    # As the release before does it, which knows no sealing keys.
    with base.engine.begin() as connection:
        connection.execute(
            text("UPDATE document SET text = replace(text, 'Tarma', '█████') WHERE external_id = 'her'")
        )
    with base.sessions() as session:
        assert read_tree(session).seeds != before


def test_every_column_that_an_erasure_redacts_is_sealed():
    for table in archive_tables():
        redacted = {c.name for c in table.columns if c.info.get("erasure") == "redacted"}
        assert redacted <= set(sealed_columns(table)), table.name
        assert sorted(archive_columns(table)) == sorted(c.name for c in table.columns)
        assert not set(sealed_columns(table)) & {c.name for c in table.primary_key}


def test_a_sealed_backup_needs_the_keys_of_its_base(
    base: KnowledgeBase, empty: KnowledgeBase, tmp_path: Path
):
    old = write_key_file(base, tmp_path / "old.keys")
    Erasure(base).erase([fact_id(base, "Junin")], **WHO)
    file, how = _backup(base, tmp_path / "kb.backup"), {"actor": "tester", "without_later_erasures": True}
    with raises_code("SealingKeysNeeded", match="--keys"):
        restore_backup(empty, file, **how)
    with raises_code("SealingKeysUnfit", match="is of change"):  # the document was given a key that it lacks
        restore_backup(empty, file, key_file=tmp_path / "old.keys", **how)
    foreign = json.loads((tmp_path / "old.keys").read_text().splitlines()[0])
    other = tmp_path / "other.keys"
    _, body = (tmp_path / "old.keys").read_text().split("\n", 1)
    other.write_text(json.dumps({**foreign, "database": "other"}) + "\n" + body)
    with raises_code("SealingKeysUnfit", match="of database other"):
        restore_backup(empty, file, key_file=other, **how)
    for broken in ("", "x", "{}\n{}", body):
        other.write_text(broken)
        with raises_code("BackupRefused", match="sealing keys"):
            restore_backup(empty, file, key_file=other, **how)
    assert empty.log.head_seq() == 0 and old.seq == base.log.head_seq() - 1
    today = default_key_file(base.settings)
    assert today.stat().st_mode & 0o777 == 0o600
    # A seed that is not that of the base: the field does not open, and the key's name tells it from a destroyed one.
    assert not restore_backup(empty, file, key_file=today, **how).lost
    assert empty.upkeep.fsck().ok


def test_an_erasure_rewrites_the_key_file_and_doctor_tells_of_a_stale_one(
    base: KnowledgeBase, tmp_path: Path
):
    _backup(base, tmp_path / "kb.backup")
    file = default_key_file(base.settings)
    then = file.read_bytes()
    report = Erasure(base).erase([fact_id(base, "Junin")], **WHO)
    assert file.read_bytes() != then and str(file) in report.levels[0].left
    with base.sessions() as session:
        assert read_key_file(file).seeds == read_tree(session).seeds
    assert describe_key_file(base) == (file, None)
    file.write_bytes(then)
    assert "stale" in str(describe_key_file(base)[1])
    assert any("stale" in said for said in base.upkeep.repair().mended)
    assert describe_key_file(base) == (file, None)


def _as_before(file: Path, keys: Path, target: Path, key_of: Path) -> None:
    """Write the backup as the format before had it: with its texts as they are."""
    with open_backup(file) as archive, zipfile.ZipFile(target, "w") as made:
        opener = RowOpener(read_key_file(keys), "", "", archive.backup.seq)
        tables = {table.name: table for table in archive_tables()}
        described = []
        for said in archive.manifest["tables"]:
            table, blocks = tables[said["name"]], archive.blocks(said)
            if sealed_columns(table):
                form = RowForm.of(table, archive.backup.database)
                blocks = join_rows(opener.open(split_rows(blocks), form), BLOCK)
            content = b"".join(blocks)
            made.writestr(said["name"], content)
            sha256 = hashlib.sha256(content).hexdigest()
            described.append({**{k: v for k, v in said.items() if k != "sealed"}, "sha256": sha256})
        manifest = {k: v for k, v in archive.manifest.items() if k != "signature"}
        manifest |= {"format": UNSEALED, "tables": described}
        made.writestr(MANIFEST, json.dumps(signing.sign_bytes(signing_key(key_of), manifest)))
        made.comment = b"sha256:" + b"0" * 64
    content = target.read_bytes()[:-71]
    target.write_bytes(content + b"sha256:" + hashlib.sha256(content).hexdigest().encode())


def test_a_backup_of_the_format_before_is_restored_without_keys(
    base: KnowledgeBase, empty: KnowledgeBase, tmp_path: Path
):
    file, old = _backup(base, tmp_path / "kb.backup"), tmp_path / "old.backup"
    _as_before(file, default_key_file(base.settings), old, base.settings.home)
    assert WORD.encode() in _members(old) and not verify_backup(old).is_sealed
    restore_backup(empty, old, actor="tester", without_later_erasures=True)
    assert _content(empty) == _content(base) and empty.upkeep.fsck().ok
    assert not default_key_file(empty.settings).exists()


def _content(kb: KnowledgeBase) -> dict[str, list[str]]:
    """Give all that a backup holds, but sessions, which a restore ends, and the change by which it was restored."""
    found = _rows(kb, *(table.name for table in archive_tables()))
    found["change"] = [row for row in found["change"] if "restore-backup" not in row]
    return found | {"browser_session": []}


@pytest.fixture
def identity(tmp_path: Path) -> Path:
    file = tmp_path / "identity.txt"
    file.write_text(f"# a comment\n{pyrage.x25519.Identity.generate()}\n")
    return file


def _recipient(identity: Path) -> str:
    return str(pyrage.x25519.Identity.from_str(identity.read_text().splitlines()[1]).to_public())


def test_an_encrypted_backup_is_for_its_recipients_alone(
    base: KnowledgeBase, empty: KnowledgeBase, identity: Path, tmp_path: Path
):
    other, listed, stranger = (tmp_path / name for name in ("other.txt", "recipients.txt", "stranger.txt"))
    for file in (other, stranger):
        file.write_text(f"{pyrage.x25519.Identity.generate()}\n")
    listed.write_text(
        f"# two people\n{pyrage.x25519.Identity.from_str(other.read_text().strip()).to_public()}\n"
    )
    file, keys = tmp_path / "kb.backup", tmp_path / "kb.keys"
    key = signing_key(base.settings.home)
    made = write_backup(base, file, key, recipients=[_recipient(identity), str(listed)], key_file=keys)
    assert made.is_encrypted and made.is_sealed and made.num_bytes == file.stat().st_size
    content = file.read_bytes()
    assert content.startswith(b"age-encryption.org/v1")
    for word in (WORD, "Edda", "keeper", "Junin", "manifest.json", "PGCOPY"):
        assert word.encode() not in content
    assert b"seeds" not in keys.read_bytes() and keys.stat().st_mode & 0o777 == 0o600
    for known in (identity, other):
        assert verify_backup(file, identities=known) == made
    how = {"actor": "tester", "without_later_erasures": True, "key_file": keys}
    with raises_code("IdentityNeeded", match="--identity"):
        verify_backup(file)
    with raises_code("BackupRefused", match="no key in"):
        restore_backup(empty, file, identities=stranger, **how)
    damaged = tmp_path / "damaged.backup"
    chance = random.Random(3)
    for length in (30, 200, 500, len(content) // 2, len(content) - 17, len(content) - 1):
        damaged.write_bytes(content[:length])
        with raises_code("BackupRefused"):
            verify_backup(damaged, identities=identity)
    for place in (*chance.sample(range(len(content)), 60), *range(len(content) - 40, len(content), 3)):
        flipped = bytearray(content)
        flipped[place] ^= 1 << chance.randrange(8)
        damaged.write_bytes(flipped)
        # A stanza may be changed that another recipient does not need, but the header's digest covers it.
        with raises_code("BackupRefused", "IdentityNeeded"):
            verify_backup(damaged, identities=identity)
    assert empty.log.head_seq() == 0
    (plain := tmp_path / "plain").mkdir()
    ran = subprocess.run(
        interpreter.command("-c", VERIFIED, str(file), str(damaged), str(identity)),
        env={**os.environ, "TMPDIR": str(plain)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert ran.stdout.split() == [str(plain), "0", "0"], "neither verifying nor refusing leaves a file"
    restore_backup(empty, file, identities=other, **how)
    assert _content(empty) == _content(base) and empty.upkeep.fsck().ok
    # The keys stay encrypted when they are written anew.
    kept = default_key_file(empty.settings)
    Erasure(empty).erase([fact_id(empty, "Junin")], **WHO)
    assert b"seeds" not in kept.read_bytes() and describe_key_file(empty) == (kept, None)
    with empty.sessions() as session:
        assert read_key_file(kept, identity).seeds == read_tree(session).seeds
    with raises_code("RecipientRefused", match="age1"):
        write_backup(base, tmp_path / "no.backup", key, recipients=["bob"])
    assert not (tmp_path / "no.backup").exists()


VERIFIED = """
import sys, tempfile
from pathlib import Path
from colmlm.kb.backup.write import verify_backup
from colmlm.kb.errors import KBError
file, damaged, identity = map(Path, sys.argv[1:])
folder = Path(tempfile.gettempdir())
verify_backup(file, identities=identity)
print(folder, len(list(folder.iterdir())))
try:
    verify_backup(damaged, identities=identity)
except KBError:
    print(len(list(folder.iterdir())))
"""

KILLED = """
import os, signal, sys
from pathlib import Path
from colmlm.kb.backup.write import verify_backup, write_backup
from colmlm.kb.log.signing import signing_key
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.settings import Settings
what, file, home, url, more = sys.argv[1:]
def kill(done):
    if done > 3000:
        open_files = [os.path.realpath(one) for one in Path("/proc/self/fd").iterdir()]
        print(sum("deleted" in one and os.environ["TMPDIR"] in one for one in open_files), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
if what == "write":
    with KnowledgeBase.open(Settings(home=Path(home), database_url=url)) as kb:
        write_backup(kb, Path(file), signing_key(kb.settings.home), recipients=[more], on_bytes=kill)
else:
    verify_backup(Path(file), kill, identities=Path(more))
"""


def test_a_kill_leaves_no_plain_text_on_the_disk(base: KnowledgeBase, identity: Path, tmp_path: Path):
    folder, plain = tmp_path / "folder", tmp_path / "plain"
    for one in (folder, plain):
        one.mkdir()
    url = str(base.engine.url.render_as_string(hide_password=False))

    def killed(what: str, more: str) -> str:
        given = [what, str(folder / "kb.backup"), str(base.settings.home), url, more]
        ran = subprocess.run(
            interpreter.command("-c", KILLED, *given),
            env={**os.environ, "TMPDIR": str(plain), "COLMLM_HOME": str(base.settings.home)},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert ran.returncode == -signal.SIGKILL, ran.stderr
        return ran.stdout.strip()

    killed("write", _recipient(identity))
    left = list(folder.iterdir())
    assert [one.suffix for one in left] == [".tmp"] and not list(plain.iterdir())
    for word in (WORD, "Edda", "PGCOPY", "document"):
        assert word.encode() not in left[0].read_bytes()
    write_backup(
        base, folder / "kb.backup", signing_key(base.settings.home), recipients=[_recipient(identity)]
    )
    assert [one.name for one in folder.iterdir()] == ["kb.backup"]
    assert killed("verify", str(identity)) == "1", "one file without a name was open"
    assert [one.name for one in folder.iterdir()] == ["kb.backup"] and not list(plain.iterdir())


def test_a_passing_file_is_read_as_it_was_written_and_stores_something_else(tmp_path: Path):
    chance, content = random.Random(7), random.Random(8).randbytes(5000)
    with (tmp_path / "stored").open("w+b") as stored:
        passing, at = PassingFile(stored), 0
        while at < len(content):
            at += passing.write(content[at : at + chance.randrange(1, 70)])
        for _ in range(200):
            start, size = chance.randrange(5000), chance.randrange(1, 90)
            assert passing.seek(start) == start
            assert passing.read(size) == content[start : start + size]
        assert passing.seek(-3, 2) == 4997 and passing.read() == content[-3:]
        stored.seek(0)
        assert not any(content[n : n + 8] in stored.read() for n in range(0, 4990, 50))


def test_backups_of_jobs_are_encrypted_where_the_settings_name_recipients(kb: KnowledgeBase, identity: Path):
    ingest(kb, HER)
    settings = replace(kb.settings, backup_recipients=(_recipient(identity),))
    with KnowledgeBase.open(settings) as opened:
        jobs = Jobs(opened)
        done = [
            jobs.submit(work, actor="ann")
            for work in (MakeBackup(name="a.backup"), VerifyBackup(name="a.backup"))
        ]
        worker(opened).run(once=True)
        made, verified = (jobs.get(job.job_id) for job in done)
    file = settings.home / "backups" / "a.backup"
    assert made.state == "succeeded" and made.result is not None and made.result["is_encrypted"]
    assert (
        WORD.encode() not in file.read_bytes() and verify_backup(file, identities=identity).rows["fact"] == 2
    )
    assert (
        verified.state == "failed" and verified.error is not None and "--identity" in verified.error["detail"]
    )
