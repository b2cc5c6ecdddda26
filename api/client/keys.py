"""API keys of a remote knowledge base."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import msgspec

from colmlm.api.client.api import Api
from colmlm.api.client.only_there import refuse
from colmlm.api.wire.answers import Key, KeyWithToken
from colmlm.kb.access.records import ApiKeyRecord
from colmlm.kb.errors import ApiKeyNotFound


@dataclass(frozen=True, slots=True)
class RemoteKeys:
    """The verbs of `kb.nouns.running.KeyVerbs` over the API, which has no dry run for them."""

    api: Api

    def all(self) -> list[ApiKeyRecord]:
        return [_record(key) for key in self.api.listed("/keys", Key, "keys")]

    def show(self, name: str) -> ApiKeyRecord:
        for key in self.all():
            if key.name == name:
                return key
        raise ApiKeyNotFound(name)

    def create(
        self, name: str, role: str, *, expires_in: timedelta | None, rate_limit: int | None, dry_run: bool
    ) -> tuple[str, ApiKeyRecord]:
        refuse(dry_run=dry_run)
        asked = {"name": name, "role": str(role), "rate_limit": rate_limit}
        return self._told("/keys", asked | {"expires_in_seconds": _seconds(expires_in)})

    def rotate(
        self, name: str, *, grace: timedelta, expires_in: timedelta | None, dry_run: bool
    ) -> tuple[str, ApiKeyRecord]:
        refuse(dry_run=dry_run)
        asked = {"grace_seconds": _seconds(grace), "expires_in_seconds": _seconds(expires_in)}
        return self._told(f"/keys/{self.show(name).key_id}/rotate", asked)

    def revoke(self, name: str, *, dry_run: bool) -> ApiKeyRecord:
        refuse(dry_run=dry_run)
        return _record(self.api.edit(f"/keys/{self.show(name).key_id}", Key, method="DELETE"))

    def _told(self, path: str, asked: dict[str, Any]) -> tuple[str, ApiKeyRecord]:
        made = self.api.edit(path, KeyWithToken, asked)
        return made.token, _record(made.key)


def _record(key: Key) -> ApiKeyRecord:
    told = msgspec.structs.asdict(key)
    del told["state"]
    return ApiKeyRecord(**told)


def _seconds(span: timedelta | None) -> int | None:
    return None if span is None else int(span.total_seconds())
