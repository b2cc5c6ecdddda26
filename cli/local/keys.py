"""The access keys of this machine's knowledge base."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from sqlalchemy.orm import Session

from colmlm.kb.access import api_keys as access
from colmlm.kb.access.api_keys import ApiKeyRecord

if TYPE_CHECKING:
    from colmlm.kb.service import KnowledgeBase


@dataclass(frozen=True, slots=True)
class LocalKeys:
    """See `cli.nouns.running.KeyVerbs`."""

    kb: KnowledgeBase

    def listed(self) -> list[ApiKeyRecord]:
        with self._session() as session:
            return access.list_keys(session)

    def get(self, name: str) -> ApiKeyRecord:
        with self._session() as session:
            return access.read_key(session, name)

    def create(
        self, name: str, role: str, *, expires_in: timedelta | None, rate_limit: int | None, dry_run: bool
    ) -> tuple[str, ApiKeyRecord]:
        with self._session(is_kept=not dry_run) as session:
            token = access.create_key(
                session, name, role, actor=self._actor, expires_in=expires_in, rate_limit=rate_limit
            )
            return token, access.read_key(session, name)

    def rotate(
        self, name: str, *, grace: timedelta, expires_in: timedelta | None, dry_run: bool
    ) -> tuple[str, ApiKeyRecord]:
        with self._session(is_kept=not dry_run) as session:
            token = access.rotate_key(session, name, actor=self._actor, grace=grace, expires_in=expires_in)
            return token, access.read_key(session, name)

    def revoke(self, name: str, *, dry_run: bool) -> ApiKeyRecord:
        with self._session(is_kept=not dry_run) as session:
            access.revoke_key(session, name, actor=self._actor)
            return access.read_key(session, name)

    @property
    def _actor(self) -> str:
        return self.kb.settings.actor

    @contextmanager
    def _session(self, *, is_kept: bool = False) -> Iterator[Session]:
        with Session(self.kb.engine) as session:
            yield session
            if is_kept:
                session.commit()
