"""Access: tokens created, listed, rotated and revoked, and requests carried out once although they are sent twice.

A caller names a request. The name is claimed in the database before the request is carried out, and the answer is
stored with it for a day. Each change that the request makes marks the claim in its own transaction
(`kb.log.audit.mark_change`), which shows whether a process that died had changed anything: a claim without a mark
changed nothing, and may be taken over after `REQUEST_LEASE`. A run that lost its claim can't edit under it any more.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta

from sqlalchemy import delete, exists, func, or_, select, true, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from colmlm.kb.access import tokens
from colmlm.kb.access import tokens as access
from colmlm.kb.access.records import Grant, Person, ProviderLogout, TokenRecord
from colmlm.kb.access.tokens import USE_WRITTEN_EVERY, digest_of, new_session_secret
from colmlm.kb.errors import refusals, sign_on_ended
from colmlm.kb.facts.suppression import hold_off_erasure
from colmlm.kb.log import audit
from colmlm.kb.principal import Claim, as_service
from colmlm.kb.store import database
from colmlm.kb.store.store import Store, is_read_only
from colmlm.kb.tables import (
    ApiKeyRow,
    BrowserSessionRow,
    ChangeRow,
    IdempotencyRow,
    ProviderLogoutRow,
    SecretRow,
)

CLAIMS_KEPT_FOR = timedelta(days=1)
REQUEST_LEASE = timedelta(minutes=2)
MAX_KEPT_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class KeptAnswer:
    """The stored response to a request with an idempotency key. `body` is None where it is not stored."""

    status: int
    media_type: str
    body: bytes | None


def claim_key(session: Session, api_key_id: int, name: str, request: bytes) -> Claim | KeptAnswer:
    """Claim the idempotency key `name`: give the claim to carry `request` out, or the response that it got before.

    The caller commits the claim before carrying the request out.

    Raises `RequestDiffers` where the name came with another request, `RequestUnderWay` where another run is carrying it
    out, and `AnswerGone` where it was carried out and its answer is not stored.
    """
    session.execute(delete(IdempotencyRow).where(IdempotencyRow.claimed_at < func.now() - CLAIMS_KEPT_FOR))
    digest, token = _digest(session, request), secrets.token_hex(16)
    values = {"api_key_id": api_key_id, "key": name, "request_sha256": digest, "claim": token}
    values["claimed_seq"] = audit.head_seq(session)
    fresh = insert(IdempotencyRow).values(values).on_conflict_do_nothing().returning(IdempotencyRow.id)
    if (row_id := session.scalar(fresh)) is not None:
        return Claim(row_id, token)
    named = select(IdempotencyRow).where(IdempotencyRow.api_key_id == api_key_id, IdempotencyRow.key == name)
    found = session.scalar(named.with_for_update())
    if found is None:  # its row was released or expired between the two statements
        raise refusals.request_under_way()
    if not hmac.compare_digest(found.request_sha256, digest):
        raise refusals.request_differs()
    return _claim_again(session, found, token)


def _claim_again(session: Session, found: IdempotencyRow, token: str) -> Claim | KeptAnswer:
    if found.status is not None and found.body is not None:
        return KeptAnswer(found.status, found.media_type or "", found.body)
    left = found.claimed_at <= session.scalars(select(func.now())).one() - REQUEST_LEASE
    if found.status is not None or (found.seq is not None and left):
        raise refusals.answer_gone(found.seq)
    if not left:
        raise refusals.request_under_way()
    found.claim, found.claimed_at, found.claimed_seq = token, func.now(), audit.head_seq(session)
    session.flush()
    return Claim(found.id, token)


def settle_key(session: Session, held: Claim, answer: KeptAnswer) -> None:
    """Store the response, or free the idempotency key where the request was refused and so changed nothing.

    Does nothing where the claim was lost: then another run gives the answer.
    """
    mine = (IdempotencyRow.id == held.row_id) & (IdempotencyRow.claim == held.claim)
    if answer.status >= 400:
        freed = delete(IdempotencyRow).where(mine, IdempotencyRow.seq.is_(None)).returning(IdempotencyRow.id)
        if session.scalar(freed) is not None:
            return
    hold_off_erasure(session)
    body = answer.body if len(answer.body or b"") <= MAX_KEPT_BYTES else None
    if session.scalar(select(IdempotencyRow.id).where(mine, _ERASED_SINCE)) is not None:
        body = None
    kept = {"status": answer.status, "media_type": answer.media_type, "body": body}
    session.execute(update(IdempotencyRow).where(mine).values(kept))


# Where another request erased facts meanwhile, this answer may say them. Claims of earlier releases don't record this.
_ERASED_SINCE = (
    select(ChangeRow.seq)
    .where(ChangeRow.kind == "erase", ChangeRow.seq > func.coalesce(IdempotencyRow.claimed_seq, 0))
    .where(ChangeRow.seq.is_distinct_from(IdempotencyRow.seq))
    .correlate(IdempotencyRow)
    .exists()
)


def forget_answers(session: Session) -> None:
    """Delete all stored bodies, since any may say what is being erased. Repetitions then raise `AnswerGone`."""
    session.execute(update(IdempotencyRow).where(IdempotencyRow.body.is_not(None)).values(body=None))


def _digest(session: Session, request: bytes) -> bytes:
    """Digest a request under this database's secret, so that nobody with a copy of the table can try out its text."""
    secret = session.scalars(select(SecretRow.value).where(SecretRow.name == "change_log")).one()
    return hmac.new(secret, request, hashlib.sha256).digest()


@dataclass(frozen=True, slots=True)
class Access:
    """The tokens and browser sessions of a store. A dry run is rolled back. `actor` is by default the principal."""

    store: Store

    def all(self, *, after: int = 0, limit: int | None = None) -> list[TokenRecord]:
        """List tokens past the id `after`, in the order they were made, including expired and revoked ones."""
        with self.store.sessions() as session:
            return tokens.list_tokens(session, after=after, limit=limit)

    def show(self, name: str) -> TokenRecord:
        """Give the token of this name, also an expired or revoked one. Raises `ApiKeyNotFound`."""
        with self.store.sessions() as session:
            return tokens.read_token(session, name)

    def own(self) -> TokenRecord | None:
        """Give None, where a client of the API gives its token: whoever has the store needs none."""
        return None

    def name_of(self, token_id: int) -> str:
        """Give the name of a token, also of an expired or revoked one. Raises `ApiKeyNotFound`."""
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
        corpora: Sequence[str] = (),
        dry_run: bool = False,
        on_secret: Callable[[str], object] = lambda _: None,
    ) -> tuple[str, TokenRecord]:
        """Make a token and give it with its secret, which can't be read again.

        Where `corpora` are named, it may read these and nothing else. Raises `InvalidValue` and `CorpusNotFound`.
        `on_secret` is called with the secret before the commit: where it fails, there is no token.
        """
        with self._session(dry_run) as session:
            secret = tokens.create_token(
                session,
                name,
                role,
                actor=actor,
                expires_in=expires_in,
                rate_limit=rate_limit,
                corpora=corpora,
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
        """Give a token another secret; the one before works for `grace` longer.

        Raises `ApiKeyNotFound` or `ApiKeyEnded`.
        """
        with self._session(dry_run) as session:
            secret = tokens.rotate_token(session, name, actor=actor, grace=grace, expires_in=expires_in)
            return secret, tokens.read_token(session, name)

    def revoke(self, name: str, *, actor: str | None = None, dry_run: bool = False) -> TokenRecord:
        """End a token and all its secrets, in every process. Raises `ApiKeyNotFound` or `ApiKeyEnded`."""
        with self._session(dry_run) as session:
            tokens.revoke_token(session, name, actor=actor)
            return tokens.read_token(session, name)

    @as_service()
    def is_known(self, secret: str) -> bool:
        """Say whether a secret works, without noting a use."""
        with self.store.sessions() as session:
            return tokens.verify_token(session, secret) is not None

    def of_secret(self, secret: str) -> TokenRecord | None:
        """Give the working token of a secret, and note its use."""
        return self.of_secrets([secret])[0]

    @as_service()
    def of_secrets(self, secrets: Sequence[str]) -> list[TokenRecord | None]:
        """Give the working token of each secret, and note their uses.

        They are read from the database by one statement on every call, so that revoking one takes effect at once.
        """
        with database.statement_on(self.store.engine) as connection:
            found = tokens.verify_tokens(connection, secrets)
        if due := {token for token in found if token is not None and tokens.is_use_due(token)}:
            with self.store.sessions.begin() as session:
                for token in sorted(due, key=lambda token: token.key_id):
                    tokens.note_use(session, token)
        return found

    @as_service()
    def of_session(self, secret: str) -> TokenRecord | None:
        """Give the working token behind a browser's session, or None; it is read from the database on every call."""
        with self.store.sessions.begin() as session:
            token = token_of_session(session, secret)
            if token is not None:
                tokens.note_use(session, token)
            return token

    @as_service()
    def begin_session(self, token: TokenRecord, before: str | None) -> str:
        """Begin a browser's session with this token and give its secret. Ends the session `before` it."""
        with self.store.sessions.begin() as session:
            if before is not None:
                end_session(session, before)
            return begin_session(session, token)

    @as_service()
    def of_person(self, person: Person, grant: Grant) -> TokenRecord | None:
        """Give the token of a person, made at the first sign-on; None where it was revoked. Notes its use."""
        with self.store.sessions.begin() as session:
            return tokens.person_token(session, person, grant)

    @as_service()
    def begin_session_of(self, person: Person, grant: Grant, state: str, before: str | None) -> str | None:
        """Begin a browser's session of a person and give its secret; None where the person's token was revoked.

        It ends with what the issuer said, and ends the session `before` it. Raises `SignOnRepeated` where a session was
        begun with this `state` already, and `SignOnEnded` where the issuer has ended its own session since.
        """
        with self.store.sessions.begin() as session:
            if before is not None:
                end_session(session, before)
            token = tokens.person_token(session, person, grant)
            return None if token is None else begin_session(session, token, person, state)

    @as_service()
    def end_session(self, secret: str) -> None:
        """End a browser's session, where there is one with this secret."""
        with self.store.sessions.begin() as session:
            end_session(session, secret)

    @as_service()
    def end_sessions_of(self, logout: ProviderLogout) -> int | None:
        """End the browser sessions that a logout names, and count them; None where the same logout came before."""
        with self.store.sessions.begin() as session:
            return end_sessions_of(session, logout)

    @as_service()
    def claim(self, api_key_id: int, name: str, request: bytes) -> Claim | KeptAnswer:
        """Claim an idempotency key, so that its request is carried out once, as `claim_key` describes."""
        with self.store.sessions.begin() as session:
            return claim_key(session, api_key_id, name, request)

    @as_service()
    def settle(self, held: Claim, answer: KeptAnswer) -> None:
        """Store the answer to a claimed request, as `settle_key` describes."""
        with self.store.sessions.begin() as session:
            settle_key(session, held, answer)

    @contextmanager
    def _session(self, dry_run: bool) -> Iterator[Session]:
        with self.store.sessions() as session:
            yield session
            session.rollback() if dry_run else session.commit()


# Browser sessions: what a browser holds in place of a token once it has signed in.
#
# The functions never commit. The cookie is 32 random bytes that reveal nothing of the token, and the database
# keeps only their SHA-256. A session ends when its user signs out, after `LIFE`, and when its token is
# revoked, rotated or expired. That of a person also ends when the issuer says so. Times are the database's.

LIFE = timedelta(hours=12)
_LOGOUT_KEPT = timedelta(hours=1)  # after its end: longer than clocks differ, and than a sign-on takes
_LOGOUTS = 0x636F6C6D10  # the advisory lock that logouts take alone, and sign-ons share


def begin_session(
    session: Session, token: TokenRecord, person: Person | None = None, state: str | None = None
) -> str:
    """Begin a browser's session and give its secret for the cookie. It can't be read again.

    The session of a `person` ends at its `ends_at` at the latest. Raises `SignOnRepeated` where this `state` began one
    before, and `SignOnEnded` where the issuer has ended its own session since.
    """
    session.execute(delete(BrowserSessionRow).where(BrowserSessionRow.expires_at <= func.now()))
    secret = new_session_secret(of_corpora=token.corpora is not None, of_person=person is not None)
    state_hash = None if state is None else digest_of(state)
    if state_hash and session.scalar(select(exists().where(BrowserSessionRow.state_hash == state_hash))):
        raise refusals.sign_on_repeated()
    sid_hash = None if person is None or person.session_id is None else digest_of(person.session_id)
    if sid_hash is not None:
        session.execute(select(func.pg_advisory_xact_lock_shared(_LOGOUTS)))
        if session.scalar(select(exists().where(ProviderLogoutRow.sid_hash == sid_hash))):
            raise sign_on_ended()
    ends = func.now() + LIFE
    session.add(
        BrowserSessionRow(
            secret_hash=digest_of(secret),
            api_key_id=token.key_id,
            expires_at=ends if person is None else func.least(ends, person.ends_at),
            groups=None if person is None else list(person.groups),
            state_hash=state_hash,
            sid_hash=sid_hash,
        )
    )
    session.flush()
    return secret


def token_of_session(session: Session, secret: str) -> TokenRecord | None:
    """Give the working token behind a session, or None where that has ended or never was.

    Notes the use, once a minute.
    """
    found = session.scalar(
        select(BrowserSessionRow).where(
            BrowserSessionRow.secret_hash == digest_of(secret), BrowserSessionRow.expires_at > func.now()
        )
    )
    if found is None or (token := access.working_token(session, found.api_key_id)) is None:
        return None
    token = replace(token, groups=None if found.groups is None else tuple(found.groups))
    if is_read_only(session):
        return token
    due = BrowserSessionRow.last_used_at <= func.now() - USE_WRITTEN_EVERY
    noted = update(BrowserSessionRow).where(BrowserSessionRow.id == found.id, due)
    session.execute(noted.values(last_used_at=func.now()).execution_options(synchronize_session=False))
    return token


def end_session(session: Session, secret: str) -> None:
    """End the session with this secret, where there is one."""
    session.execute(delete(BrowserSessionRow).where(BrowserSessionRow.secret_hash == digest_of(secret)))


def end_sessions_of(session: Session, logout: ProviderLogout) -> int | None:
    """End the browser sessions that a logout names, and count them; None where the same logout came before.

    Where it names a person and a session, the person's sessions without a known `sid` end as well.
    """
    session.execute(select(func.pg_advisory_xact_lock(_LOGOUTS)))
    session.execute(delete(ProviderLogoutRow).where(ProviderLogoutRow.expires_at <= func.now()))
    sid_hash = None if logout.session_id is None else digest_of(logout.session_id)
    kept = insert(ProviderLogoutRow).values(
        jti_hash=digest_of(f"{logout.issuer} {logout.logout_id}"),
        sid_hash=sid_hash,
        expires_at=logout.ends_at + _LOGOUT_KEPT,
    )
    if session.scalar(kept.on_conflict_do_nothing().returning(ProviderLogoutRow.jti_hash)) is None:
        return None
    people = select(ApiKeyRow.id).where(ApiKeyRow.issuer == logout.issuer)
    named = BrowserSessionRow.sid_hash == sid_hash if sid_hash else true()
    if logout.subject is not None:
        people = people.where(ApiKeyRow.subject == logout.subject)
        named = or_(named, BrowserSessionRow.sid_hash.is_(None))
    ending = delete(BrowserSessionRow).where(BrowserSessionRow.api_key_id.in_(people), named)
    return len(session.scalars(ending.returning(BrowserSessionRow.id)).all())


def end_all_sessions(session: Session) -> None:
    """End every session, of all tokens."""
    session.execute(delete(BrowserSessionRow))
