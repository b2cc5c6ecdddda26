"""Access: API keys created, listed, rotated and revoked. Each of these edits is a change of the log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy.orm import Session

from colmlm.kb.access import api_keys, browser_sessions, idempotency
from colmlm.kb.access.idempotency import KeptAnswer
from colmlm.kb.access.records import ApiKeyRecord
from colmlm.kb.log.origin import Claim
from colmlm.kb.store.store import Store


@dataclass(frozen=True, slots=True)
class Access:
    """The API keys and browser sessions of a store. A dry run is rolled back. `actor` is by default the principal."""

    store: Store

    def all(self, *, after: int = 0, limit: int | None = None) -> list[ApiKeyRecord]:
        """Lists keys past the id `after`, in the order they were made, including expired and revoked ones."""
        with self.store.sessions() as session:
            return api_keys.list_keys(session, after=after, limit=limit)

    def show(self, name: str) -> ApiKeyRecord:
        """Gives the key of this name, also an expired or revoked one. Raises `ApiKeyNotFound`."""
        with self.store.sessions() as session:
            return api_keys.read_key(session, name)

    def name_of(self, key_id: int) -> str:
        """Gives the name of a key, also of an expired or revoked one. Raises `ApiKeyNotFound`."""
        with self.store.sessions() as session:
            return api_keys.name_of(session, key_id)

    def create(
        self,
        name: str,
        role: str,
        *,
        actor: str | None = None,
        expires_in: timedelta | None = None,
        rate_limit: int | None = None,
        dry_run: bool = False,
        on_token: Callable[[str], object] = lambda _: None,
    ) -> tuple[str, ApiKeyRecord]:
        """Makes a key and gives it with its token, which can't be read again. Raises `InvalidValue`.

        `on_token` is called with the token before the commit: where it fails, there is no key.
        """
        with self._session(dry_run) as session:
            token = api_keys.create_key(
                session, name, role, actor=actor, expires_in=expires_in, rate_limit=rate_limit
            )
            on_token(token)
            return token, api_keys.read_key(session, name)

    def rotate(
        self,
        name: str,
        *,
        actor: str | None = None,
        grace: timedelta = timedelta(0),
        expires_in: timedelta | None = None,
        dry_run: bool = False,
    ) -> tuple[str, ApiKeyRecord]:
        """Gives a key another token; the one before works for `grace` longer.

        Raises `ApiKeyNotFound` or `ApiKeyEnded`.
        """
        with self._session(dry_run) as session:
            token = api_keys.rotate_key(session, name, actor=actor, grace=grace, expires_in=expires_in)
            return token, api_keys.read_key(session, name)

    def revoke(self, name: str, *, actor: str | None = None, dry_run: bool = False) -> ApiKeyRecord:
        """Ends a key and all its tokens, in every process. Raises `ApiKeyNotFound` or `ApiKeyEnded`."""
        with self._session(dry_run) as session:
            api_keys.revoke_key(session, name, actor=actor)
            return api_keys.read_key(session, name)

    def is_known(self, token: str) -> bool:
        """Says whether a token works, without noting a use."""
        with self.store.sessions() as session:
            return api_keys.verify(session, token) is not None

    def of_token(self, token: str) -> ApiKeyRecord | None:
        """Gives the working key of a token, and notes its use.

        The key is read from the database on every call, so that revoking it takes effect at once.
        """
        with self.store.sessions() as session:
            key = api_keys.verify(session, token)
            if key is not None and api_keys.note_use(session, key):
                session.commit()
            return key

    def of_session(self, secret: str) -> ApiKeyRecord | None:
        """Gives the working key behind a browser's session, also read from the database on every call."""
        with self.store.sessions.begin() as session:
            key = browser_sessions.key_of(session, secret)
            if key is not None:
                api_keys.note_use(session, key)
            return key

    def begin_session(self, key: ApiKeyRecord, before: str | None) -> str:
        """Begins a browser's session with this key and gives its secret. Ends the session `before` it."""
        with self.store.sessions.begin() as session:
            if before is not None:
                browser_sessions.end(session, before)
            return browser_sessions.begin(session, key)

    def end_session(self, secret: str) -> None:
        """Ends a browser's session, where there is one with this secret."""
        with self.store.sessions.begin() as session:
            browser_sessions.end(session, secret)

    def claim(self, api_key_id: int, name: str, request: bytes) -> Claim | KeptAnswer:
        """Claims a named request, so that it is carried out once, as `kb.access.idempotency.claim` describes."""
        with self.store.sessions.begin() as session:
            return idempotency.claim(session, api_key_id, name, request)

    def settle(self, held: Claim, answer: KeptAnswer) -> None:
        """Stores the answer to a claimed request, as `kb.access.idempotency.settle` describes."""
        with self.store.sessions.begin() as session:
            idempotency.settle(session, held, answer)

    @contextmanager
    def _session(self, dry_run: bool) -> Iterator[Session]:
        with self.store.sessions() as session:
            yield session
            session.rollback() if dry_run else session.commit()
