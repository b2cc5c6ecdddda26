"""Backup: a whole knowledge base in one file, from one snapshot of the database.

The file is a ZIP archive with one member for each table, as binary rows of COPY, and a signed manifest with the
checksum of each. The archive's comment is the checksum of every byte before it, so that a flipped bit or a missing end
is found before anything is read. The file holds all texts and the secret of the database. Jobs write theirs into the
folder `backups` of the home.
"""

from __future__ import annotations

import base64
import glob
import hashlib
import json
import os
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import psycopg
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from psycopg import sql
from sqlalchemy import Table, text
from sqlalchemy.orm import Session

from colmlm.kb.errors import SignatureRefused, refusals
from colmlm.kb.log import audit, signing
from colmlm.kb.log.witness import hash_at
from colmlm.kb.store.database import connection_of, head_revision
from colmlm.kb.store.settings import Settings
from colmlm.kb.tables import FactKeyRow, JobRow, SentenceRow, SentenceVectorRow, TableRow, WebhookRow

if TYPE_CHECKING:
    from colmlm.kb.store.store import Store


FORMAT = "colmlm-backup/1"
MANIFEST = "manifest.json"
BLOCK = 1 << 20
_SEAL = b"sha256:"
_SEAL_LENGTH = len(_SEAL) + 64
_DOUBTS = (
    zipfile.BadZipFile,
    OSError,
    ValueError,
    LookupError,
    TypeError,
    RuntimeError,
    EOFError,
    zlib.error,
)

Heard = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Backup:
    """The contents of a backup: the id of the database, the last change, and the number of rows of each table.

    `key` is the fingerprint of the key that signed it.
    """

    database: str
    seq: int
    hash: str
    at: str
    migration: str
    key: str
    num_bytes: int
    rows: dict[str, int]


# Jobs belong to an installation, and so do webhooks: a copy must not send its changes to the receivers of the original.
# Sentences and their vectors follow from the texts.
_LEFT_OUT = tuple(row.__tablename__ for row in (JobRow, SentenceRow, SentenceVectorRow, WebhookRow))


def archive_tables() -> list[Table]:
    """List the tables to back up, each after those it refers to."""
    return [table for table in TableRow.metadata.sorted_tables if table.name not in _LEFT_OUT]


# Writing


def write_backup(
    kb: Store,
    file: Path,
    key: Ed25519PrivateKey,
    *,
    replace: bool = False,
    on_bytes: Heard = lambda _: None,
) -> Backup:
    """Write a backup to `file`: complete, synced to disk and readable by its owner only, or not at all.

    Edits and lookups go on meanwhile. Raises `FileExistsError` where the file exists, unless `replace`.
    """
    if file.exists() and not replace:
        raise FileExistsError(17, "it exists; name another file, or pass --replace", str(file))
    _clear_up(file)
    temporary = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    try:
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w+b") as stream:
            _write(kb, stream, key, on_bytes)
            _seal(stream)
            os.fsync(stream.fileno())
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)
    directory = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
    with open_backup(file) as archive:
        return archive.backup


def _clear_up(file: Path) -> None:
    """Remove temporary files that killed writers of this backup left, since they hold texts."""
    for temporary in file.parent.glob(f".{glob.escape(file.name)}.*.tmp"):
        pid = temporary.name.split(".")[-2]
        if pid.isdecimal() and not _is_running(int(pid)):
            temporary.unlink(missing_ok=True)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # it runs, as another user
        pass
    return True


def _write(kb: Store, stream: IO[bytes], key: Ed25519PrivateKey, on_bytes: Heard) -> None:
    with kb.sessions() as session, zipfile.ZipFile(stream, "w", allowZip64=True) as archive:
        session.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY"))
        seq = audit.head_seq(session)
        manifest = {
            "format": FORMAT,
            "migration": head_revision(),
            "database": audit.database_id(session),
            "seq": seq,
            "hash": hash_at(session, seq),
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "tables": _write_tables(session, archive, on_bytes),
            # Read after the rows: sequences are outside snapshots, so none is behind the ids that were copied.
            "sequences": _sequences(session),
        }
        _add(archive, MANIFEST, json.dumps(signing.sign_bytes(key, manifest)).encode())
        archive.comment = _SEAL + b"0" * 64


def _write_tables(session: Session, archive: zipfile.ZipFile, on_bytes: Heard) -> list[dict[str, Any]]:
    described, done = [], 0
    for table in archive_tables():
        # Keys do not compress; texts do.
        method = zipfile.ZIP_STORED if table.name == FactKeyRow.__tablename__ else zipfile.ZIP_DEFLATED
        digest = hashlib.sha256()
        rows = _Count()
        with archive.open(_member(table.name, method), "w", force_zip64=True) as member:
            for block in _copy_out(connection_of(session), table, rows):
                digest.update(block)
                member.write(block)
                done += len(block)
                on_bytes(done)
        columns = [column.name for column in table.columns]
        described.append(
            {"name": table.name, "columns": columns, "rows": rows.value, "sha256": digest.hexdigest()}
        )
    return described


@dataclass(slots=True)
class _Count:
    value: int = 0


def _copy_out(connection: psycopg.Connection, table: Table, rows: _Count) -> Iterator[bytes]:
    """Give the rows of a table as COPY writes them, in blocks, and count them in `rows`."""
    columns = sql.SQL(", ").join(sql.Identifier(column.name) for column in table.columns)
    # A SELECT, since COPY of a partitioned table gives no rows.
    statement = sql.SQL("COPY (SELECT {} FROM {}) TO STDOUT (FORMAT binary)")
    with connection.cursor() as cursor:
        gathered = bytearray()
        with cursor.copy(statement.format(columns, sql.Identifier(table.name))) as copy:
            for piece in copy:
                gathered += piece
                if len(gathered) >= BLOCK:
                    yield bytes(gathered)
                    gathered.clear()
        rows.value = cursor.rowcount
        yield bytes(gathered)


def _sequences(session: Session) -> dict[str, int]:
    """Give the last id of each sequence, without the sequences that were never used."""
    given = text(
        "SELECT sequencename, last_value FROM pg_sequences"
        " WHERE schemaname = current_schema() AND last_value IS NOT NULL ORDER BY sequencename"
    )
    return {row.sequencename: row.last_value for row in session.execute(given)}


def _member(name: str, method: int) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.compress_type, info.external_attr = method, 0o600 << 16
    info._compresslevel = 1  # type: ignore[attr-defined]
    return info


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    archive.writestr(_member(name, zipfile.ZIP_DEFLATED), content)


def _seal(stream: IO[bytes]) -> None:
    """Write the checksum of all bytes before it into the archive's comment, which ends the file."""
    end = stream.seek(0, os.SEEK_END) - _SEAL_LENGTH
    stream.seek(0)
    digest = _digest(stream, end)
    stream.seek(end)
    stream.write(_SEAL + digest.encode())
    stream.flush()


def _digest(stream: IO[bytes], length: int) -> str:
    digest = hashlib.sha256()
    while length > 0 and (block := stream.read(min(BLOCK, length))):
        digest.update(block)
        length -= len(block)
    return digest.hexdigest()


# Reading


@contextmanager
def open_backup(file: Path, keys: Collection[str] = ()) -> Iterator[Archive]:
    """Open a backup. Raises `BackupRefused` where its bytes or its manifest are not as they were written and signed.

    `keys` are fingerprints. Raises `SignatureRefused` where none of them signed it; with no keys any signer will do.
    """
    with file.open("rb") as stream:
        _require_seal(stream, file)
        with _zip(stream, file) as zipped:
            archive = Archive(file, zipped, _manifest(zipped, file))
            if keys:
                signing.require_signer(archive.backup.key, keys, str(file))
            yield archive


def _zip(stream: IO[bytes], file: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(stream)
    except _DOUBTS as doubt:
        raise refusals.backup_refused(str(file), f"it cannot be read: {doubt}") from doubt


def _manifest(archive: zipfile.ZipFile, file: Path) -> dict[str, Any]:
    try:
        manifest = json.loads(archive.read(MANIFEST))
        if manifest["format"] != FORMAT:
            raise refusals.backup_refused(str(file), f"it is not of the format {FORMAT}")
        signing.verify_signature(manifest, str(file))
    except SignatureRefused as refused:
        raise refusals.backup_refused(str(file), "its manifest is not as it was signed") from refused
    except _DOUBTS as doubt:
        raise refusals.backup_refused(str(file), f"its manifest cannot be read: {doubt}") from doubt
    found: dict[str, Any] = manifest
    return found


def _require_seal(stream: IO[bytes], file: Path) -> None:
    end = stream.seek(0, os.SEEK_END) - _SEAL_LENGTH
    if end <= 0:
        raise refusals.backup_refused(str(file), "it is not a backup, or it is cut short")
    stream.seek(end)
    said = stream.read()
    stream.seek(0)
    if said != _SEAL + _digest(stream, end).encode():
        raise refusals.backup_refused(
            str(file), "its checksum is wrong, so it is damaged, cut short, or not a backup"
        )


@dataclass(frozen=True, slots=True)
class Archive:
    """The members of an open backup."""

    file: Path
    archive: zipfile.ZipFile
    manifest: dict[str, Any]

    @property
    def backup(self) -> Backup:
        manifest = self.manifest
        public_key = base64.b64decode(manifest["signature"]["public_key"])
        return Backup(
            database=manifest["database"],
            seq=manifest["seq"],
            hash=manifest["hash"],
            at=manifest["at"],
            migration=manifest["migration"],
            key=signing.fingerprint(public_key),
            num_bytes=self.file.stat().st_size,
            rows={table["name"]: table["rows"] for table in manifest["tables"]},
        )

    def blocks(self, table: dict[str, Any]) -> Iterator[bytes]:
        """Give a table's rows as COPY reads them. Raises `BackupRefused` where they are not what was written."""
        digest = hashlib.sha256()
        try:
            with self.archive.open(table["name"]) as member:
                while block := member.read(BLOCK):
                    digest.update(block)
                    yield block
        except _DOUBTS as doubt:
            raise refusals.backup_refused(
                str(self.file), f"table {table['name']} cannot be read: {doubt}"
            ) from doubt
        if digest.hexdigest() != table["sha256"]:
            raise refusals.backup_refused(str(self.file), f"table {table['name']} is not as it was written")


def verify_backup(file: Path, on_bytes: Heard = lambda _: None, *, keys: Collection[str] = ()) -> Backup:
    """Read a backup to its last byte and give its contents. Raises as `open_backup` does. Needs no database."""
    done = 0
    with open_backup(file, keys) as archive:
        for table in archive.manifest["tables"]:
            for block in archive.blocks(table):
                done += len(block)
                on_bytes(done)
        return archive.backup


@dataclass(frozen=True, slots=True)
class KeptBackup:
    """A file in the folder of backups, as the file system describes it. `verify_backup` tells whether it is intact."""

    name: str
    num_bytes: int
    written_at: datetime


def backup_folder(settings: Settings) -> Path:
    """Give the folder that jobs write backups into. It need not exist."""
    return settings.home / "backups"


def kept_backups(settings: Settings) -> list[KeptBackup]:
    """List the backups of this home, newest first, without those that are still being written."""
    folder = backup_folder(settings)
    if not folder.is_dir():
        return []
    files = [file for file in folder.iterdir() if file.is_file() and not file.name.startswith(".")]
    kept = [
        KeptBackup(file.name, said.st_size, _moment(said.st_mtime)) for file in files if (said := file.stat())
    ]
    return sorted(kept, key=lambda one: one.written_at, reverse=True)


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
