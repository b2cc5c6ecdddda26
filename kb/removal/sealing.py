"""Sealing keys: open the texts in backups, are destroyed by erasures, and are kept in a file apart from all backups.

Each document has a key, which seals its texts and those of its facts; a fact without one, and each output, plan,
question, run's outcome, piece of feedback, request and kept answer has a key of its own. All are derived from a tree
of seeds, so that the table is small and a standby can write backups, too. Triggers of the database destroy the key of
what is redacted, in the same transaction (migration 0037).

The file also holds the keyed digests of what was erased, by which a restored base recognises it. It begins with a line
that says of which base it is, and to whom it is encrypted. It is rewritten with each erasure.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from sqlalchemy import func, insert, select, text
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.orm import Session

from colmlm.kb.errors import identity_needed, recipient_refused, refusals
from colmlm.kb.log import audit
from colmlm.kb.store.settings import Settings
from colmlm.kb.store.store import Store
from colmlm.kb.tables import ErasedTextRow, FactRow, SealingKeyRow, SuppressionRow

FORMAT = "colmlm-sealing-keys/1"
AGE = b"age-encryption.org/v1"
DEPTH = 64
ID_BITS = 56
FILE_LOCK = 0x636F6C6D0E
_KEPT_CIPHERS = 10_000
# The kinds of rows that have keys, by the numbers that the triggers name.
OWNERS = {
    "document": 1,
    "fact": 2,
    "generation": 3,
    "forget_run": 4,
    "erasure_request": 5,
    "feedback": 6,
    "question": 7,
    "question_outcome": 8,
    "idempotency": 9,
}


def owner_number(table: str, row_id: int) -> int:
    """Give the number of a row's leaf in the tree of seeds: the number of its table, followed by its id."""
    return OWNERS[table] << ID_BITS | row_id


class SealingKey(NamedTuple):
    """A key of a row, with a name that tells it from earlier and later keys of the same row."""

    name: bytes
    cipher: AESGCM


@dataclass(slots=True)
class KeyTree:
    """Derives the keys of rows from a tree of seeds. It is fastest for rows in the order of `owner_number`."""

    seeds: Mapping[str, bytes]
    _last: int = -1
    _trail: list[bytes | None] = field(default_factory=lambda: [None] * (DEPTH + 1))
    _known: dict[int, SealingKey | None] = field(default_factory=dict)

    def key_of(self, owner: int) -> SealingKey | None:
        """Give the encryption key that seals this row (`owner_number`); None where no seed derives it any more."""
        if owner in self._known:
            return self._known[owner]
        if len(self._known) >= _KEPT_CIPHERS:
            self._known.clear()
        leaf = self._leaf(owner)
        found = None
        if leaf is not None:
            name, key = (hashlib.sha256(leaf + said).digest() for said in (b"name", b"key"))
            found = SealingKey(name[:8], AESGCM(key))
        self._known[owner] = found
        return found

    def _leaf(self, owner: int) -> bytes | None:
        bits, trail = f"{owner:064b}", self._trail
        shared = 0
        if self._last >= 0:
            shared = DEPTH - (owner ^ self._last).bit_length()
        else:
            trail[0] = self.seeds.get("")
        for depth in range(shared, DEPTH):
            above = trail[depth]
            if above is not None:
                trail[depth + 1] = hashlib.sha256(above + (b"\1" if bits[depth] == "1" else b"\0")).digest()
            else:
                trail[depth + 1] = self.seeds.get(bits[: depth + 1])
        self._last = owner
        return trail[DEPTH]


def read_tree(session: Session) -> KeyTree:
    """Read the tree of seeds of this base, as the transaction sees it."""
    return KeyTree(_seeds(session))


def _seeds(session: Session) -> dict[str, bytes]:
    rows = session.execute(select(SealingKeyRow.path, SealingKeyRow.seed).order_by(SealingKeyRow.path))
    return {path: bytes(seed) for path, seed in rows}


@dataclass(frozen=True, slots=True)
class SealingKeys:
    """The keys of base `database` as of change `seq`, with the digests of what was erased by then."""

    database: str
    seq: int
    seeds: Mapping[str, bytes]
    suppressed: tuple[bytes, ...] = ()
    erased_texts: tuple[Mapping[str, Any], ...] = ()
    recipients: tuple[str, ...] = ()

    @classmethod
    def read(cls, session: Session, recipients: Sequence[str] = ()) -> SealingKeys:
        """Read the seeds and the digests of erased texts from the base, for a file encrypted to `recipients`."""
        columns = [getattr(ErasedTextRow, name) for name in _ERASED_TEXT]
        texts = session.execute(select(*columns).order_by(ErasedTextRow.fact_id, ErasedTextRow.digest))
        return cls(
            audit.database_id(session),
            audit.head_seq(session),
            _seeds(session),
            tuple(map(bytes, session.scalars(select(SuppressionRow.digest).order_by(SuppressionRow.digest)))),
            tuple(dict(row._mapping) for row in texts),
            tuple(recipients),
        )

    @property
    def digest(self) -> str:
        """A digest of the seeds, which tells whether two files have the same."""
        digest = hashlib.sha256()
        for path, seed in sorted(self.seeds.items()):
            digest.update(path.encode() + b"\0" + seed)
        return digest.hexdigest()

    def to_bytes(self) -> bytes:
        """Give the content of the key file: a head line, and the keys, encrypted if there are recipients."""
        head = {
            "format": FORMAT,
            "database": self.database,
            "seq": self.seq,
            "digest": self.digest,
            "recipients": list(self.recipients),
        }
        body = json.dumps(
            {
                "seeds": {path: seed.hex() for path, seed in self.seeds.items()},
                "suppressed": [one.hex() for one in self.suppressed],
                "erased_texts": [
                    {name: value.hex() if isinstance(value, bytes) else value for name, value in one.items()}
                    for one in self.erased_texts
                ],
            }
        ).encode()
        if self.recipients:
            import pyrage  # imported where it is used, as few commands need it

            body = pyrage.encrypt(body, read_recipients(self.recipients))
        return json.dumps(head).encode() + b"\n" + body

    def store(self, session: Session, seq: int, fact_ids: Sequence[int]) -> None:
        """Replace the base's seeds. Add suppressions, and digests of these facts' erased texts, as of change `seq`."""
        session.execute(text("DELETE FROM sealing_key"))
        session.execute(
            insert(SealingKeyRow), [{"path": path, "seed": seed} for path, seed in self.seeds.items()]
        )
        if rows := [{"digest": digest, "seq": seq} for digest in self.suppressed]:
            session.execute(upsert(SuppressionRow).on_conflict_do_nothing(), rows)
        here = set(session.scalars(select(FactRow.id).where(FactRow.id == func.any(list(fact_ids)))))
        if erased := [{**one, "seq": seq} for one in self.erased_texts if one["fact_id"] in here]:
            session.execute(upsert(ErasedTextRow).on_conflict_do_nothing(), erased)


_ERASED_TEXT = ("fact_id", "digest", "first_word", "num_words", "everywhere")


def default_key_file(settings: Settings) -> Path:
    """Give the path of this home's key file, which each erasure rewrites."""
    return settings.sealing_keys or settings.home / "sealing.keys"


def read_key_file(file: Path, identities: Path | None = None) -> SealingKeys:
    """Read a key file, decrypted with the private keys in `identities`. Raises with code `BackupRefused`."""
    try:
        head, body = _split(file)
        if body.startswith(AGE):
            body = _decrypt(body, identities, file)
        said = json.loads(body)
        return SealingKeys(
            head["database"],
            head["seq"],
            {path: bytes.fromhex(seed) for path, seed in said["seeds"].items()},
            tuple(bytes.fromhex(one) for one in said["suppressed"]),
            tuple(
                {
                    **one,
                    "digest": bytes.fromhex(one["digest"]),
                    "first_word": bytes.fromhex(one["first_word"]),
                }
                for one in said["erased_texts"]
            ),
            tuple(head["recipients"]),
        )
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        cause = f"it cannot be read as a file of sealing keys ({error})"
        raise refusals.backup_refused(str(file), cause) from error


def _split(file: Path) -> tuple[dict[str, Any], bytes]:
    line, _, body = file.read_bytes().partition(b"\n")
    head = json.loads(line)
    if head["format"] != FORMAT:
        raise ValueError(f"its format is {head['format']!r}")
    return head, body


def _decrypt(body: bytes, identities: Path | None, file: Path) -> bytes:
    import pyrage

    if identities is None:
        raise identity_needed(str(file))
    try:
        opened: bytes = pyrage.decrypt(body, read_identities(identities))
    except (pyrage.DecryptError, OSError) as error:
        raise refusals.backup_refused(str(file), f"it cannot be decrypted: {error}") from error
    return opened


def write_key_file(kb: Store, file: Path, recipients: Sequence[str] = ()) -> SealingKeys:
    """Write the base's current keys to a file that only its owner may read, atomically, and give the keys.

    Without `recipients` the file stays encrypted to those that it names. Of two writers the later one has newer keys.
    """
    kept = tuple(recipients)
    if not kept:
        with suppress(OSError, ValueError, LookupError, TypeError):
            kept = tuple(_split(file)[0]["recipients"])
    with kb.sessions() as session:
        session.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": FILE_LOCK})
        keys = SealingKeys.read(session, kept)
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = name_temporary(file)
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(keys.to_bytes())
                stream.flush()
                os.fsync(stream.fileno())
            temporary.replace(file)
        finally:
            temporary.unlink(missing_ok=True)
    return keys


def name_temporary(file: Path) -> Path:
    """Give this process's temporary file for `file`. Delete those of dead writers, since they hold secrets."""
    for temporary in file.parent.glob(f".{glob.escape(file.name)}.*.tmp"):
        pid = temporary.name.split(".")[-2]
        if pid.isdecimal() and not _is_running(int(pid)):
            temporary.unlink(missing_ok=True)
    return file.with_name(f".{file.name}.{os.getpid()}.tmp")


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # it runs, as another user
        pass
    return True


def refresh_key_file(kb: Store) -> str:
    """Rewrite this home's key file after an erasure, and give a sentence on the result; "" without a file."""
    file = default_key_file(kb.settings)
    if not file.exists():
        return ""
    try:
        write_key_file(kb, file)
    except OSError as error:
        return (
            f"The file of sealing keys {file} is stale, since it could not be rewritten ({error.strerror}). "
        )
    return f"Backups from before stay sealed to the keys of today ({file}), and open with older copies of that file. "


def describe_key_file(kb: Store) -> tuple[Path, str | None]:
    """Give this home's key file and why a restore cannot use it; None if it can, or if there is no file."""
    file = default_key_file(kb.settings)
    if not file.exists():
        return file, None
    try:
        head, _ = _split(file)
    except (OSError, ValueError, LookupError, TypeError) as error:
        return file, f"it cannot be read ({error})"
    with kb.sessions() as session:
        keys = SealingKeys(audit.database_id(session), 0, _seeds(session))
    if head.get("database") != keys.database:
        return file, "it is of another base"
    if head.get("digest") != keys.digest:
        return file, "it is stale: it still has keys that an erasure destroyed"
    return file, None


# Encryption to the keys of recipients, in the age format.


def list_recipients(given: Sequence[str]) -> tuple[str, ...]:
    """Give the public keys among `given`, and those in the files that the other entries name, one a line."""
    found: list[str] = []
    for one in given:
        if one.startswith("age1"):
            found.append(one)
            continue
        try:
            lines = Path(one).expanduser().read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise recipient_refused(one, "it is neither a key that begins with age1 nor a file") from error
        named = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
        if not named:
            raise recipient_refused(one, "the file names no key")
        found += named
    read_recipients(found)
    return tuple(dict.fromkeys(found))


def read_recipients(names: Sequence[str]) -> list[Any]:
    """Parse these public keys for `pyrage`. Raises with code `RecipientRefused` if one is invalid."""
    import pyrage

    made = []
    for name in names:
        try:
            made.append(pyrage.x25519.Recipient.from_str(name))
        except pyrage.RecipientError as error:
            raise recipient_refused(name, f"it is no public key of age ({error})") from error
    return made


def read_identities(file: Path) -> list[Any]:
    """Read the private keys of a file, one a line. Raises with code `BackupRefused` if it has none."""
    import pyrage

    lines = file.read_text(encoding="utf-8").splitlines()
    try:
        found = [
            pyrage.x25519.Identity.from_str(line.strip())
            for line in lines
            if line.strip() and not line.startswith("#")
        ]
    except pyrage.IdentityError as error:
        raise refusals.backup_refused(str(file), "a line of it is no private key of age") from error
    if not found:
        raise refusals.backup_refused(str(file), "it holds no private key of age")
    return found


def encrypt_stream(reader: IO[bytes], writer: IO[bytes], recipients: Sequence[str]) -> None:
    """Encrypt the bytes of `reader` into `writer`, in pieces, to all of these recipients."""
    import pyrage

    pyrage.encrypt_io(reader, writer, read_recipients(recipients))


def decrypt_stream(reader: IO[bytes], writer: IO[bytes], identities: Path | None, what: str) -> None:
    """Decrypt `reader` into `writer`, in pieces. Raises with code `BackupRefused` if no key fits or a bit differs."""
    import pyrage

    if identities is None:
        raise identity_needed(what)
    known = read_identities(identities)
    try:
        pyrage.decrypt_io(reader, writer, known)
    except pyrage.DecryptError as error:
        raise refusals.backup_refused(what, f"no key in {identities} opens it ({error})") from error
    except OSError as error:
        if error.errno is not None:  # of the disk, and not of the library
            raise
        raise refusals.backup_refused(
            what, "it is damaged or cut short, so it cannot be decrypted"
        ) from error
