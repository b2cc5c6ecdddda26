"""The chain of the change log: each entry holds the hash of the one before, which reveals altered and inserted entries.

An entry that does not fit is a break. The check goes on after it and compares each later entry with the one before as
that is stored. An operator who knows the cause of a break may seal it, by a change that states what was found and what
was expected. A sealed break is still reported, as known; any other fault, even in the same entry, is a new break.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec import UNSET, UnsetType
from sqlalchemy import select
from sqlalchemy.orm import Session

from colmlm.kb.errors import NoOpenBreak, SignatureRefused
from colmlm.kb.log import audit, signing
from colmlm.kb.log.records import ChangeRecord
from colmlm.kb.tables import ChangeRow

SEAL = "seal"


@dataclass(frozen=True, slots=True)
class Break:
    """An entry that does not fit the one before it or its own hash.

    `causes` are among "gap" (another number was expected here), "prev_hash" (it names another entry's hash as the one
    before) and "hash" (its content has another hash than it states). Each figure found has its `expected` one. A hash
    that is too long to be one is given by its own SHA-256.
    """

    seq: int
    causes: tuple[str, ...]
    expected_seq: int
    prev_hash: str
    expected_prev_hash: str
    hash: str
    expected_hash: str
    sealed_by: int | None = None

    @property
    def first_seq(self) -> int:
        """The first change at fault: this one, or the first that is missing before it."""
        return min(self.seq, self.expected_seq) if "gap" in self.causes else self.seq

    def statement(self) -> dict[str, Any]:
        """Gives the break as a seal states it, in JSON's own types."""
        said = {**asdict(self), "causes": list(self.causes)}
        del said["sealed_by"]
        return said


@dataclass(frozen=True, slots=True)
class Chained:
    """The result of checking a log to its end, change `seq` with its `hash`. `breaks` are those that nobody sealed."""

    checked: int
    seq: int
    hash: str
    breaks: tuple[Break, ...]
    sealed: tuple[Break, ...]

    @property
    def first_break(self) -> int | None:
        return self.breaks[0].first_seq if self.breaks else None


@dataclass(slots=True)
class Chain:
    """Checks the entries of a log one after the other."""

    checked: int = 0
    seq: int = 0
    hash: str = audit.GENESIS
    _breaks: list[Break] = field(default_factory=list)
    _seals: dict[int, list[tuple[int, Any]]] = field(default_factory=dict)

    def take(self, entry: Mapping[str, Any], hash_: str) -> Break | None:
        """Compares the next entry and its stored hash with the entries before; gives a break where it does not fit."""
        computed = audit.entry_hash(entry)
        expected = {
            "gap": (entry["seq"], self.seq + 1),
            "prev_hash": (entry["prev_hash"], self.hash),
            "hash": (hash_, computed),
        }
        causes = tuple(cause for cause, (found, wanted) in expected.items() if found != wanted)
        found = None
        if causes:
            found = Break(
                entry["seq"],
                causes,
                self.seq + 1,
                _short(entry["prev_hash"]),
                _short(self.hash),
                _short(hash_),
                computed,
            )
            self._breaks.append(found)
        elif entry["kind"] == SEAL:
            self._note(entry["seq"], entry["payload"])
        self.checked, self.seq, self.hash = self.checked + 1, entry["seq"], hash_
        return found

    def _note(self, seq: int, payload: Any) -> None:
        said = payload.get("breaks") if isinstance(payload, dict) else None
        for one in said if isinstance(said, list) else ():
            if isinstance(one, dict) and isinstance(one.get("seq"), int):
                self._seals.setdefault(one["seq"], []).append((seq, one))

    def end(self) -> Chained:
        """Gives the result, once every entry was taken."""
        looked_up = [self._sealed(found) for found in self._breaks]
        return Chained(
            self.checked,
            self.seq,
            self.hash,
            tuple(found for found in looked_up if found.sealed_by is None),
            tuple(found for found in looked_up if found.sealed_by is not None),
        )

    def _sealed(self, found: Break) -> Break:
        """Gives the break with the number of the first later change that seals exactly it."""
        said = found.statement()
        by = next(
            (seq for seq, one in self._seals.get(found.seq, ()) if seq > found.seq and one == said), None
        )
        return Break(**{**said, "causes": found.causes, "sealed_by": by})


def _short(hash_: str) -> str:
    return hash_ if len(hash_) <= 64 else f"sha256:{hashlib.sha256(hash_.encode()).hexdigest()}"


def verify_chain(session: Session) -> Chained:
    """Checks the whole log of this database."""
    chain = Chain()
    for change in log_of(session):
        chain.take(audit.entry_of(change), change.hash)
    return chain.end()


def log_of(session: Session) -> Iterator[ChangeRow]:
    """Yields every change, oldest first, and keeps none in memory."""
    statement = select(ChangeRow).order_by(ChangeRow.seq).execution_options(yield_per=1000)
    with closing(session.scalars(statement)) as log:  # closed also where a reader stops in the middle
        for change in log:
            yield change
            session.expunge(change)


@dataclass(frozen=True, slots=True)
class Sealed:
    """A change that acknowledged breaks of the log."""

    seq: int
    breaks: tuple[Break, ...]


def seal_breaks(session: Session, seqs: Sequence[int], actor: str, reason: str) -> Sealed:
    """Appends a change that acknowledges the breaks at these changes, all or none. Does not commit.

    Raises `NoOpenBreak` where one of them fits, does not exist, or is sealed already.
    """
    pending = audit.begin_change(session, actor, reason)
    open_breaks = {found.seq: found for found in verify_chain(session).breaks}
    if others := sorted(set(seqs) - set(open_breaks)):
        raise NoOpenBreak(others)
    breaks = tuple(open_breaks[seq] for seq in sorted(set(seqs)))
    payload = {"breaks": [found.statement() for found in breaks]}
    seq = audit.append_change(session, pending, SEAL, payload=payload)
    return Sealed(seq, tuple(replace(found, sealed_by=seq) for found in breaks))


# Envelopes: signed statements in a form that other tools read, DSSE around an in-toto Statement.
#
# The signature is Ed25519 over DSSE's pre-authentication encoding of the payload. A statement names its
# signer's public key too, so that a reader who knows that key's id (the SHA-256 of its SPKI) needs nothing
# else. The envelope alone proves nothing of its signer, since anybody can sign with a key of their own:
# compare the id with one known from elsewhere.

PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
_FIELDS = {"payloadType", "payload", "signatures"}


@dataclass(frozen=True, slots=True)
class OpenedEnvelope:
    """The content of an envelope whose signature is valid; `names` are those of the key that signed it."""

    predicate_type: str
    subject: Mapping[str, Any]
    predicate: Mapping[str, Any]
    names: signing.KeyNames


def close_envelope(
    key: Ed25519PrivateKey, predicate_type: str, name: str, sha256: str, predicate: Mapping[str, Any]
) -> dict[str, Any]:
    """Makes a signed statement about one subject, given by name and SHA-256."""
    statement = {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": name, "digest": {"sha256": sha256}}],
        "predicateType": predicate_type,
        "predicate": {**predicate, "signer": {"public_key": signing.as_pem(key.public_key())}},
    }
    payload = json.dumps(statement, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    signature = {
        "keyid": signing.names_of(key.public_key()).keyid,
        "sig": signing.in_base64(key.sign(encoded(PAYLOAD_TYPE, payload))),
    }
    return {"payloadType": PAYLOAD_TYPE, "payload": signing.in_base64(payload), "signatures": [signature]}


def encoded(payload_type: str, payload: bytes) -> bytes:
    """Gives DSSE's pre-authentication encoding, the bytes that are signed."""
    return b"DSSEv1 %d %s %d %s" % (len(payload_type.encode()), payload_type.encode(), len(payload), payload)


def is_envelope(value: Mapping[str, Any]) -> bool:
    """Says whether this claims to be an envelope, and not evidence in an earlier form."""
    return "payload" in value


def open_envelope(envelope: Mapping[str, Any], what: str) -> OpenedEnvelope:
    """Reads an envelope. Raises `SignatureRefused` unless every byte is as the key that it names signed it."""
    try:
        if set(envelope) != _FIELDS or envelope["payloadType"] != PAYLOAD_TYPE:
            raise ValueError("another payload")
        (signature,) = envelope["signatures"]
        payload, signed = _bytes(envelope["payload"]), _bytes(signature["sig"])
        statement = json.loads(payload)
        public = signing.from_pem(statement["predicate"]["signer"]["public_key"], what)
        names = signing.names_of(public)
        if set(signature) != {"keyid", "sig"} or signature["keyid"] != names.keyid:
            raise ValueError("another key")
        public.verify(signed, encoded(PAYLOAD_TYPE, payload))
        if statement["_type"] != STATEMENT_TYPE:
            raise ValueError("another statement")
        (subject,) = statement["subject"]
        return OpenedEnvelope(statement["predicateType"], dict(subject), statement["predicate"], names)
    except InvalidSignature as error:
        raise SignatureRefused(what, "its signature does not fit what it says") from error
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise SignatureRefused(what, "it is no signed statement that this program knows") from error


def _bytes(text: str) -> bytes:
    """Decodes base64, and raises `ValueError` for any spelling but the canonical one."""
    data = base64.b64decode(text, validate=True)
    if signing.in_base64(data) != text:
        raise ValueError("base64 in another spelling")
    return data


# Changes of the log as CloudEvents 1.0, the form in which brokers, functions and event stores take events.

EVENT = "application/cloudevents+json"
BATCH = "application/cloudevents-batch+json"


class CloudEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A change as a CloudEvent in the JSON format, structured mode.

    Its `id` is the change's number and its `source` this base; the two together are unique. `sequence` orders events by
    their text. `subject` is the fact, where the change is of one. `data` is the change as `GET /v1/changes` gives it.
    """

    specversion: str = "1.0"
    id: str
    source: str
    type: str
    time: str
    subject: str | UnsetType = UNSET
    sequence: str
    datacontenttype: str = "application/json"
    data: ChangeRecord


def source_of(database: str) -> str:
    """Gives the URI that names a base as the source of its events."""
    return f"urn:colmlm:{database}"


def type_of(kind: str) -> str:
    """Gives the type of the events of this kind of change."""
    return f"org.colmlm.change.{kind}"


def cloud_event(change: ChangeRecord, database: str) -> CloudEvent:
    """Gives the event of a change of this base."""
    is_of_one = change.num_facts == len(change.fact_ids) == 1
    return CloudEvent(
        id=str(change.seq),
        source=source_of(database),
        type=type_of(change.kind),
        time=change.at.isoformat(),
        subject=f"fact/{change.fact_ids[0]}" if is_of_one else UNSET,
        sequence=f"{change.seq:020d}",
        data=change,
    )
