"""API keys: who may call the API, with which secrets and rights. The functions never commit.

A right is what a request needs, a role a named set of rights.

A token is 32 random bytes and is shown once. The database holds only its SHA-256: a slow password hash adds no
security to a secret that can't be guessed, and would cost every request. Times are the database's, so that all
processes agree on when a key ends.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from sqlalchemy import ColumnElement, delete, exists, func, or_, select, update
from sqlalchemy.orm import Session

from colmlm.kb.access.records import LONGEST, MAX_RATE, ROLES, ApiKeyRecord
from colmlm.kb.errors import ApiKeyEnded, ApiKeyNotFound, InvalidValue
from colmlm.kb.log import audit
from colmlm.kb.log.origin import current
from colmlm.kb.tables import ApiKeyRow, BrowserSessionRow

USE_WRITTEN_EVERY = timedelta(minutes=1)


_WORKS = (
    ApiKeyRow.revoked_at.is_(None),
    or_(ApiKeyRow.expires_at.is_(None), ApiKeyRow.expires_at > func.now()),
)
_MARK = "colmlm_"  # a prefix by which secret scanners find a token that was committed by mistake
_SHOWN = len(_MARK) + 6  # characters of a token that are shown, to distinguish keys


def create_key(
    session: Session,
    name: str,
    role: str,
    *,
    actor: str | None = None,
    expires_in: timedelta | None = None,
    rate_limit: int | None = None,
) -> str:
    """Creates a key and gives its token, which can't be read again, as only its digest is stored.

    Raises `InvalidValue`.

    This is a change of the log, as are a rotation and a revocation. `actor` is by default the principal.
    """
    _check_name(name)
    if role not in ROLES:
        raise InvalidValue("role", f"{role!r} is not one of {', '.join(ROLES)}")
    if rate_limit is not None and not 1 <= rate_limit <= MAX_RATE:
        raise InvalidValue("rate limit", f"{rate_limit} is not from 1 to {MAX_RATE} requests a minute")
    pending = _begin(session, actor, f"make the API key {name}, {role}")
    if session.scalar(select(exists().where(ApiKeyRow.name == name))):
        raise InvalidValue(
            "name of the key", f"{name!r} is taken, by a revoked key too; the change log names keys"
        )
    token = new_token()
    key = ApiKeyRow(
        name=name, key_hash=digest_of(token), role=role, prefix=token[:_SHOWN], rate_limit=rate_limit
    )
    if expires_in is not None:
        key.expires_at = _ahead("expiry", expires_in)
    session.add(key)
    _append(session, pending, "create-api-key", key)
    return token


def rotate_key(
    session: Session,
    name: str,
    *,
    actor: str | None = None,
    grace: timedelta = timedelta(0),
    expires_in: timedelta | None = None,
) -> str:
    """Gives a key a new token. The one before it works for `grace` longer, and older ones no more.

    `expires_in` moves the key's end, which also revives an expired key. Raises `ApiKeyNotFound` or `ApiKeyEnded`.
    """
    pending = _begin(session, actor, f"rotate the API key {name}")
    key = _held(session, name)
    expired = key.expires_at is not None and key.expires_at <= _now(session)
    if key.revoked_at is not None or (expired and expires_in is None):
        raise ApiKeyEnded(name, "revoked" if key.revoked_at is not None else "expired")
    token = new_token()
    overlaps = grace > timedelta(0)
    key.previous_hash = key.key_hash if overlaps else None
    key.previous_until = _ahead("grace period", grace) if overlaps else None
    key.previous_used_at = None
    key.key_hash, key.prefix, key.rotated_at = digest_of(token), token[:_SHOWN], func.now()
    _end_browser_sessions(session, key)
    if expires_in is not None:
        key.expires_at = _ahead("expiry", expires_in)
    _append(session, pending, "rotate-api-key", key)
    return token


def verify(session: Session, token: str) -> ApiKeyRecord | None:
    """Gives the key of this token, or None where the token is unknown, or it or its key has ended.

    The row is found by digest, which reveals nothing of the token, and compared in constant time.
    """
    digest = digest_of(token)
    found = session.scalar(
        select(ApiKeyRow).where(
            or_(
                ApiKeyRow.key_hash == digest,
                (ApiKeyRow.previous_hash == digest) & (ApiKeyRow.previous_until > func.now()),
            ),
            *_WORKS,
        )
    )
    if found is None:
        return None
    if hmac.compare_digest(found.key_hash, digest):
        return _record(found)
    previous = found.previous_hash or b""
    return replace(_record(found), by_previous=True) if hmac.compare_digest(previous, digest) else None


def working_key(session: Session, key_id: int) -> ApiKeyRecord | None:
    """Gives the key of this id, or None where it was revoked or has expired."""
    found = session.scalar(select(ApiKeyRow).where(ApiKeyRow.id == key_id, *_WORKS))
    return None if found is None else _record(found)


def note_use(session: Session, key: ApiKeyRecord) -> bool:
    """Notes that the key was used now, by the secret it was found by; at most once a minute for all processes.

    Says whether it wrote, so that the caller commits only then.
    """
    last = key.previous_used_at if key.by_previous else key.last_used_at
    if last is not None and last > datetime.now(UTC) - USE_WRITTEN_EVERY:
        return False
    column = ApiKeyRow.previous_used_at if key.by_previous else ApiKeyRow.last_used_at
    values = {"last_used_at": func.now()} | ({"previous_used_at": func.now()} if key.by_previous else {})
    due = or_(column.is_(None), column <= func.now() - USE_WRITTEN_EVERY)
    # A key whose row is locked by a rotation or revocation is skipped, since a request must not wait for that.
    free = select(ApiKeyRow.id).where(ApiKeyRow.id == key.key_id, due).with_for_update(skip_locked=True)
    written = update(ApiKeyRow).where(ApiKeyRow.id.in_(free)).values(values).returning(ApiKeyRow.id)
    return session.scalar(written.execution_options(synchronize_session=False)) is not None


def list_keys(session: Session, *, after: int = 0, limit: int | None = None) -> list[ApiKeyRecord]:
    """Gives keys past the id `after`, up to `limit`, in the order they were made, also expired and revoked ones."""
    statement = select(ApiKeyRow).where(ApiKeyRow.id > after).order_by(ApiKeyRow.id).limit(limit)
    return [_record(key) for key in session.scalars(statement)]


def read_key(session: Session, name: str) -> ApiKeyRecord:
    """Gives the key of this name, also an expired or revoked one. Raises `ApiKeyNotFound`."""
    return _record(_held(session, name))


def name_of(session: Session, key_id: int) -> str:
    """Gives the name of a key, also of an expired or revoked one. Raises `ApiKeyNotFound`."""
    name = session.scalar(select(ApiKeyRow.name).where(ApiKeyRow.id == key_id))
    if name is None:
        raise ApiKeyNotFound(str(key_id))
    return name


def revoke_key(session: Session, name: str, *, actor: str | None = None) -> None:
    """Ends a key and all its secrets, at commit and in every process. Raises `ApiKeyNotFound` or `ApiKeyEnded`."""
    pending = _begin(session, actor, f"revoke the API key {name}")
    key = _held(session, name)
    if key.revoked_at is not None:
        raise ApiKeyEnded(name, "revoked")
    key.revoked_at = func.now()
    _end_browser_sessions(session, key)
    _append(session, pending, "revoke-api-key", key)


def _begin(session: Session, actor: str | None, reason: str) -> audit.Pending:
    """Takes the log's lock before any row is locked, as every edit does, so that no two wait for each other."""
    return audit.begin(session, actor or current().principal.name, reason)


def _append(session: Session, pending: audit.Pending, kind: str, key: ApiKeyRow) -> None:
    """Writes the key as it is now into the log, without anything of its secret."""
    session.flush()
    session.refresh(key)
    times = {"expires_at": key.expires_at, "previous_until": key.previous_until}
    kept = {"key_id": key.id, "name": key.name, "role": key.role, "rate_limit": key.rate_limit}
    kept |= {name: None if at is None else at.astimezone(UTC).isoformat() for name, at in times.items()}
    audit.append(session, pending, kind, payload={"api_key": kept})


def _end_browser_sessions(session: Session, key: ApiKeyRow) -> None:
    """Ends the key's browser sessions, so that their users sign in again, also where the secret has a grace period."""
    session.execute(delete(BrowserSessionRow).where(BrowserSessionRow.api_key_id == key.id))


def _held(session: Session, name: str) -> ApiKeyRow:
    """Gives the key's row, locked, so that two edits of one key take turns."""
    audit.check_text("name of the key", name)
    key = session.scalar(select(ApiKeyRow).where(ApiKeyRow.name == name).with_for_update())
    if key is None:
        raise ApiKeyNotFound(name)
    return key


def _now(session: Session) -> datetime:
    return session.scalars(select(func.now())).one()


def _check_name(name: str) -> None:
    audit.check_name("name of the key", name, limit=100)


def _ahead(field: str, span: timedelta) -> ColumnElement[datetime]:
    """Gives an expression (SQL) for the time `span` from now by the database's clock."""
    if not timedelta(0) < span <= LONGEST:
        raise InvalidValue(field, f"{span} is not between nothing and {LONGEST.days} days")
    return func.now() + span


def new_token() -> str:
    """Makes a secret that can't be guessed."""
    return _MARK + secrets.token_urlsafe(32)


def digest_of(token: str) -> bytes:
    """Gives the digest that is stored in place of a secret."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def _record(key: ApiKeyRow) -> ApiKeyRecord:
    return ApiKeyRecord(
        key_id=key.id,
        name=key.name,
        role=key.role,
        prefix=key.prefix,
        created_at=key.created_at,
        expires_at=key.expires_at,
        last_used_at=key.last_used_at,
        rate_limit=key.rate_limit,
        rotated_at=key.rotated_at,
        previous_until=key.previous_until,
        previous_used_at=key.previous_used_at,
        revoked_at=key.revoked_at,
    )
