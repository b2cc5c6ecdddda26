"""Disks that are full and homes that can only be read: said by name, and nothing half is left."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from colmlm.kb.backup.write import write_backup
from colmlm.kb.jobs.tickets import problem_of
from colmlm.kb.jobs.uploads import Uploads
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.waits import refusal_of
from tests.fakes import FakeEncoder
from tests.kb.corpora import CHILE, ask, ingest, numbered
from tests.refusals import code_of

WHO = {"actor": "tester", "reason": "test"}


def _blocks(count: int) -> Iterator[bytes]:
    yield from (os.urandom(1 << 14) for _ in range(count))


def test_an_upload_to_a_full_disk_is_refused_and_leaves_nothing(small_disk: Path) -> None:
    uploads = Uploads(small_disk / "uploads", 1_000_000)
    with pytest.raises(OSError, match="No space") as failed:
        uploads.save("big.txt", _blocks(8))
    assert code_of(refusal_of(failed.value)) == "StorageFull"
    assert list(small_disk.glob("uploads/*")) == []
    assert uploads.save("small.txt", _blocks(1)).size == 1 << 14


def test_a_snapshot_that_does_not_fit_leaves_the_one_before(
    kb: KnowledgeBase, encoder: FakeEncoder, small_disk: Path
) -> None:
    kb.searcher.settings = replace(kb.searcher.settings, home=small_disk)
    ingest(kb, *numbered(20))
    kb.keysets.rekey(encoder)
    before = sorted(small_disk.rglob("*"))
    ingest(kb, *numbered(1000), corpus="more")
    with pytest.raises(OSError, match="No space") as failed:
        kb.keysets.rekey(encoder)
    refusal = refusal_of(failed.value)
    assert code_of(refusal) == "StorageFull" and str(small_disk) in str(refusal)
    assert sorted(small_disk.rglob("*")) == before
    assert ask(kb, encoder, "Question 999?")[0].hits[0].value == "value 999", "lookups go on"


def test_a_backup_that_does_not_fit_is_removed(kb: KnowledgeBase, small_disk: Path) -> None:
    ingest(kb, *numbered(2000))
    with pytest.raises(OSError, match="No space") as failed:
        write_backup(kb, small_disk / "whole.backup", Ed25519PrivateKey.generate())
    assert problem_of(failed.value)["type"] == "urn:colmlm:StorageFull"
    assert list(small_disk.iterdir()) == []


def test_a_disk_that_can_only_be_read_is_named(small_disk: Path) -> None:
    remounted = subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=False)
    if remounted.returncode != 0:
        pytest.skip("it cannot be mounted anew here")
    with pytest.raises(OSError, match="Read-only") as failed:
        Uploads(small_disk / "uploads", 1_000_000).save("a.txt", _blocks(1))
    assert code_of(refusal_of(failed.value)) == "StorageReadOnly"
    assert str(small_disk) in str(refusal_of(failed.value))


def test_a_database_without_space_is_said_and_nothing_was_edited(kb: KnowledgeBase) -> None:
    """What the server raises where it cannot extend a file, raised by a trigger."""
    ingest(kb, CHILE)
    with kb.engine.begin() as connection:
        connection.execute(
            text(
                "CREATE FUNCTION no_space() RETURNS trigger LANGUAGE plpgsql AS "
                "$$BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = 'disk_full'; END$$"
            )
        )
        connection.execute(
            text("CREATE TRIGGER no_space BEFORE INSERT ON change EXECUTE FUNCTION no_space()")
        )
    with pytest.raises(Exception, match="could not extend") as failed:
        kb.facts.edit(1, "Valparaiso", **WHO)
    assert code_of(refusal_of(failed.value)) == "StorageFull"
    assert kb.facts.show(1).value == "Santiago"


def test_a_database_that_can_only_be_read_is_said(kb: KnowledgeBase) -> None:
    ingest(kb, CHILE)
    with kb.engine.begin() as connection:
        name = connection.scalar(text("SELECT current_database()"))
        connection.execute(text(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on'))
    kb.engine.dispose()
    with pytest.raises(Exception, match="read-only transaction") as failed:
        kb.facts.edit(1, "Valparaiso", **WHO)
    assert code_of(refusal_of(failed.value)) == "StorageReadOnly"
    assert kb.facts.show(1).value == "Santiago"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_every_way_to_be_full_is_one(number: int) -> None:
    assert code_of(refusal_of(OSError(number, os.strerror(number), "/kb/x"))) == "StorageFull"
    assert refusal_of(OSError(errno.EIO, "Input/output error")) is None
    assert refusal_of(DBAPIError("SELECT 1", {}, ValueError("other"))) is None
