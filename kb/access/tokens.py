"""Tokens: who may call the API, with which secrets and rights. The functions never commit.

A right is what a request needs, a role a named set of rights.

A secret is 32 random bytes and is shown once. The database holds only its SHA-256: a slow password hash adds no
security to a secret that can't be guessed, and would cost every request. Times are the database's, so that all
processes agree on when a token ends.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
from psycopg.rows import namedtuple_row
from sqlalchemy import ColumnElement, Select, delete, exists, func, or_, select, update
from sqlalchemy.orm import Session

from colmlm.kb.access.records import LONGEST, MAX_RATE, ROLES, SCOPED_ROLES, Grant, Person, TokenRecord
from colmlm.kb.errors import InvalidValue, refusals
from colmlm.kb.facts.reading import require_corpus
from colmlm.kb.log import audit
from colmlm.kb.principal import current_origin
from colmlm.kb.store.database import connection_of
from colmlm.kb.store.scoped_role import prepare_role
from colmlm.kb.store.store import is_read_only
from colmlm.kb.tables import ApiKeyRow, BrowserSessionRow, copy_columns

USE_WRITTEN_EVERY = timedelta(minutes=1)

_WORKS = (
    ApiKeyRow.revoked_at.is_(None),
    or_(ApiKeyRow.expires_at.is_(None), ApiKeyRow.expires_at > func.now()),
)
# The driver runs this itself: prepared it is planned once, and costs a third of what it does through SQLAlchemy.
_OF_DIGESTS = """
SELECT id, name, key_hash, role, created_at, revoked_at, prefix, expires_at, last_used_at, rate_limit, rotated_at,
       previous_hash, previous_until, previous_used_at, coalesce(previous_until > now(), false) AS previous_works,
       corpora, issuer
FROM api_key
WHERE (key_hash = ANY(%(digests)s::bytea[])
       OR previous_hash = ANY(%(digests)s::bytea[]) AND previous_until > now())
  AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > now())
  AND issuer IS NULL -- a server of the release before may give a secret to the token of a person
"""
_MARK = "colmlm_"  # a prefix by which secret scanners find a secret that was committed by mistake
_OF_CORPORA = "corpora-"  # then begins the secret of a token of some corpora, or of its browser session
_OF_PERSON = "person-"  # then begins the secret of the browser session of a person
_SHOWN = 6  # characters of a secret that are shown behind its marks, to distinguish tokens


def create_token(
    session: Session,
    name: str,
    role: str,
    *,
    actor: str | None = None,
    expires_in: timedelta | None = None,
    rate_limit: int | None = None,
    corpora: Sequence[str] = (),
) -> str:
    """Create a token and give its secret, which can't be read again, as only its digest is stored.

    Where `corpora` are named, it may read these and nothing else. Raises `InvalidValue` and `CorpusNotFound`.

    This is a change of the log, as are a rotation and a revocation. `actor` is by default the principal.
    """
    _check_name(name)
    if role not in ROLES:
        raise InvalidValue("role", f"{role!r} is not one of {', '.join(ROLES)}")
    if rate_limit is not None and not 1 <= rate_limit <= MAX_RATE:
        raise InvalidValue("rate limit", f"{rate_limit} is not from 1 to {MAX_RATE} requests a minute")
    if corpora and role not in SCOPED_ROLES:
        raise InvalidValue(
            "role",
            f"{str(role)!r} is a role on all corpora. Give {' or '.join(SCOPED_ROLES)}, or no corpora",
        )
    for corpus in corpora:
        require_corpus(session, corpus)
    if corpora:
        prepare_role(connection_of(session))
    said = f" of {', '.join(corpora)}" if corpora else ""
    pending = _begin(session, actor, f"make the token {name}, {role}{said}")
    if session.scalar(select(exists().where(ApiKeyRow.name == name))):
        raise InvalidValue(
            "name of the token", f"{name!r} is taken. A revoked token keeps its name too. Choose another name"
        )
    secret = new_secret(of_corpora=bool(corpora))
    token = ApiKeyRow(
        name=name,
        key_hash=digest_of(secret),
        role=role,
        prefix=_prefix_of(secret),
        rate_limit=rate_limit,
        corpora=sorted(set(corpora)) or None,
    )
    if expires_in is not None:
        token.expires_at = _ahead("expiry", expires_in)
    session.add(token)
    _append(session, pending, "create-api-key", token)
    return secret


def rotate_token(
    session: Session,
    name: str,
    *,
    actor: str | None = None,
    grace: timedelta = timedelta(0),
    expires_in: timedelta | None = None,
) -> str:
    """Give a token a new secret. The one before it works for `grace` longer, and older ones no more.

    `expires_in` moves the token's end, which also revives an expired token. Raises `ApiKeyNotFound` or `ApiKeyEnded`.
    """
    pending = _begin(session, actor, f"rotate the token {name}")
    token = _lock_token(session, name)
    if token.issuer is not None:
        raise InvalidValue(
            "name of the token",
            f"{name!r} signs in at the identity provider, so it has no secret to renew. Choose a token that `colmlm "
            "tokens create` made",
        )
    expired = token.expires_at is not None and token.expires_at <= _now(session)
    if token.revoked_at is not None or (expired and expires_in is None):
        raise refusals.api_key_ended(name, "revoked" if token.revoked_at is not None else "expired")
    secret = new_secret(of_corpora=token.corpora is not None)
    overlaps = grace > timedelta(0)
    token.previous_hash = token.key_hash if overlaps else None
    token.previous_until = _ahead("grace period", grace) if overlaps else None
    token.previous_used_at = None
    token.key_hash, token.prefix, token.rotated_at = digest_of(secret), _prefix_of(secret), func.now()
    _end_browser_sessions(session, token)
    if expires_in is not None:
        token.expires_at = _ahead("expiry", expires_in)
    _append(session, pending, "rotate-api-key", token)
    return secret


def verify_token(session: Session, secret: str) -> TokenRecord | None:
    """Give the token of this secret; None where it is unknown, or the secret or its token has ended."""
    session.flush()
    return verify_tokens(connection_of(session), [secret])[0]


def verify_tokens(connection: psycopg.Connection, secrets: Sequence[str]) -> list[TokenRecord | None]:
    """Give the token of each secret as `verify_token` does, in one statement.

    A row is found by its secret's digest, so that how long that takes reveals nothing of the secret.
    """
    digests = [digest_of(secret) for secret in secrets]
    found: dict[bytes, TokenRecord] = {}
    with connection.cursor(binary=True, row_factory=namedtuple_row) as cursor:
        rows: list[Any] = cursor.execute(
            _OF_DIGESTS, {"digests": list(set(digests))}, prepare=True
        ).fetchall()
    for row in rows:
        found[row.key_hash] = token = _record(row)
        if row.previous_works:
            found[row.previous_hash] = replace(token, by_previous=True)
    return [found.get(digest) for digest in digests]


def working_token(session: Session, token_id: int) -> TokenRecord | None:
    """Give the token of this id, or None where it was revoked or has expired."""
    found = session.scalar(select(ApiKeyRow).where(ApiKeyRow.id == token_id, *_WORKS))
    return None if found is None else _record(found)


def person_token(session: Session, person: Person, grant: Grant) -> TokenRecord | None:
    """Give the token of a person, with the role and corpora granted now; None where an admin has revoked it.

    The first time, one without a secret is made, which is a change of the log. It has the person's name, or another
    where that belongs to another token already. Notes the use, once a minute.
    """
    named = select(ApiKeyRow).where(ApiKeyRow.issuer == person.issuer, ApiKeyRow.subject == person.subject)
    if (row := session.scalar(named)) is None:
        row = _create_person(session, person, grant, named)
    if row.revoked_at is not None:
        return None
    token = replace(_record(row), role=grant.role, corpora=grant.corpora)
    if is_read_only(session):
        return token
    kept = None if grant.corpora is None else list(grant.corpora)
    if (row.role, row.corpora) != (grant.role, kept):
        row.role, row.corpora = grant.role, kept
        session.flush()
    note_use(session, token)
    return token


def _create_person(session: Session, person: Person, grant: Grant, named: Select[ApiKeyRow]) -> ApiKeyRow:
    said = f" of {', '.join(grant.corpora)}" if grant.corpora else ""
    name = person.name
    try:
        _check_name(name)
    except InvalidValue:
        name = _name_of_digest(person)
    pending = _begin(session, name, f"first sign-on of {name}, {grant.role}{said}")
    if (row := session.scalar(named)) is not None:  # another request was faster
        return row
    if session.scalar(select(exists().where(ApiKeyRow.name == name))):
        name = _name_of_digest(person)
    row = ApiKeyRow(
        name=name,
        key_hash=secrets.token_bytes(32),  # the digest of nothing that anybody knows
        role=grant.role,
        corpora=None if grant.corpora is None else list(grant.corpora),
        issuer=person.issuer,
        subject=person.subject,
    )
    session.add(row)
    _append(session, pending, "create-api-key", row)
    return row


def _name_of_digest(person: Person) -> str:
    return f"person {hashlib.sha256(f'{person.issuer} {person.subject}'.encode()).hexdigest()[:16]}"


def is_use_due(token: TokenRecord) -> bool:
    """Say whether no use by the secret that the token was found by was noted within the last minute."""
    last = token.previous_used_at if token.by_previous else token.last_used_at
    return last is None or last <= datetime.now(UTC) - USE_WRITTEN_EVERY


def note_use(session: Session, token: TokenRecord) -> bool:
    """Note that the token was used now, by the secret it was found by; at most once a minute for all processes.

    Gives whether it wrote, so that the caller commits only then. Of a database that cannot be written, as a standby is,
    a token can still be used to read.
    """
    if not is_use_due(token) or is_read_only(session):
        return False
    column = ApiKeyRow.previous_used_at if token.by_previous else ApiKeyRow.last_used_at
    values = {"last_used_at": func.now()} | ({"previous_used_at": func.now()} if token.by_previous else {})
    due = or_(column.is_(None), column <= func.now() - USE_WRITTEN_EVERY)
    # A token whose row is locked by a rotation or revocation is skipped, since a request must not wait for that.
    free = select(ApiKeyRow.id).where(ApiKeyRow.id == token.key_id, due).with_for_update(skip_locked=True)
    written = update(ApiKeyRow).where(ApiKeyRow.id.in_(free)).values(values).returning(ApiKeyRow.id)
    return session.scalar(written.execution_options(synchronize_session=False)) is not None


def list_tokens(session: Session, *, after: int = 0, limit: int | None = None) -> list[TokenRecord]:
    """Give tokens past the id `after`, up to `limit`, in the order they were made, also expired and revoked ones."""
    statement = select(ApiKeyRow).where(ApiKeyRow.id > after).order_by(ApiKeyRow.id).limit(limit)
    return [_record(token) for token in session.scalars(statement)]


def read_token(session: Session, name: str) -> TokenRecord:
    """Give the token of this name, also an expired or revoked one. Raises `ApiKeyNotFound`."""
    return _record(_lock_token(session, name))


def name_of(session: Session, token_id: int) -> str:
    """Give the name of a token, also of an expired or revoked one. Raises `ApiKeyNotFound`."""
    name = session.scalar(select(ApiKeyRow.name).where(ApiKeyRow.id == token_id))
    if name is None:
        raise refusals.api_key_not_found(str(token_id))
    return name


def revoke_token(session: Session, name: str, *, actor: str | None = None) -> None:
    """End a token and all its secrets, at commit and in every process. Raises `ApiKeyNotFound` or `ApiKeyEnded`."""
    pending = _begin(session, actor, f"revoke the token {name}")
    token = _lock_token(session, name)
    if token.revoked_at is not None:
        raise refusals.api_key_ended(name, "revoked")
    token.revoked_at = func.now()
    _end_browser_sessions(session, token)
    _append(session, pending, "revoke-api-key", token)


def _begin(session: Session, actor: str | None, reason: str) -> audit.Pending:
    """Begin a change, which locks the log before any row is locked, so that no two edits wait for each other."""
    return audit.begin_change(session, actor or current_origin().principal.name, reason)


def _append(session: Session, pending: audit.Pending, kind: str, token: ApiKeyRow) -> None:
    """Write the token as it is now into the log, without anything of its secret."""
    session.flush()
    session.refresh(token)
    times = {"expires_at": token.expires_at, "previous_until": token.previous_until}
    kept = {"key_id": token.id, "name": token.name, "role": token.role, "rate_limit": token.rate_limit}
    kept |= {} if token.corpora is None else {"corpora": token.corpora}
    kept |= {} if token.issuer is None else {"issuer": token.issuer, "subject": token.subject}
    kept |= {name: None if at is None else at.astimezone(UTC).isoformat() for name, at in times.items()}
    audit.append_change(session, pending, kind, payload={"api_key": kept})


def _end_browser_sessions(session: Session, token: ApiKeyRow) -> None:
    """End the token's browser sessions, so that their users sign in again, also where there is a grace period."""
    session.execute(delete(BrowserSessionRow).where(BrowserSessionRow.api_key_id == token.id))


def _lock_token(session: Session, name: str) -> ApiKeyRow:
    """Give the token's row, locked, so that two edits of one token take turns."""
    audit.check_text("name of the token", name)
    token = session.scalar(select(ApiKeyRow).where(ApiKeyRow.name == name).with_for_update())
    if token is None:
        raise refusals.api_key_not_found(name)
    return token


def _now(session: Session) -> datetime:
    return session.scalars(select(func.now())).one()


def _check_name(name: str) -> None:
    audit.check_name("name of the token", name, limit=100)


def _ahead(field: str, span: timedelta) -> ColumnElement[datetime]:
    """Give an expression (SQL) for the time `span` from now by the database's clock. Raises `InvalidValue`."""
    if not timedelta(0) < span <= LONGEST:
        raise InvalidValue(field, f"{span} is not between 0 and {LONGEST.days} days")
    return func.now() + span


def new_secret(*, of_corpora: bool = False) -> str:
    """Make the random secret of a token. With `of_corpora` it contains a mark, for `digest_of`."""
    return f"{_MARK}{new_session_secret(of_corpora=of_corpora)}"


def new_session_secret(*, of_corpora: bool, of_person: bool = False) -> str:
    """Make the random secret of a browser session, with a mark for `digest_of` if `of_corpora` or `of_person`."""
    mark = _OF_PERSON if of_person else _OF_CORPORA if of_corpora else ""
    return f"{mark}{secrets.token_urlsafe(32)}"


_MARKED = (_OF_CORPORA, _OF_PERSON)


def _prefix_of(secret: str) -> str:
    marks = len(_MARK) + (len(_OF_CORPORA) if secret.startswith(_MARK + _OF_CORPORA) else 0)
    return secret[: marks + _SHOWN]


def digest_of(secret: str) -> bytes:
    """Give the digest that is stored in place of a secret.

    A secret that is marked as of some corpora or of a person has a digest of another domain. So a server of an older
    version, which may still run beside this one, does not find it and take it for a token of all corpora.
    """
    told = secret.removeprefix(_MARK)
    domain = next((mark.encode()[:-1] + b"\0" for mark in _MARKED if told.startswith(mark)), b"")
    return hashlib.sha256(domain + secret.encode("utf-8", "surrogatepass")).digest()


def _record(token: Any) -> TokenRecord:
    corpora = None if token.corpora is None else tuple(token.corpora)
    return copy_columns(TokenRecord, token, key_id=token.id, corpora=corpora)
