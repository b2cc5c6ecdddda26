"""The records of tokens, and what their roles may."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from colmlm.kb.principal import Principal


class Right(StrEnum):
    """The rights that a request may need of its token."""

    lookup = "lookup"  # look up, and store outputs of a decoder elsewhere
    read = "read"  # facts, documents, outputs; generate
    edit = "edit"  # insert, update, delete, restore, ingest; plan, apply and undo a forgetting
    audit = "audit"  # change log, certificates, verification, impact, denials; what was deleted or corrected
    train = "train"  # rekey, gate, activate, roll back; export
    admin = "admin"  # tokens, erase, backup


ROLES: Mapping[str, frozenset[Right]] = {
    "decoder": frozenset({Right.lookup}),
    "reader": frozenset({Right.lookup, Right.read}),
    "operator": frozenset({Right.lookup, Right.read, Right.edit, Right.audit}),
    "auditor": frozenset({Right.lookup, Right.read, Right.audit}),
    "trainer": frozenset({Right.lookup, Right.read, Right.train}),
    "admin": frozenset(Right),
}

SCOPED_ROLES = ("decoder", "reader", "auditor", "operator")  # those that a token of some corpora may have
MAX_RATE = 1_000_000  # requests a minute

LONGEST = timedelta(days=3650)  # the longest that a token may last


@dataclass(frozen=True, slots=True)
class Grant:
    """A role, on these corpora alone; None: on all of them."""

    role: str
    corpora: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """A person whom an identity provider authenticated, until `ends_at`. Issuer and subject together tell who it is.

    The `name` is the actor of edits: the address that the issuer has verified, else the subject. `session_id` names the
    session at the issuer (`sid`), where it says that.
    """

    issuer: str
    subject: str
    name: str
    groups: tuple[str, ...]
    ends_at: datetime
    session_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderLogout:
    """A logout that an identity provider sends: of its session `session_id`, else of all sessions of `subject`.

    It counts once, by its `logout_id` (`jti`), and not after `ends_at`.
    """

    issuer: str
    logout_id: str
    subject: str | None
    session_id: str | None
    ends_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRecord:
    """A token without its secret. `prefix` begins its secret; None for a token made before prefixes were stored.

    After a rotation the secret before it works until `previous_until`, and was used last at `previous_used_at`.
    `rate_limit` is in requests a minute; None stands for the server's own. Uses are written once a minute. Where
    `corpora` are named the token has its rights on these alone. The token of a person has the `issuer` that
    authenticates the person, no secret, and in a browser's session the `groups` that the issuer named.
    """

    key_id: int
    name: str
    role: str
    prefix: str | None
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None
    rate_limit: int | None
    rotated_at: datetime | None
    previous_until: datetime | None
    previous_used_at: datetime | None
    revoked_at: datetime | None
    corpora: tuple[str, ...] | None = None
    by_previous: bool = False  # whether it was found by the secret before the last rotation
    issuer: str | None = None
    groups: tuple[str, ...] | None = None

    @property
    def principal(self) -> Principal:
        """The principal of changes that were asked for with this token."""
        return Principal("key", self.name, self.key_id, corpora=self.corpora)

    def may(self, right: Right) -> bool:
        """Say whether this token's role has the right."""
        return right in ROLES[self.role]

    def state(self) -> str:
        """Give the token's state by this machine's clock: "in use", "expired" or "revoked"."""
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if self.expires_at and self.expires_at <= datetime.now(UTC) else "in use"
