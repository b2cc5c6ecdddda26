"""LocalToken: a token that a server makes for commands of its own user, and that ends with the server."""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from datetime import UTC, datetime

from colmlm.kb.access.tokens import MAX_RATE, TokenRecord, digest_of, new_secret
from colmlm.kb.principal import Principal, local_principal

ROLE = "reader"
_KEY_ID = 0  # the database counts from 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalTokenRecord(TokenRecord):
    """The record of a local token. Its principal is the user whom the server runs as."""

    @property
    def principal(self) -> Principal:
        return local_principal()


class LocalToken:
    """A token with the role `reader` that no database, log or backup holds. Its maker decides where its secret goes."""

    def __init__(self) -> None:
        self.secret = new_secret()
        self._digest = digest_of(self.secret)
        self._record = LocalTokenRecord(
            key_id=_KEY_ID,
            name=str(local_principal()),
            role=ROLE,
            prefix=None,
            created_at=datetime.now(UTC),
            expires_at=None,
            last_used_at=None,
            rate_limit=MAX_RATE,
            rotated_at=None,
            previous_until=None,
            previous_used_at=None,
            revoked_at=None,
        )

    def of_secret(self, secret: str) -> TokenRecord | None:
        """Gives the record where this is the token's secret, compared in constant time."""
        return self._record if hmac.compare_digest(self._digest, digest_of(secret)) else None
