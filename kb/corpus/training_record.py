"""Records of what weights were trained on: digests of documents, in a file beside a checkpoint, reader or annotator.

A record must be compared without any base's secret, so whoever holds it can test a guess of a whole document. A salt of
its own keeps one record from being compared with another or with a table, and by scrypt a guess takes milliseconds.
Weights that go on from others take over their salt and their digests, and so do all that follow.

The description beside it (`colmlm.json`, `annotator.json`) holds the record's SHA-256, so that an altered or a removed
record is seen. Where nothing is known of a part of the training, `unknown` says which: then no text counts as unseen.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import unicodedata
from base64 import b64decode, b64encode
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, Self

from colmlm.kb.errors import describe_misread

RECORD_FILE = "trained_on.json"
RECORDED = (
    "record:"  # begins what a checkpoint with a record is registered as trained on: its SHA-256 follows
)
DESCRIPTION_FILES = ("colmlm.json", "annotator.json")
_SIZE = 16  # bytes of a digest
_COST = 1024  # scrypt's n: a digest takes 1 MiB and some milliseconds
_MOST_COST = 1 << 14
_FORMAT = 1


def text_digest(text: str) -> bytes:
    """Digest a document's text by SHA-256: in Unicode's form NFC, with single spaces as white space."""
    plain = " ".join(unicodedata.normalize("NFC", text).split())
    return hashlib.sha256(plain.encode(errors="surrogatepass")).digest()


@dataclass(frozen=True)
class TrainingRecord:
    """The documents that weights were trained on: `digests` joins the sorted, hardened digests of their texts.

    `bases` are weights of others that the training began with, whose own data nobody recorded. `unknown` says which
    parts of the training are not recorded, although they may have been on documents of the same owner.
    """

    salt: bytes
    digests: bytes = b""
    bases: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    cost: int = _COST

    @classmethod
    def begin(cls, *, base: str | None = None, unknown: str | None = None) -> Self:
        """Give an empty record with a new salt; `base` names weights of others, `unknown` an unrecorded training."""
        return cls(
            secrets.token_bytes(_SIZE),
            bases=() if base is None else (base,),
            unknown=() if unknown is None else (unknown,),
        )

    @property
    def count(self) -> int:
        """Count the documents, each text once."""
        return len(self.digests) // _SIZE

    def with_texts(self, text_digests: Iterable[bytes], unknown: str | None = None) -> Self:
        """Give the record with more texts, by `text_digest`; `unknown` names training that is not recorded."""
        new = set(harden_digests(self.salt, self.cost, text_digests).values())
        known = {self.digests[at : at + _SIZE] for at in range(0, len(self.digests), _SIZE)}
        more = () if unknown is None or unknown in self.unknown else (unknown,)
        return replace(self, digests=b"".join(sorted(known | new)), unknown=(*self.unknown, *more))

    def has_text(self, text: str) -> bool:
        """Tell whether this text is among the documents."""
        digest = text_digest(text)
        return self.has_digest(harden_digests(self.salt, self.cost, (digest,))[digest])

    def has_digest(self, hardened: bytes) -> bool:
        """Tell whether the text with this digest, hardened with the record's salt and cost, is among the documents."""
        low, high = 0, self.count
        while low < high:
            middle = (low + high) // 2
            if self.digests[middle * _SIZE : (middle + 1) * _SIZE] < hardened:
                low = middle + 1
            else:
                high = middle
        return self.digests[low * _SIZE : (low + 1) * _SIZE] == hardened

    @cached_property
    def content(self) -> bytes:
        """The content of the record's file, as JSON bytes."""
        said = {
            "format": _FORMAT,
            "digest": {
                "name": "scrypt",
                "n": self.cost,
                "r": 8,
                "p": 1,
                "bytes": _SIZE,
                "salt": self.salt.hex(),
            },
            "bases": list(self.bases),
            "unknown": list(self.unknown),
            "count": self.count,
            "digests": b64encode(self.digests).decode(),
        }
        return json.dumps(said, indent=1).encode() + b"\n"

    @property
    def sha256(self) -> str:
        """The SHA-256 of the record's file, which the description beside it holds."""
        return hashlib.sha256(self.content).hexdigest()

    def save(self, directory: Path) -> None:
        """Write the file of the record into `directory`, before the description that seals it."""
        (directory / RECORD_FILE).write_bytes(self.content)

    @classmethod
    def read(cls, content: bytes) -> Self:
        """Read a record from the content of its file. Raises `ValueError`."""
        try:
            said = json.loads(content)
            how = said["digest"]
            digests = b64decode(said["digests"], validate=True)
            fits = (
                said["format"] == _FORMAT
                and (how["name"], how["r"], how["p"], how["bytes"]) == ("scrypt", 8, 1, _SIZE)
                and len(digests) == said["count"] * _SIZE
                and type(how["n"]) is int
                and how["n"].bit_count() == 1 < how["n"] <= _MOST_COST
            )
            if not fits:
                raise ValueError("it has another format than this program knows")
            bases, unknown = (tuple(map(str, said[part])) for part in ("bases", "unknown"))
            return cls(bytes.fromhex(how["salt"]), digests, bases, unknown, how["n"])
        except (LookupError, TypeError, RecursionError) as error:
            raise ValueError(describe_misread(error)) from error


def harden_digests(salt: bytes, cost: int, text_digests: Iterable[bytes]) -> dict[bytes, bytes]:
    """Compute by scrypt the digests that a record of this salt and cost has, by the `text_digest` of each text."""
    wanted = sorted(set(text_digests))
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # scrypt holds no lock of the interpreter
        return dict(zip(wanted, pool.map(partial(_harden, salt, cost), wanted), strict=True))


def _harden(salt: bytes, cost: int, digest: bytes) -> bytes:
    return hashlib.scrypt(digest, salt=salt, n=cost, r=8, p=1, dklen=_SIZE, maxmem=64 << 20)


@dataclass(frozen=True, slots=True)
class FoundRecord:
    """The training record in a directory of weights; `fault` says why it is missing, unreliable or incomplete."""

    name: str | None
    record: TrainingRecord | None
    sha256: str | None = None
    fault: str = ""


def description_file(directory: Path) -> Path | None:
    """Give the file in `directory` that describes its weights; None where there is none."""
    return next((directory / name for name in DESCRIPTION_FILES if (directory / name).is_file()), None)


def find_record(directory: Path) -> FoundRecord:
    """Read the record in a directory of weights, and check it against the digest in their description."""
    file = description_file(directory)
    if file is None:
        return FoundRecord(None, None, fault="its files are not here")
    try:
        said: Any = json.loads(file.read_bytes())
        name, sealed = str(said["name"]), said.get("digests", {}).get(RECORD_FILE)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return FoundRecord(None, None, fault="its description cannot be read")
    if sealed is None:
        return FoundRecord(name, None, fault="it has no record")
    try:
        about = (directory / RECORD_FILE).stat()
        digest, record = _read_file(directory / RECORD_FILE, about.st_mtime_ns, about.st_size)
    except FileNotFoundError:
        return FoundRecord(name, None, fault="its record was removed")
    except (OSError, ValueError):
        return FoundRecord(name, None, fault="its record was altered")
    if digest != sealed:
        return FoundRecord(name, None, fault="its record was altered")
    return FoundRecord(name, record, digest, "; ".join(record.unknown))


@lru_cache(maxsize=16)
def _read_file(file: Path, changed: int, size: int) -> tuple[str, TrainingRecord]:
    """Give the digest of a record's file, and the record; cached while time of change and size stay the same."""
    content = file.read_bytes()
    return hashlib.sha256(content).hexdigest(), TrainingRecord.read(content)
