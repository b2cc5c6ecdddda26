"""API keys: who may call the API, and what with. Session first; nothing here commits.

A right is what a request needs, a role a named set of rights.

A token is 32 random bytes and is shown once. The database holds its SHA-256 only: a slow password hash would buy
nothing for a secret that can't be guessed, and cost every request.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from sqlalchemy import exists, func, select, update
from sqlalchemy.orm import Session

from kb.errors import InvalidValue
from kb.tables import ApiKey


class Right(StrEnum):
    """What a request may need of the key that asks."""

    lookup = "lookup"  # look up, and store what a decoder elsewhere said
    read = "read"  # facts, documents, outputs; generate
    edit = "edit"  # insert, update, delete, restore, ingest; plan, apply and undo a forgetting
    audit = "audit"  # change log, certificates, verification, impact, denials
    train = "train"  # rekey, gate, activate, roll back; export
    admin = "admin"  # keys, erase, backup


ROLES: Mapping[str, frozenset[Right]] = {
    "decoder": frozenset({Right.lookup}),
    "reader": frozenset({Right.lookup, Right.read}),
    "operator": frozenset({Right.lookup, Right.read, Right.edit, Right.audit}),
    "auditor": frozenset({Right.lookup, Right.read, Right.audit}),
    "trainer": frozenset({Right.lookup, Right.read, Right.train}),
    "admin": frozenset(Right),
}

_MARK = "colmlm_"  # lets secret scanners find a token that was committed by mistake


@dataclass(frozen=True, slots=True)
class ApiKeyRecord:
    """A key without its secret. It works while `revoked_at` is None."""

    name: str
    role: str
    created_at: datetime
    revoked_at: datetime | None

    def may(self, right: Right) -> bool:
        """Whether this key's role has the right."""
        return right in ROLES[self.role]


def create_key(session: Session, name: str, role: str) -> str:
    """A new key's token. It can't be had again: only its digest is stored. Raises `InvalidValue`."""
    _check_name(name)
    if role not in ROLES:
        raise InvalidValue("role", f"{role!r} is not one of {', '.join(ROLES)}")
    if session.scalar(select(exists().where(ApiKey.name == name))):
        raise InvalidValue(
            "name of the key", f"{name!r} is taken, by a revoked key too; the change log names keys"
        )
    token = _MARK + secrets.token_urlsafe(32)
    session.add(ApiKey(name=name, key_hash=_digest(token), role=role))
    session.flush()
    return token


def verify(session: Session, token: str) -> ApiKeyRecord | None:
    """The key this token belongs to, or None where there is none or it was revoked.

    The row is found by digest, which says nothing about the token, and compared in constant time.
    """
    digest = _digest(token)
    found = session.scalar(select(ApiKey).where(ApiKey.key_hash == digest, ApiKey.revoked_at.is_(None)))
    if found is None or not hmac.compare_digest(found.key_hash, digest):
        return None
    return _record(found)


def list_keys(session: Session) -> list[ApiKeyRecord]:
    """Every key in the order they were made, the revoked ones too."""
    return [_record(key) for key in session.scalars(select(ApiKey).order_by(ApiKey.id))]


def revoke_key(session: Session, name: str) -> None:
    """End a key, at commit and in every process. Raises `InvalidValue` where no key of that name works."""
    _check_name(name)
    working = update(ApiKey).where(ApiKey.name == name, ApiKey.revoked_at.is_(None))
    ended = session.scalars(working.values(revoked_at=func.now()).returning(ApiKey.id)).all()
    if not ended:
        raise InvalidValue("name of the key", f"no key {name!r} is in use")


def _check_name(name: str) -> None:
    if not name.strip() or not name.isprintable() or len(name) > 100:
        raise InvalidValue("name of the key", "it must be 1 to 100 printable characters")


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def _record(key: ApiKey) -> ApiKeyRecord:
    return ApiKeyRecord(name=key.name, role=key.role, created_at=key.created_at, revoked_at=key.revoked_at)
