"""Witness: the head of the change log as a signed statement, the whole log as a file, and the check of both.

A chain proves that a log fits together, not that it was never rewritten from its first entry on. A head that somebody
keeps elsewhere proves that: a rewritten log no longer holds its hash at its seq.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import select, text
from sqlalchemy.orm import Session

from kb import audit, signing
from kb.errors import LogRefused, SignatureRefused
from kb.tables import Change

if TYPE_CHECKING:
    from kb.service import KnowledgeBase

FORMAT = "change-log-head/1"
_ENTRY = {"seq", "kind", "fact_ids", "num_facts", "actor", "reason", "at", "prev_hash", "payload", "hash"}


@dataclass(frozen=True, slots=True)
class Head:
    """A witnessed end of a log. `key` is the fingerprint of the key that signed it."""

    database: str
    seq: int
    hash: str
    at: str
    key: str


@dataclass(frozen=True, slots=True)
class AuditReport:
    """A checked log: how many of its changes fit, the first that does not, and where it ends.

    `holds_witnessed` says whether a `witnessed` head is in it; without one both are None.
    """

    ok: bool
    database: str
    changes_checked: int
    first_break: int | None
    seq: int
    hash: str
    witnessed: Head | None = None
    holds_witnessed: bool | None = None


def signed_head(session: Session, key: Ed25519PrivateKey) -> dict[str, Any]:
    """The end of the log as of now, as a signed JSON object."""
    seq = audit.head_seq(session)
    statement = {
        "format": FORMAT,
        "database": audit.database_id(session),
        "seq": seq,
        "hash": hash_at(session, seq),
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "key": signing.fingerprint(key.public_key().public_bytes_raw()),
    }
    return signing.sign(key, statement)


def hash_at(session: Session, seq: int) -> str | None:
    """The hash of change `seq`, or None where the log has none; 0 has the genesis hash."""
    if seq == 0:
        return audit.GENESIS
    return session.scalar(select(Change.hash).where(Change.seq == seq))


def export_log(kb: KnowledgeBase, key: Ed25519PrivateKey) -> Iterator[str]:
    """The log as JSON lines, from one snapshot of the database: its signed head, then every change. No fact text."""
    with kb.sessions() as session:
        session.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY"))
        yield _line(signed_head(session, key))
        statement = select(Change).order_by(Change.seq).execution_options(yield_per=1000)
        with closing(session.scalars(statement)) as log:  # a reader may stop in the middle
            for change in log:
                yield _line({**audit.entry(change), "hash": change.hash})
                session.expunge(change)


def _line(value: Mapping[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False) + "\n"


def read_head(line: str, what: str) -> Head:
    """The head that a line states. Raises `SignatureRefused` unless it is as it was signed, and by the key it names."""
    try:
        signed = json.loads(line)
        named = {name: signed[name] for name in Head.__dataclass_fields__}
        if signed["format"] != FORMAT or not isinstance(signed["seq"], int):
            raise ValueError("another format")
    except (ValueError, TypeError, LookupError) as error:
        raise SignatureRefused(what, "it does not begin with the signed head of a change log") from error
    if signing.verify(signed, what).fingerprint != named["key"]:
        raise SignatureRefused(what, "it was signed by another key than it says")
    return Head(**named)


def read_log(lines: Iterable[str], what: str) -> tuple[Head, Iterator[dict[str, Any]]]:
    """The signed head of an exported log and its entries, each checked as it is given.

    The iterator raises `LogRefused` at the first entry that is altered, missing or out of place, or where the log
    does not end as its head says. Only what was read to the end is evidence.
    """
    rest = iter(lines)
    head = read_head(next(rest, ""), what)
    return head, _entries(rest, head, what)


def _entries(lines: Iterator[str], head: Head, what: str) -> Iterator[dict[str, Any]]:
    seq, prev_hash = 0, audit.GENESIS
    for line in lines:
        seq += 1
        try:
            entry = json.loads(line)
            said = entry.pop("hash")
            fits = {*entry, "hash"} == _ENTRY and (entry["seq"], entry["prev_hash"]) == (seq, prev_hash)
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise LogRefused(what, seq, "it is no entry of a change log") from error
        if not fits or audit.entry_hash(entry) != said:
            raise LogRefused(what, seq, "it is altered, missing or out of place")
        prev_hash = said
        yield entry
    if (seq, prev_hash) != (head.seq, head.hash):
        raise LogRefused(what, seq, f"the log ends here, its signed head is change {head.seq}")


def check_log(lines: Iterable[str], what: str, witnessed: Head | None = None) -> AuditReport:
    """Check an exported log without its database."""
    head, entries = read_log(lines, what)
    hashes, first_break = {0: audit.GENESIS}, None
    try:
        for entry in entries:
            hashes[entry["seq"]] = audit.entry_hash(entry)
    except LogRefused as refused:
        first_break = refused.seq
    found = None if witnessed is None else hashes.get(witnessed.seq)
    return _report(head.database, len(hashes) - 1, first_break, hashes[len(hashes) - 1], witnessed, found)


def check_database(kb: KnowledgeBase, witnessed: Head | None = None) -> AuditReport:
    """Check the log of this knowledge base, and whether a witnessed head is in it."""
    with kb.sessions() as session:
        session.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY"))
        checked, first_break = audit.verify_chain(session)
        end = hash_at(session, checked) or audit.GENESIS
        found = None if witnessed is None else hash_at(session, witnessed.seq)
        return _report(audit.database_id(session), checked, first_break, end, witnessed, found)


def holds(kb: KnowledgeBase, witnessed: Head) -> bool:
    """Whether this log has the witnessed head in its place. It does not check the chain up to there."""
    with kb.sessions() as session:
        return (witnessed.database, witnessed.hash) == (
            audit.database_id(session),
            hash_at(session, witnessed.seq),
        )


def _report(
    database: str, checked: int, first_break: int | None, end: str, witnessed: Head | None, found: str | None
) -> AuditReport:
    holds = None if witnessed is None else (witnessed.database, witnessed.hash) == (database, found)
    return AuditReport(
        ok=first_break is None and holds is not False,
        database=database,
        changes_checked=checked,
        first_break=first_break,
        seq=checked,
        hash=end,
        witnessed=witnessed,
        holds_witnessed=holds,
    )
