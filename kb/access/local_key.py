"""LocalKey: an API key that a server makes for commands of its own user, and that ends with the server."""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from datetime import UTC, datetime

from colmlm.kb.access.api_keys import digest_of, new_token
from colmlm.kb.access.records import MAX_RATE, ApiKeyRecord
from colmlm.kb.principal import Principal, local_principal

ROLE = "reader"
_KEY_ID = 0  # the database counts from 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalKeyRecord(ApiKeyRecord):
    """The record of a local key. Its principal is the user whom the server runs as."""

    @property
    def principal(self) -> Principal:
        return local_principal()


class LocalKey:
    """A key with the role `reader` that no database, log or backup holds. Who makes it decides where its token goes."""

    def __init__(self) -> None:
        self.token = new_token()
        self._digest = digest_of(self.token)
        self._record = LocalKeyRecord(
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

    def of_token(self, token: str) -> ApiKeyRecord | None:
        """Gives the record where this is the key's token, compared in constant time."""
        return self._record if hmac.compare_digest(self._digest, digest_of(token)) else None
