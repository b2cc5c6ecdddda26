"""Witness: signs the head of the change log, exports the whole log as a file, and checks both.

A chain proves that the entries of a log fit together, but not that the log was never rewritten from its first entry
on. A head that somebody keeps elsewhere proves that: a rewritten log no longer has that hash at that seq.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import select, text
from sqlalchemy.orm import Session

from colmlm.kb.errors import LogRefused, SignatureRefused
from colmlm.kb.log import audit, signing
from colmlm.kb.log.chain import Break, Chain, CheckedChain, read_changes, verify_chain
from colmlm.kb.log.tree import read_leaves, root_of
from colmlm.kb.tables import ChangeRow

FORMAT = "change-log-head/1"
_EXPORTED = "Name a file that `colmlm log export` wrote."
FITS = "that each change has the hash of what it says, and goes on from the change before it"
HELD = "that the log up to change {} is the one whose head was signed then"
NO_HEAD = "No earlier head was given: a log cut at its end or rewritten as a whole would pass."
DOES_NOT_PROVE = (
    "anything of the time before the first head that was kept elsewhere",
    "that nothing was cut off that came after the last such head",
    "that no stored output or denial was removed, which are not in the log",
    "that facts and stored outputs are what the log says: colmlm doctor --data compares them",
    "that the name of an actor is true, or that the clock was right",
)
_ENTRY = {"seq", "kind", "fact_ids", "num_facts", "actor", "reason", "at", "prev_hash", "payload", "hash"}


@dataclass(frozen=True, slots=True)
class Head:
    """The signed end of a log. `key` is the fingerprint of the key that signed it."""

    database: str
    seq: int
    hash: str
    at: str
    key: str


@dataclass(frozen=True, slots=True)
class AuditReport:
    """The result of checking a log: the number of its changes, the breaks, and the last change.

    `ok` says that the log is as it was written, except for `sealed` breaks, which somebody acknowledged. `breaks` are
    all others, and `first_break` is the first change at fault. `holds_witnessed` says whether a `witnessed` head is in
    it; without one both are None. `proves` and `does_not_prove` say what a log that is ok shows, and what it does not.
    """

    ok: bool
    database: str
    changes_checked: int
    first_break: int | None
    seq: int
    hash: str
    breaks: tuple[Break, ...] = ()
    sealed: tuple[Break, ...] = ()
    witnessed: Head | None = None
    holds_witnessed: bool | None = None
    proves: tuple[str, ...] = ()
    does_not_prove: tuple[str, ...] = ()


def signed_head(session: Session, key: Ed25519PrivateKey) -> dict[str, Any]:
    """Give the present head of the log as a signed JSON object, with the root of its tree (`kb.log.tree`)."""
    seq, leaves = audit.head_seq(session), read_leaves(session)
    statement = {
        "format": FORMAT,
        "database": audit.database_id(session),
        "seq": seq,
        "hash": find_change_hash(session, seq),
        "size": len(leaves),
        "root": root_of(leaves).hex(),
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "key": signing.fingerprint(key.public_key().public_bytes_raw()),
    }
    return signing.sign_bytes(key, statement)


def find_change_hash(session: Session, seq: int) -> str | None:
    """Give the hash of change `seq`, or None where the log has none; 0 has the genesis hash."""
    if seq == 0:
        return audit.GENESIS
    return session.scalar(select(ChangeRow.hash).where(ChangeRow.seq == seq))


def export_log(session: Session, key: Ed25519PrivateKey) -> Iterator[str]:
    """Yield the log as JSON lines, from one snapshot of the database: its signed head, then every change.

    They contain no fact text.
    """
    session.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY"))
    yield _line(signed_head(session, key))
    for change in read_changes(session):
        yield _line({**audit.canonical_entry(change), "hash": change.hash})


def _line(value: Mapping[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False) + "\n"


def read_head(line: str, what: str) -> Head:
    """Read a signed head from JSON. Raises `SignatureRefused` unless it is as the key that it names signed it."""
    try:
        signed = json.loads(line)
        named = {name: signed[name] for name in Head.__dataclass_fields__}
        if signed["format"] != FORMAT or not isinstance(signed["seq"], int):
            raise ValueError("another format")
    except (ValueError, TypeError, LookupError) as error:
        raise SignatureRefused(what, "it has no signed head of a change log", _EXPORTED) from error
    if signing.verify_signature(signed, what).fingerprint != named["key"]:
        raise SignatureRefused(what, "it was signed by another key than the one it names")
    return Head(**named)


@dataclass(frozen=True, slots=True)
class LogEntry:
    """A line of an exported log: a change as it is hashed, its stored hash, and whether both fit the chain so far."""

    said: dict[str, Any]
    hash: str
    fits: bool


def read_log(lines: Iterable[str], what: str) -> tuple[Head, Iterator[LogEntry]]:
    """Read an exported log: give its signed head and an iterator that checks each entry as it yields it.

    The iterator raises `LogRefused` at its end, where an entry was altered, missing or out of place and nobody sealed
    that, or where the log does not end as its head says. Only a log that was read to its end is evidence, and of it
    only the entries that fit.
    """
    rest = iter(lines)
    head, chain = read_head(next(rest, ""), what), Chain()
    return head, _complete(rest, chain, head, what)


def _complete(lines: Iterator[str], chain: Chain, head: Head, what: str) -> Iterator[LogEntry]:
    yield from _entries(lines, chain, what)
    chained = chain.end()
    if chained.first_break is not None:
        raise LogRefused(what, chained.first_break, "it is altered, missing or out of place")
    _require_end(chained, head, what)


def _entries(lines: Iterator[str], chain: Chain, what: str) -> Iterator[LogEntry]:
    for line in lines:
        try:
            said = json.loads(line)
            hash_ = said.pop("hash")
            if {*said, "hash"} != _ENTRY or not isinstance(said["seq"], int) or not isinstance(hash_, str):
                raise ValueError("other fields")
            fits = chain.take(said, hash_) is None
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            raise LogRefused(what, chain.seq + 1, "it is not an entry of a change log") from error
        yield LogEntry(said, hash_, fits)


def _require_end(chained: CheckedChain, head: Head, what: str) -> None:
    if (chained.seq, chained.hash) != (head.seq, head.hash):
        raise LogRefused(
            what, chained.seq, f"it ends here, but its signature is of a log up to change {head.seq}"
        )


def check_log(lines: Iterable[str], what: str, witnessed: Head | None = None) -> AuditReport:
    """Check an exported log without its database, and whether the `witnessed` head is in it."""
    rest = iter(lines)
    head, chain, refused = read_head(next(rest, ""), what), Chain(), None
    hashes = {0: audit.GENESIS}
    try:
        for entry in _entries(rest, chain, what):
            hashes[entry.said["seq"]] = entry.hash
        _require_end(chain.end(), head, what)
    except LogRefused as error:
        refused = error.seq
    found = None if witnessed is None else hashes.get(witnessed.seq)
    return _report(head.database, chain.end(), refused, witnessed, found)


def check_database(session: Session, witnessed: Head | None = None) -> AuditReport:
    """Check the log of this database, and whether a witnessed head is in it."""
    session.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY"))
    found = None if witnessed is None else find_change_hash(session, witnessed.seq)
    return _report(audit.database_id(session), verify_chain(session), None, witnessed, found)


def has_head(session: Session, witnessed: Head) -> bool:
    """Tell whether this log has the witnessed head in its place, without checking the chain up to there."""
    return (witnessed.database, witnessed.hash) == (
        audit.database_id(session),
        find_change_hash(session, witnessed.seq),
    )


def _report(
    database: str, chained: CheckedChain, refused: int | None, witnessed: Head | None, found: str | None
) -> AuditReport:
    holds = None if witnessed is None else (witnessed.database, witnessed.hash) == (database, found)
    first_break = refused if chained.first_break is None else chained.first_break
    ok = first_break is None and holds is not False
    return AuditReport(
        ok=ok,
        database=database,
        changes_checked=chained.checked,
        first_break=first_break,
        seq=chained.seq,
        hash=chained.hash,
        breaks=chained.breaks,
        sealed=chained.sealed,
        witnessed=witnessed,
        holds_witnessed=holds,
        proves=(FITS, *([HELD.format(witnessed.seq)] if witnessed else [])) if ok else (),
        does_not_prove=DOES_NOT_PROVE,
    )
