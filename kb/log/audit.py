"""The change log: records who changed what, when and why, chained by hashes; indexes catch up from it.

An edit calls `begin_change`, then `append_change`, in one transaction. `begin_change` takes the log's lock, so that
`seq` has neither gaps nor reordering: a later seq is never visible before an earlier one. The log holds no fact text.
Where a value matters it holds an HMAC under this database's secret, so it may stay after an erasure.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypedDict, Unpack

from psycopg.errors import LockNotAvailable
from psycopg.types.json import Jsonb
from sqlalchemy import ColumnElement, Select, func, or_, select, update
from sqlalchemy.orm import Session

from colmlm.kb.errors import InvalidValue, refusals
from colmlm.kb.log.records import ChangeRecord
from colmlm.kb.principal import Principal, current_origin
from colmlm.kb.store.database import connection_of
from colmlm.kb.store.waits import holder_of
from colmlm.kb.tables import (
    ChangeRow,
    CheckpointRow,
    FactRow,
    IdempotencyRow,
    KeysetRow,
    SecretRow,
    copy_columns,
)
from colmlm.kb.texts.characters import JOINERS, escape_character, find_invisible, is_blank

CHANGE_LOCK = 0x636F6C6D02
GENESIS = "0" * 64

# Changes of these kinds edit no facts. Those of NO_KEYS, which keep the record complete, leave indexes as they were; a
# change of kind "key" tells them which keys to fetch.
NO_KEYS = (
    "activate", "threshold", "retire", "create-api-key", "rotate-api-key", "revoke-api-key", "restore-backup", "seal",
    "answer-threshold", "accepted-only", "dismiss-misses", "solve-misses", "reopen-misses",
    "add-webhook", "pause-webhook", "resume-webhook", "replay-webhook", "remove-webhook",
    "place-hold", "release-hold", "retain", "discard-plan",
)  # fmt: skip
MAINTENANCE = ("key", *NO_KEYS)
OF_KEYSETS = ("activate", "threshold", "retire")  # their records name the keyset and its checkpoint
VERDICTS = ("accept", "propose")  # these change nothing of facts but their review; "reject" deletes them
KINDS = (
    "insert", "ingest", "update", "move", "delete", "restore", "both-right", "hold", "forget", "erase", "reject",
    *VERDICTS, *MAINTENANCE,
)  # fmt: skip

# The driver runs these two statements itself, since every edit needs them and a round trip is all they should cost.
# The SQL function `begin_change` is made in migrations/baseline/facts.sql.
BEGUN = "SELECT at, secret, seq, hash FROM begin_change(%(lock)s)"
_APPEND = """
INSERT INTO change (seq, kind, fact_ids, num_facts, actor, reason, at, prev_hash, hash, payload)
VALUES (%s, %s, %s::bigint[], %s, %s, %s, %s, %s, %s, %s)
"""


@dataclass(frozen=True, slots=True)
class Pending:
    """A change that has its number in the log and is still to be appended."""

    seq: int
    prev_hash: str
    at: datetime
    actor: str
    reason: str
    secret: bytes

    def digest(self, value: str) -> str:
        """Give the HMAC of a value that the log stores: who knows the value can check it, and others learn nothing."""
        return hmac.new(self.secret, value.encode(), hashlib.sha256).hexdigest()


def begin_change(session: Session, actor: str, reason: str) -> Pending:
    """Lock the log until this transaction ends and take the next seq. Raises `LogHeld` if the lock stays taken."""
    return begin_change_with(session, actor, reason, BEGUN, {})[0]


def begin_change_with(
    session: Session, actor: str, reason: str, statement: str, values: Mapping[str, Any]
) -> tuple[Pending, list[tuple[Any, ...]]]:
    """Begin a change by a statement that reads more, and give the change and the statement's other columns.

    The statement gives at least one row, and each row begins with the columns of `BEGUN`. The other columns are as they
    were before the lock was held.
    """
    check_who(actor, reason)
    # Under READ COMMITTED each statement of the function has its own snapshot, so the second one sees what the lock's
    # last holder committed.
    with _explain_held_log(session):
        rows = connection_of(session).execute(statement, {**values, "lock": CHANGE_LOCK}).fetchall()
    at, secret, head, hash_ = rows[0][:4]  # the first migration makes the secret
    seq, prev_hash = (head + 1, hash_) if head else (1, GENESIS)
    pending = Pending(seq, prev_hash, at.astimezone(UTC), actor, reason, bytes(secret))
    return pending, [row[4:] for row in rows]


def lock_log(session: Session) -> None:
    """Lock the log until this transaction ends, and begin no change. Raises `LogHeld` if the lock stays taken."""
    with _explain_held_log(session):
        connection_of(session).execute("SELECT pg_advisory_xact_lock(%(lock)s)", {"lock": CHANGE_LOCK})


@contextmanager
def _explain_held_log(session: Session) -> Iterator[None]:
    """Raise `LogHeld`, which names the holder, if a statement in the `with` block gives up waiting for the lock."""
    asked = time.monotonic()
    try:
        yield
    except LockNotAvailable as error:
        engine = session.get_bind().engine  # this transaction has failed and runs no more statements
        raise refusals.log_held(holder_of(engine, CHANGE_LOCK), round(time.monotonic() - asked, 1)) from error


def check_who(actor: str, reason: str) -> None:
    """Raise `InvalidValue` if the actor or the reason is blank or has invisible characters."""
    check_name("actor", actor)
    check_logged_text("reason", reason, blank=False)


def append_change(
    session: Session,
    pending: Pending,
    kind: str,
    fact_ids: Sequence[int] = (),
    *,
    num_facts: int | None = None,
    payload: Mapping[str, Any] | None = None,
) -> int:
    """Write the change that `begin_change` opened, and give its seq.

    `payload` is JSON without floats and without fact text. The change also records who was authenticated, and the
    request that asked for it.
    """
    mark_change(session, pending.seq)
    signature = signature_of(pending.actor)
    change = ChangeRow(
        seq=pending.seq,
        kind=kind,
        fact_ids=list(fact_ids),
        num_facts=len(fact_ids) if num_facts is None else num_facts,
        actor=signature.actor,
        reason=pending.reason,
        at=pending.at,
        prev_hash=pending.prev_hash,
        payload={**(payload or {}), **origin_payload(signature)},
    )
    connection_of(session).execute(
        _APPEND,
        (
            change.seq,
            change.kind,
            change.fact_ids,
            change.num_facts,
            change.actor,
            change.reason,
            change.at,
            change.prev_hash,
            chain_hash(change),
            Jsonb(change.payload),
        ),
    )
    return pending.seq


def chain_hash(change: ChangeRow) -> str:
    """Give the SHA-256 of the change's canonical JSON, which includes the previous hash."""
    return entry_hash(canonical_entry(change))


def canonical_entry(change: ChangeRow) -> dict[str, Any]:
    """Give a change as the JSON object that is hashed."""
    return {
        "seq": change.seq,
        "kind": change.kind,
        "fact_ids": change.fact_ids,
        "num_facts": change.num_facts,
        "actor": change.actor,
        "reason": change.reason,
        "at": change.at.astimezone(UTC).isoformat(timespec="microseconds"),
        "prev_hash": change.prev_hash,
        "payload": change.payload,
    }


def entry_hash(canonical: Mapping[str, Any]) -> str:
    """Give the hash that an entry in the form of `canonical_entry` must have."""
    return hashlib.sha256(json.dumps(canonical, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def head_seq(session: Session) -> int:
    """Give the number of the last committed change; 0 in a fresh database."""
    return session.scalar(select(ChangeRow.seq).order_by(ChangeRow.seq.desc()).limit(1)) or 0


def change_hash_or_genesis(session: Session, seq: int) -> str:
    """Give the hash of change `seq`; `GENESIS`, from which the log begins, if there is no such change."""
    return session.scalar(select(ChangeRow.hash).where(ChangeRow.seq == seq)) or GENESIS


def require_change(session: Session, seq: int) -> None:
    """Raise `NoSuchChange` unless the log has change `seq`. 0 stands for the time before the first."""
    head = head_seq(session)
    if not 0 <= seq <= head:
        raise refusals.no_such_change(seq, head)


class LogFilters(TypedDict, total=False):
    """The filters of a list of changes; a filter that is None or left out lets every change pass.

    `principal` is the name of a token or of a user of the server's machine that was authenticated, `actor` the name
    that the log gives. `fact_id` also finds the change that created the fact, since an ingest does not list its new
    facts.
    """

    actor: str | None
    principal: str | None
    kind: str | None
    fact_id: int | None
    since: datetime | None
    until: datetime | None


def list_changes(session: Session, after: int, limit: int, **only: Unpack[LogFilters]) -> list[ChangeRecord]:
    """Give up to `limit` changes past `after`, oldest first, that pass every filter."""
    past = select(ChangeRow).where(ChangeRow.seq > after).order_by(ChangeRow.seq)
    return _records(session, past.limit(limit), only)


def count_changes(session: Session, after: int, last: int) -> dict[str, int]:
    """Count the changes past `after`, up to `last`, by kind."""
    between = select(ChangeRow.kind, func.count().label("number")).where(
        ChangeRow.seq > after, ChangeRow.seq <= last
    )
    return {row.kind: row.number for row in session.execute(between.group_by(ChangeRow.kind))}


def changes_before(
    session: Session, before: int, limit: int, **only: Unpack[LogFilters]
) -> list[ChangeRecord]:
    """Give up to `limit` changes older than `before`, newest first, that pass every filter."""
    older = select(ChangeRow).where(ChangeRow.seq < before).order_by(ChangeRow.seq.desc())
    return _records(session, older.limit(limit), only)


def _records(session: Session, page: Select[ChangeRow], only: LogFilters) -> list[ChangeRecord]:
    return records_with_checkpoints(session, session.scalars(page.where(*_conditions(**only))))


def _conditions(
    actor: str | None = None,
    principal: str | None = None,
    kind: str | None = None,
    fact_id: int | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
) -> Iterator[ColumnElement[bool]]:
    if actor is not None:
        yield ChangeRow.actor == actor
    if principal is not None:
        yield ChangeRow.payload["principal"]["name"].astext == principal
    if kind is not None:
        yield ChangeRow.kind == kind
    if fact_id is not None:
        created = select(FactRow.created_seq).where(FactRow.id == fact_id).scalar_subquery()
        yield or_(ChangeRow.fact_ids.contains([fact_id]), ChangeRow.seq == created)
    if since is not None:
        yield ChangeRow.at >= since
    if until is not None:
        yield ChangeRow.at < until


def records_with_checkpoints(session: Session, changes: Iterable[ChangeRow]) -> list[ChangeRecord]:
    """Make the records of changes, each with the name of the checkpoint of the keyset that it names."""
    records = [change_record(change) for change in changes]
    keyset_ids = {record.keyset_id for record in records if record.keyset_id is not None}
    if not keyset_ids:
        return records
    statement = select(KeysetRow.id, CheckpointRow.name).join(
        CheckpointRow, CheckpointRow.id == KeysetRow.checkpoint_id
    )
    rows = session.execute(statement.where(KeysetRow.id.in_(keyset_ids)))
    names = {row.id: row.name for row in rows}
    return [
        record if (name := names.get(record.keyset_id)) is None else replace(record, checkpoint=name)
        for record in records
    ]


def change_record(change: ChangeRow) -> ChangeRecord:
    """Make the record of a change, also of one with an unknown payload, without the name of a checkpoint."""
    said = change.payload if isinstance(change.payload, dict) else {}
    return copy_columns(
        ChangeRecord,
        change,
        fact_ids=tuple(change.fact_ids),
        at=change.at.astimezone(UTC),
        request_id=_text_field(said, "request_id"),
        client_request_id=_text_field(said, "client_request_id"),
        principal=principal_of(said.get("principal")),
        on_behalf_of=_text_field(said, "on_behalf_of"),
        undoes=_id(said, "undoes"),
        keyset_id=_id(said, "keyset") if change.kind in OF_KEYSETS else None,
        note=_activation_note(said) if change.kind == "activate" else None,
    )


def _activation_note(said: Mapping[str, Any]) -> str | None:
    """Say if an activation was a rollback, forced or with eased limits, by its payload; None if none of these."""
    notes = ["rollback"] if said.get("rollback") is True else []
    if said.get("forced") is True:
        notes.append(f"forced: {_text_field(said, 'refusal') or 'without a gate that passed lately'}")
        failed = [one for one in said.get("failed") or () if isinstance(one, dict)]
        notes += [f"{one.get('name')} {one.get('figure')}, limit {one.get('limit')}" for one in failed]
    eased = [one for one in said.get("eased_limits") or () if isinstance(one, str)]
    return "; ".join([*notes, *(f"eased limit {one}" for one in eased)]) or None


def _id(said: Mapping[str, Any], name: str) -> int | None:
    return value if type(value := said.get(name)) is int else None


def _text_field(said: Mapping[str, Any], name: str) -> str | None:
    return value if isinstance(value := said.get(name), str) else None


def principal_of(kept: Any) -> Principal | None:
    """Read the principal that a row keeps as JSON; None if it keeps none, or what is not one."""
    try:
        return Principal.from_json(kept) if isinstance(kept, dict) else None
    except (LookupError, TypeError, ValueError):
        return None


def database_id(session: Session) -> str:
    """Give the id of this database, which reveals nothing of its secret."""
    return keyed_digest(session, "database")[:16]


def keyed_digest(session: Session, value: str) -> str:
    """Give an HMAC of `value` under this database's secret, as the log stores it."""
    return keyed_digests(session)(value)


def keyed_digests(session: Session) -> Callable[[str], str]:
    """Read this database's secret once, and give the function that digests values with it."""
    secret = session.scalars(select(SecretRow.value).where(SecretRow.name == "change_log")).one()
    return lambda value: hmac.new(secret, value.encode(), hashlib.sha256).hexdigest()


def check_text(field: str, value: str, *, blank: bool = True, limit: int = 10_000) -> None:
    """Raise `InvalidValue` where PostgreSQL cannot store `value`, where it is too long or, unless allowed, blank."""
    if not blank and is_blank(value):
        raise InvalidValue(field, "it is blank. Give a text")
    if "\x00" in value:
        raise InvalidValue(field, "it holds a NUL character. Remove it")
    place = next((place for place, one in enumerate(value) if "\ud800" <= one <= "\udfff"), None)
    if place is not None:
        raise InvalidValue(field, f"it holds a lone surrogate, half of a character, at {place}. Remove it")
    if len(value) > limit:
        raise InvalidValue(field, f"it has {len(value)} characters, but the limit is {limit}. Shorten it")


def check_name(field: str, name: str, limit: int = 200) -> None:
    """Raise `InvalidValue` if a name is blank, too long, or has invisible characters."""
    check_text(field, name, blank=False, limit=limit)
    _check_visible(field, name, "")


def check_logged_text(field: str, said: str, *, blank: bool = True) -> None:
    """Raise `InvalidValue` if a text that the log keeps is blank (unless allowed) or has invisible characters."""
    check_text(field, said, blank=blank)
    _check_visible(field, said, JOINERS)


def _check_visible(field: str, text: str, allowed: str) -> None:
    if (found := find_invisible(text, allowed)) is not None:
        raise InvalidValue(
            field, f"it holds {escape_character(found)}, a character that does not show. Leave it out"
        )


class Signature(NamedTuple):
    """The actor that a change names, and the person on whose behalf it was made, if another; nothing cryptographic."""

    actor: str
    on_behalf_of: str | None


def signature_of(actor: str) -> Signature:
    """Give the actor that a change names: with a token the token's own name, else the given one.

    On the server's machine the given name counts, since whoever has a shell there has the database.
    """
    found = current_origin()
    principal = found.principal
    if principal.kind == "key":
        behalf = found.on_behalf_of
        return Signature(principal.name, behalf if behalf != principal.name else None)
    named = found.on_behalf_of or actor
    is_other = principal.kind == "local" and named != principal.name
    return Signature(actor, named if is_other else None)


def origin_payload(signature: Signature) -> dict[str, Any]:
    """Give the part of a change's payload that names its request, its principal, and on whose behalf it was made."""
    found = current_origin()
    kept = {
        "request_id": found.request_id,
        "client_request_id": found.client_request_id,
        "principal": found.principal.to_json(),
        "on_behalf_of": signature.on_behalf_of,
    }
    return {name: value for name, value in kept.items() if value is not None}


def mark_change(session: Session, seq: int) -> None:
    """Store change `seq` in the idempotency claim of this request, if it has one, in the transaction of the change.

    An act that is no change but must not be repeated either stores the number of the change before it.

    Raises `RequestUnderWay` where another run has taken over the claim, so that the two can't both edit.
    """
    claim = current_origin().claim
    if claim is None:
        return
    held = (IdempotencyRow.id == claim.row_id) & (IdempotencyRow.claim == claim.claim)
    marked = update(IdempotencyRow).where(held).values(seq=seq).returning(IdempotencyRow.id)
    if session.scalar(marked) is None:
        raise refusals.request_under_way()
