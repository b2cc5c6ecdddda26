"""Backup: a whole knowledge base in one file, from one snapshot of the database.

The file is a ZIP archive with one member for each table, as binary rows of COPY, and a signed manifest with the
checksum of each. The archive's comment is the checksum of every byte before it, so that a flipped bit or a missing end
is found before anything is read. Texts in the rows are sealed (`kb.backup.sealed_rows`); the secret of the database is
not. Jobs write theirs into the folder `backups` of the home.

The archive may be encrypted as a whole, in the age format. It is written in one stream, without seeking, so that no
byte of it is on the disk otherwise. To be read, it is decrypted into a file without a name, under a passing key.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

import psycopg
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from psycopg import sql
from sqlalchemy import Table, text
from sqlalchemy.orm import Session

from colmlm.kb.backup.sealed_rows import (
    RowForm,
    archive_columns,
    join_rows,
    seal_rows,
    sealed_columns,
    select_rows,
    split_rows,
)
from colmlm.kb.errors import SignatureRefused, refusals
from colmlm.kb.log import audit, signing
from colmlm.kb.log.witness import find_change_hash
from colmlm.kb.removal.sealing import (
    AGE,
    KeyTree,
    decrypt_stream,
    default_key_file,
    encrypt_stream,
    list_recipients,
    name_temporary,
    read_tree,
    write_key_file,
)
from colmlm.kb.store.database import connection_of, head_revision
from colmlm.kb.store.settings import Settings
from colmlm.kb.tables import (
    FactKeyRow,
    JobRow,
    SealingKeyRow,
    SentenceRow,
    SentenceVectorRow,
    TableRow,
    WebhookRow,
)

if TYPE_CHECKING:
    from colmlm.kb.store.store import Store


FORMAT, UNSEALED = "colmlm-backup/2", "colmlm-backup/1"
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

    `key` is the fingerprint of the key that signed it. `is_sealed` says that its texts need a file of sealing keys, and
    `is_encrypted` that the file as a whole needs a private key.
    """

    database: str
    seq: int
    hash: str
    at: str
    migration: str
    key: str
    num_bytes: int
    rows: dict[str, int]
    is_sealed: bool = True
    is_encrypted: bool = False


# Jobs belong to an installation, and so do webhooks: a copy must not send its changes to the receivers of the original.
# Sentences and their vectors follow from the texts. Keys must not be where they open something.
_LEFT_OUT = tuple(
    row.__tablename__ for row in (JobRow, SealingKeyRow, SentenceRow, SentenceVectorRow, WebhookRow)
)


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
    recipients: Sequence[str] = (),
    key_file: Path | None = None,
    on_bytes: Heard = lambda _: None,
) -> Backup:
    """Write a backup to `file`: complete, synced to disk and readable by its owner only, or not at all.

    It is encrypted to the `recipients`, by default those of the settings. The keys that open its texts go to
    `key_file`, by default that of the home, before the backup gets its name. Edits and lookups go on meanwhile.
    Raises `FileExistsError` where the file exists, unless `replace`.
    """
    if file.exists() and not replace:
        raise FileExistsError(17, "it exists; name another file, or remove it", str(file))
    wanted = list_recipients(recipients or kb.settings.backup_recipients)
    temporary = name_temporary(file)
    try:
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w+b") as stream, _encrypting(stream, wanted) as plain:
            manifest = _write(kb, _SummedStream(plain), key, on_bytes)
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        if not wanted:
            with open_backup(temporary):  # what is on the disk is what was written
                pass
        write_key_file(kb, key_file or default_key_file(kb.settings), wanted)
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)
    directory = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
    return _describe(manifest, file.stat().st_size, is_encrypted=bool(wanted))


@contextmanager
def _encrypting(stream: IO[bytes], recipients: Sequence[str]) -> Iterator[IO[bytes]]:
    """Give a stream whose bytes reach `stream` encrypted, or `stream` itself where there are no recipients."""
    if not recipients:
        yield stream
        return
    reading, writing = (os.fdopen(end, mode) for end, mode in zip(os.pipe(), ("rb", "wb"), strict=True))

    def encrypt() -> None:
        with reading:  # so that the writer is not left waiting where this fails
            encrypt_stream(reading, stream, recipients)

    with ThreadPoolExecutor(1, "colmlm-encrypt") as pool:
        encrypting = pool.submit(encrypt)
        try:
            with suppress(BrokenPipeError), writing:
                yield writing
        finally:
            encrypting.result()  # raises what kept it from encrypting, also a panic of the library


class _SummedStream:
    """A stream that ends with the checksum of all bytes before, in place of the zeros that were written last."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream, self._digest, self._held = stream, hashlib.sha256(), b""

    def write(self, content: bytes) -> int:
        whole = self._held + content
        self._pass(whole[:-_SEAL_LENGTH])
        self._held = whole[-_SEAL_LENGTH:]
        return len(content)

    def _pass(self, content: bytes) -> None:
        self._digest.update(content)
        self._stream.write(content)

    def flush(self) -> None:
        self._stream.flush()

    def finish(self) -> None:
        """Write the checksum in place of the zeros that were written last."""
        self._stream.write(_SEAL + self._digest.hexdigest().encode())
        self._stream.flush()


def _write(kb: Store, stream: _SummedStream, key: Ed25519PrivateKey, on_bytes: Heard) -> dict[str, Any]:
    """Write the archive to a stream without seeking, and give its signed manifest."""
    with kb.sessions() as session:
        # Without `seek` and `tell` the archive describes each member behind it.
        with zipfile.ZipFile(stream, "w", allowZip64=True) as archive:  # type: ignore[call-overload]
            session.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY"))
            seq = audit.head_seq(session)
            database = audit.database_id(session)
            manifest = {
                "format": FORMAT,
                "migration": head_revision(),
                "database": database,
                "seq": seq,
                "hash": find_change_hash(session, seq),
                "at": datetime.now(UTC).isoformat(timespec="seconds"),
                "tables": _write_tables(session, archive, database, on_bytes),
                # Read after the rows: sequences are outside snapshots, so none is behind the ids that were copied.
                "sequences": _sequences(session),
            }
            signed = signing.sign_bytes(key, manifest)
            _add(archive, MANIFEST, json.dumps(signed).encode())
            archive.comment = _SEAL + b"0" * 64
        stream.finish()
    return signed


def _write_tables(
    session: Session, archive: zipfile.ZipFile, database: str, on_bytes: Heard
) -> list[dict[str, Any]]:
    described, done, tree = [], 0, read_tree(session)
    for table in archive_tables():
        # Keys do not compress; texts do.
        method = zipfile.ZIP_STORED if table.name == FactKeyRow.__tablename__ else zipfile.ZIP_DEFLATED
        digest = hashlib.sha256()
        rows = _Count()
        with archive.open(_zip_member(table.name, method), "w", force_zip64=True) as member:
            for block in _blocks(connection_of(session), table, rows, database, tree):
                digest.update(block)
                member.write(block)
                done += len(block)
                on_bytes(done)
        described.append(
            {
                "name": table.name,
                "columns": archive_columns(table),
                "sealed": list(sealed_columns(table)),
                "rows": rows.value,
                "sha256": digest.hexdigest(),
            }
        )
    return described


def _blocks(
    connection: psycopg.Connection, table: Table, rows: _Count, database: str, tree: KeyTree
) -> Iterator[bytes]:
    """Yield the rows of a table as the archive has them, in blocks, and count them in `rows`."""
    blocks = _copy_out(connection, table, rows)
    if not sealed_columns(table):
        return blocks
    return join_rows(seal_rows(split_rows(blocks), RowForm.of(table, database), tree), BLOCK)


@dataclass(slots=True)
class _Count:
    value: int = 0


def _copy_out(connection: psycopg.Connection, table: Table, rows: _Count) -> Iterator[bytes]:
    """Yield the rows of a table as COPY writes them, in blocks, and count them in `rows`."""
    # A SELECT, since COPY of a partitioned table gives no rows.
    statement = sql.SQL("COPY ({}) TO STDOUT (FORMAT binary)").format(select_rows(table))
    with connection.cursor() as cursor:
        gathered = bytearray()
        with cursor.copy(statement) as copy:
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


def _zip_member(name: str, method: int) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.compress_type, info.external_attr = method, 0o600 << 16
    info._compresslevel = 1  # type: ignore[attr-defined]
    return info


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    archive.writestr(_zip_member(name, zipfile.ZIP_DEFLATED), content)


def _digest(stream: IO[bytes], length: int) -> str:
    digest = hashlib.sha256()
    while length > 0 and (block := stream.read(min(BLOCK, length))):
        digest.update(block)
        length -= len(block)
    return digest.hexdigest()


# Reading


@contextmanager
def open_backup(file: Path, keys: Collection[str] = (), identities: Path | None = None) -> Iterator[Archive]:
    """Open a backup. Raises `BackupRefused` where its bytes or its manifest are not as they were written and signed.

    `keys` are fingerprints. Raises `SignatureRefused` where none of them signed it; with no keys any signer will do.
    `identities` names the file of private keys that opens an encrypted one.
    """
    with file.open("rb") as stored, _plain_stream(stored, file, identities) as stream:
        _require_checksum(stream, file)
        with _zip(stream, file) as zipped:
            archive = Archive(file, zipped, _manifest(zipped, file), stream is not stored)
            if keys:
                signing.require_signer(archive.backup.key, keys, str(file))
            yield archive


@contextmanager
def _plain_stream(stored: IO[bytes], file: Path, identities: Path | None) -> Iterator[IO[bytes]]:
    """Give a stream of the archive in a file: as it is stored, or decrypted into a file without a name."""
    if not is_encrypted(stored):
        yield stored
        return
    with tempfile.TemporaryFile() as plain:
        passing = cast("IO[bytes]", PassingFile(plain))
        decrypt_stream(stored, passing, identities, str(file))
        passing.seek(0)
        yield passing


def is_encrypted(stored: IO[bytes]) -> bool:
    """Tell whether a file begins as the age format does."""
    begins = stored.read(len(AGE)) == AGE
    stored.seek(0)
    return begins


class PassingFile(io.RawIOBase):
    """A file that is stored encrypted by a key that only this object has, so that the disk keeps nothing readable."""

    def __init__(self, stored: IO[bytes]) -> None:
        self._stored, self._key, self._at = stored, os.urandom(32), 0

    def _crypt(self, content: bytes) -> bytes:
        """Encrypt or decrypt bytes at the current place of the file, by AES in counter mode."""
        block, within = divmod(self._at, 16)
        crypt = Cipher(algorithms.AES(self._key), modes.CTR(block.to_bytes(16, "big"))).encryptor()
        return crypt.update(bytes(within) + content)[within:]

    def write(self, content: Any) -> int:
        self._stored.seek(self._at)
        self._stored.write(self._crypt(bytes(content)))
        self._at += len(content)
        return len(content)

    def read(self, size: int | None = -1) -> bytes:
        self._stored.seek(self._at)
        content = self._crypt(self._stored.read(-1 if size is None else size))
        self._at += len(content)
        return content

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at}.get(whence)
        self._at = offset + (self._stored.seek(0, os.SEEK_END) if start is None else start)
        return self._at

    def tell(self) -> int:
        return self._at

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True


def _zip(stream: IO[bytes], file: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(stream)
    except _DOUBTS as doubt:
        raise refusals.backup_refused(str(file), f"it cannot be read: {doubt}") from doubt


def _manifest(archive: zipfile.ZipFile, file: Path) -> dict[str, Any]:
    try:
        manifest = json.loads(archive.read(MANIFEST))
        if manifest["format"] not in (FORMAT, UNSEALED):
            raise refusals.backup_refused(
                str(file), f"it is not of the format {FORMAT}, or {UNSEALED} before it"
            )
        signing.verify_signature(manifest, str(file))
    except SignatureRefused as refused:
        raise refusals.backup_refused(str(file), "its manifest is not as it was signed") from refused
    except _DOUBTS as doubt:
        raise refusals.backup_refused(str(file), f"its manifest cannot be read: {doubt}") from doubt
    found: dict[str, Any] = manifest
    return found


def _require_checksum(stream: IO[bytes], file: Path) -> None:
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
    is_encrypted: bool = False

    @property
    def backup(self) -> Backup:
        return _describe(self.manifest, self.file.stat().st_size, is_encrypted=self.is_encrypted)

    def blocks(self, table: dict[str, Any]) -> Iterator[bytes]:
        """Yield a table's rows as COPY reads them. Raises `BackupRefused` where they are not what was written."""
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


def _describe(manifest: Mapping[str, Any], num_bytes: int, *, is_encrypted: bool) -> Backup:
    public_key = base64.b64decode(manifest["signature"]["public_key"])
    return Backup(
        database=manifest["database"],
        seq=manifest["seq"],
        hash=manifest["hash"],
        at=manifest["at"],
        migration=manifest["migration"],
        key=signing.fingerprint(public_key),
        num_bytes=num_bytes,
        rows={table["name"]: table["rows"] for table in manifest["tables"]},
        is_sealed=manifest["format"] != UNSEALED,
        is_encrypted=is_encrypted,
    )


def verify_backup(
    file: Path,
    on_bytes: Heard = lambda _: None,
    *,
    keys: Collection[str] = (),
    identities: Path | None = None,
) -> Backup:
    """Read a backup to its end, telling `on_bytes` how much is read, and describe it. Raises as `open_backup` does."""
    done = 0
    with open_backup(file, keys, identities) as archive:
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
