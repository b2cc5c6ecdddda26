"""Tokens of a remote knowledge base."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import msgspec

from colmlm.api.client.api import Api
from colmlm.api.client.only_there import refuse
from colmlm.api.wire.answers import Token, TokenWithSecret
from colmlm.kb.access.records import TokenRecord
from colmlm.kb.errors import ApiKeyNotFound


@dataclass(frozen=True, slots=True)
class RemoteTokens:
    """The verbs of `api.nouns.running.TokenVerbs` over the API, which has no dry run for them."""

    api: Api

    def all(self) -> list[TokenRecord]:
        return [_record(token) for token in self.api.listed("/tokens", Token, "tokens")]

    def own(self) -> TokenRecord:
        return _record(self.api.get("/tokens/own", Token))

    def of_secret(self, secret: str) -> TokenRecord | None:
        return self.own() if self.api.connection.is_of(secret) else None

    def show(self, name: str) -> TokenRecord:
        for token in self.all():
            if token.name == name:
                return token
        raise ApiKeyNotFound(name)

    def create(
        self, name: str, role: str, *, expires_in: timedelta | None, rate_limit: int | None, dry_run: bool
    ) -> tuple[str, TokenRecord]:
        refuse(dry_run=dry_run)
        asked = {"name": name, "role": str(role), "rate_limit": rate_limit}
        return self._told("/tokens", asked | {"expires_in_seconds": _seconds(expires_in)})

    def rotate(
        self, name: str, *, grace: timedelta, expires_in: timedelta | None, dry_run: bool
    ) -> tuple[str, TokenRecord]:
        refuse(dry_run=dry_run)
        asked = {"grace_seconds": _seconds(grace), "expires_in_seconds": _seconds(expires_in)}
        return self._told(f"/tokens/{self.show(name).key_id}/rotate", asked)

    def revoke(self, name: str, *, dry_run: bool) -> TokenRecord:
        refuse(dry_run=dry_run)
        return _record(self.api.edit(f"/tokens/{self.show(name).key_id}", Token, method="DELETE"))

    def _told(self, path: str, asked: dict[str, Any]) -> tuple[str, TokenRecord]:
        made = self.api.edit(path, TokenWithSecret, asked)
        return made.secret, _record(made.token)


def _record(token: Token) -> TokenRecord:
    told = msgspec.structs.asdict(token)
    del told["state"]
    return TokenRecord(**told)


def _seconds(span: timedelta | None) -> int | None:
    return None if span is None else int(span.total_seconds())
