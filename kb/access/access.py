"""Access: tokens created, listed, rotated and revoked. Each of these edits is a change of the log."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy.orm import Session

from colmlm.kb.access import browser_sessions, idempotency, tokens
from colmlm.kb.access.idempotency import KeptAnswer
from colmlm.kb.access.records import TokenRecord
from colmlm.kb.log.origin import Claim
from colmlm.kb.store import database
from colmlm.kb.store.store import Store


@dataclass(frozen=True, slots=True)
class Access:
    """The tokens and browser sessions of a store. A dry run is rolled back. `actor` is by default the principal."""

    store: Store

    def all(self, *, after: int = 0, limit: int | None = None) -> list[TokenRecord]:
        """Lists tokens past the id `after`, in the order they were made, including expired and revoked ones."""
        with self.store.sessions() as session:
            return tokens.list_tokens(session, after=after, limit=limit)

    def show(self, name: str) -> TokenRecord:
        """Gives the token of this name, also an expired or revoked one. Raises `ApiKeyNotFound`."""
        with self.store.sessions() as session:
            return tokens.read_token(session, name)

    def own(self) -> None:
        """Gives None, since whoever has the store needs no token."""

    def name_of(self, token_id: int) -> str:
        """Gives the name of a token, also of an expired or revoked one. Raises `ApiKeyNotFound`."""
        with self.store.sessions() as session:
            return tokens.name_of(session, token_id)

    def create(
        self,
        name: str,
        role: str,
        *,
        actor: str | None = None,
        expires_in: timedelta | None = None,
        rate_limit: int | None = None,
        dry_run: bool = False,
        on_secret: Callable[[str], object] = lambda _: None,
    ) -> tuple[str, TokenRecord]:
        """Makes a token and gives it with its secret, which can't be read again. Raises `InvalidValue`.

        `on_secret` is called with the secret before the commit: where it fails, there is no token.
        """
        with self._session(dry_run) as session:
            secret = tokens.create_token(
                session, name, role, actor=actor, expires_in=expires_in, rate_limit=rate_limit
            )
            on_secret(secret)
            return secret, tokens.read_token(session, name)

    def rotate(
        self,
        name: str,
        *,
        actor: str | None = None,
        grace: timedelta = timedelta(0),
        expires_in: timedelta | None = None,
        dry_run: bool = False,
    ) -> tuple[str, TokenRecord]:
        """Gives a token another secret; the one before works for `grace` longer.

        Raises `ApiKeyNotFound` or `ApiKeyEnded`.
        """
        with self._session(dry_run) as session:
            secret = tokens.rotate_token(session, name, actor=actor, grace=grace, expires_in=expires_in)
            return secret, tokens.read_token(session, name)

    def revoke(self, name: str, *, actor: str | None = None, dry_run: bool = False) -> TokenRecord:
        """Ends a token and all its secrets, in every process. Raises `ApiKeyNotFound` or `ApiKeyEnded`."""
        with self._session(dry_run) as session:
            tokens.revoke_token(session, name, actor=actor)
            return tokens.read_token(session, name)

    def is_known(self, secret: str) -> bool:
        """Says whether a secret works, without noting a use."""
        with self.store.sessions() as session:
            return tokens.verify(session, secret) is not None

    def of_secret(self, secret: str) -> TokenRecord | None:
        """Gives the working token of a secret, and notes its use."""
        return self.of_secrets([secret])[0]

    def of_secrets(self, secrets: Sequence[str]) -> list[TokenRecord | None]:
        """Gives the working token of each secret, and notes their uses.

        They are read from the database by one statement on every call, so that revoking one takes effect at once.
        """
        with database.statement_on(self.store.engine) as connection:
            found = tokens.verify_all(connection, secrets)
        if due := {token for token in found if token is not None and tokens.is_use_due(token)}:
            with self.store.sessions.begin() as session:
                for token in sorted(due, key=lambda token: token.key_id):
                    tokens.note_use(session, token)
        return found

    def of_session(self, secret: str) -> TokenRecord | None:
        """Gives the working token behind a browser's session, also read from the database on every call."""
        with self.store.sessions.begin() as session:
            token = browser_sessions.token_of(session, secret)
            if token is not None:
                tokens.note_use(session, token)
            return token

    def begin_session(self, token: TokenRecord, before: str | None) -> str:
        """Begins a browser's session with this token and gives its secret. Ends the session `before` it."""
        with self.store.sessions.begin() as session:
            if before is not None:
                browser_sessions.end(session, before)
            return browser_sessions.begin(session, token)

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
