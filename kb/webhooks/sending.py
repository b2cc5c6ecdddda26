"""Sends messages to a receiver, one request each: to a checked address, within a time, and following no redirect.

The last change that a receiver took, and the outcome of each attempt, are noted in its row, over one connection that
holds the lock of the webhook. Whoever loses the lock loses the connection, so it can note nothing and goes no further.
"""

from __future__ import annotations

import random
import ssl
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from ipaddress import IPv4Network, IPv6Network, ip_network
from types import TracebackType
from typing import Any, Self

import httpx2
from sqlalchemy import (
    ColumnElement,
    Select,
    and_,
    case,
    func,
    literal,
    or_,
    select,
    text,
    true,
    update,
)
from sqlalchemy.orm import Session, undefer

from colmlm.kb.errors import InvalidValue, NotFound, WebhookRefused, refusals
from colmlm.kb.facts.reading import require_corpus
from colmlm.kb.log import audit
from colmlm.kb.log.audit import check_text
from colmlm.kb.log.records import ChangeRecord
from colmlm.kb.network.addresses import (
    Address,
    Deadline,
    DeadlineTransport,
    addresses_of,
    is_public,
    meant_address,
)
from colmlm.kb.principal import Principal, acting_as, current_origin, is_in_scope, scope_of_caller
from colmlm.kb.store.store import Store
from colmlm.kb.tables import ChangeRow, WebhookRow, copy_columns
from colmlm.kb.webhooks.messages import WebhookMessage, new_secret
from colmlm.kb.webhooks.records import FORMATS, LONGEST_URL, Webhook, WebhookDelivery

ANSWER_SECONDS = 15.0
LONGEST_PAUSE = 3600.0  # seconds for which a receiver may ask to be left alone
_MOST_READ = 64 * 1024  # bytes of an answer, which says nothing that is kept
_SAID = 200  # characters of an error that are kept

GONE = 410


@dataclass(frozen=True, slots=True)
class Attempt:
    """A request to a receiver, and the seconds after which it asks to be tried again."""

    delivery: WebhookDelivery
    retry_after: float | None = None


@dataclass(slots=True)
class Sender:
    """A connection to one receiver, kept open from message to message.

    The receiver's certificate must be of an authority that `trusted` has; by default those of this machine.
    """

    url: str
    secret: bytes = field(repr=False)
    reach: Reach
    seconds: float = ANSWER_SECONDS
    trusted: ssl.SSLContext | None = None
    _deadline: Deadline = field(default_factory=Deadline, init=False)
    _client: httpx2.Client = field(init=False)

    def __post_init__(self) -> None:
        # Without the environment's proxies, behind which any address could be reached.
        self._client = httpx2.Client(
            trust_env=False,
            transport=DeadlineTransport(
                self._deadline, self.trusted or _authorities() if self.url.startswith("https:") else False
            ),
            timeout=self.seconds,
            headers={"user-agent": "colmlm-webhooks"},
        )

    def send(self, message: WebhookMessage) -> Attempt:
        """Send a message, and give the outcome of the request."""
        began, status, retry_after = time.monotonic(), None, None
        try:
            status, retry_after = self._post(message)
            error = _fault_of_status(status)
        except WebhookRefused as refused:
            error = refused.why
        except httpx2.TimeoutException:
            error = f"no answer within {self.seconds:g} seconds"
        except httpx2.HTTPError as failed:
            error = str(failed) or type(failed).__name__
        delivery = WebhookDelivery(
            message_id=message.message_id,
            ok=error is None,
            status=status,
            error=None if error is None else error[:_SAID],
            seconds=round(time.monotonic() - began, 3),
        )
        return Attempt(delivery, retry_after)

    def _post(self, message: WebhookMessage) -> tuple[int, float | None]:
        url, address = self.reach.target(self.url)
        request = self._client.build_request(
            "POST",
            url.copy_with(host=str(address)),
            content=message.body,
            headers={"host": url.netloc.decode(), **message.headers(self.secret, datetime.now(UTC))},
            extensions={"sni_hostname": url.raw_host.decode()},  # whom the certificate must name
        )
        self._deadline.begin(self.seconds)
        response = self._client.send(request, stream=True)
        with suppress(httpx2.TimeoutException):  # its status has come, and says all
            try:
                read = 0
                for piece in response.iter_raw():  # a connection whose answer was read can be used again
                    if (read := read + len(piece)) > _MOST_READ:
                        break
            finally:
                response.close()
        return response.status_code, _retry_after(response.headers.get("retry-after", ""))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()


@cache
def _authorities() -> ssl.SSLContext:
    """Give a TLS context with the certificate authorities of this machine, or those of SSL_CERT_FILE."""
    return httpx2.create_ssl_context()


def _fault_of_status(status: int) -> str | None:
    if 200 <= status < 300:
        return None
    if 300 <= status < 400:
        return f"it answered {status}, a redirect, which is not followed; give the webhook its final address"
    return f"it answered {status}"


def _retry_after(said: str) -> float | None:
    return min(float(said), LONGEST_PAUSE) if said.isascii() and said.isdecimal() else None


# The addresses that webhooks may reach: public ones, and those of networks that the operator names.
#
# Whoever may add a webhook could otherwise have this machine send requests to services that only it reaches.
# So a name is resolved here, its addresses are checked, and the request goes to an address that was checked
# and not to the name.

_PORTS = {"https": 443, "http": 80}


@dataclass(frozen=True, slots=True)
class Reach:
    """The networks that webhooks may reach beside the public internet."""

    networks: tuple[IPv4Network | IPv6Network, ...] = ()

    @classmethod
    def of(cls, networks: Iterable[str]) -> Self:
        return cls(tuple(ip_network(network) for network in networks))

    def target(self, text: str) -> tuple[httpx2.URL, Address]:
        """Parse a URL, and give it with an address of its host that may be reached. Raises `WebhookRefused`."""
        url = _parse_url(text)
        resolved = _resolve_addresses(url)
        allowed = [address for address in resolved if self.allows(address)]
        if not allowed:
            raise WebhookRefused(
                f"its host {url.host} is at {resolved[0]}, which is not a public address. Add its "
                "network to COLMLM_WEBHOOK_NETWORKS"
            )
        if url.scheme == "http" and not all(address.is_loopback for address in allowed):
            raise WebhookRefused("it must start with https:// for a host that is not this machine")
        return url, allowed[0]

    def allows(self, address: Address) -> bool:
        """Say whether a request may be sent to this address."""
        found = meant_address(address)
        return any(found in network for network in self.networks) or is_public(address)


def _resolve_addresses(url: httpx2.URL) -> list[Address]:
    port = url.port or _PORTS[url.scheme]
    try:
        return addresses_of(url.raw_host.decode(), port)
    except (OSError, UnicodeError) as error:
        raise WebhookRefused(f"its host {url.host} cannot be resolved ({error})") from error


def _parse_url(text: str) -> httpx2.URL:
    check_text("URL of the webhook", text, blank=False, limit=LONGEST_URL)
    try:
        url = httpx2.URL(text)
    except httpx2.InvalidURL as error:
        raise WebhookRefused(f"it is not a URL ({error})") from error
    if url.scheme not in _PORTS or not url.host:
        raise WebhookRefused("it must be an address like https://example.org/hook")
    if url.port is not None and not 0 < url.port < 65_536:
        raise WebhookRefused(f"port {url.port} is not valid")
    if url.userinfo or url.fragment:
        raise WebhookRefused(f"it has {'a fragment' if url.fragment else 'a user or password'}. Drop that")
    return url


# Subscriptions as they are stored: added, paused, resumed, replayed, removed. The functions never commit.
#
# Each of these is a change of the log. It names the receiver's host and not its whole address, which may be a
# secret.

MAX_ID = 2**63 - 1
ACTIVE = "active"
_STATE_OF_ACTIVE = (ACTIVE, "limited")  # as it is stored: on all corpora, and on some


def add_subscription(
    session: Session,
    url: httpx2.URL,
    kinds: Sequence[str],
    form: str,
    since: int | None,
    actor: str | None,
    corpora: Sequence[str] = (),
) -> WebhookRow:
    """Subscribe a receiver to what comes after change `since` (None: after this edit), of these corpora (none: all).

    A scoped caller's subscription is on its own corpora or some of them. Raises `InvalidValue` or `CorpusNotFound`.
    """
    scope = scope_of_caller()
    of = tuple(dict.fromkeys(corpora)) or scope
    for corpus in of or ():
        if not is_in_scope(corpus):
            raise refusals.corpus_not_found(corpus)
        require_corpus(session, corpus)
    if form not in FORMATS:
        raise InvalidValue("format of the webhook", f"{form!r} is not one of {', '.join(FORMATS)}")
    if unknown := [kind for kind in kinds if kind not in audit.KINDS]:
        known = ", ".join(audit.KINDS)
        raise InvalidValue(
            "kinds of the webhook", f"no change is of kind {unknown[0]!r}. Name some of {known}"
        )
    pending = _begin(session, actor, f"send changes to {url.host}")
    if since is not None:
        audit.require_change(session, since)
    row = WebhookRow(
        url=str(url),
        kinds=list(dict.fromkeys(kinds)),
        format=form,
        secret=new_secret(),
        delivered_seq=pending.seq if since is None else since,
        corpora=None if of is None else list(of),
        key_id=None if scope is None else current_origin().principal.key_id,
        state=_STATE_OF_ACTIVE[of is not None],
    )
    session.add(row)
    _append(session, pending, "add-webhook", row)
    return row


def pause_subscription(session: Session, webhook_id: int, actor: str | None) -> WebhookRow:
    """Pause a webhook: nothing is sent until it is resumed. Raises `WebhookNotFound` or `WebhookState`."""
    return _turn(session, webhook_id, "paused", "pause-webhook", actor)


def resume_subscription(session: Session, webhook_id: int, actor: str | None) -> WebhookRow:
    """Resume a webhook at once, with no failure counted. Raises `WebhookNotFound` or `WebhookState`."""
    return _turn(session, webhook_id, "active", "resume-webhook", actor)


def _turn(session: Session, webhook_id: int, state: str, kind: str, actor: str | None) -> WebhookRow:
    pending = _begin(session, actor, f"{kind.partition('-')[0]} webhook {webhook_id}")
    row = lock_subscription(session, webhook_id)
    shown, state = state, _STATE_OF_ACTIVE[row.corpora is not None] if state == ACTIVE else state
    if row.state == state and not row.attempts:  # one that fails may be told to try again now
        raise refusals.webhook_state(webhook_id, shown)
    row.state = state
    _forget_failures(row)
    _append(session, pending, kind, row)
    return row


def replay_deliveries(session: Session, webhook_id: int, first: int, actor: str | None) -> WebhookRow:
    """Send a receiver the changes from `first` on, again or for the first time, and none before them.

    Raises `WebhookNotFound` or `NoSuchChange`.
    """
    pending = _begin(session, actor, f"send webhook {webhook_id} the changes from {first} on")
    row = lock_subscription(session, webhook_id)
    audit.require_change(session, first - 1)
    row.delivered_seq = first - 1
    _forget_failures(row)
    _append(session, pending, "replay-webhook", row)
    return row


def remove_subscription(session: Session, webhook_id: int, actor: str | None) -> WebhookRow:
    """End a subscription for good. Raises `WebhookNotFound`."""
    pending = _begin(session, actor, f"remove webhook {webhook_id}")
    row = lock_subscription(session, webhook_id)
    _append(session, pending, "remove-webhook", row)
    session.delete(row)
    return row


def lock_subscription(session: Session, webhook_id: int) -> WebhookRow:
    """Read and lock the row of a webhook, so that two edits take turns. Raises `WebhookNotFound`."""
    return _require_row(session, webhook_id, select(WebhookRow).with_for_update())


def read_subscription(session: Session, webhook_id: int) -> WebhookRow:
    """Read the row of a webhook without waiting for edits of it. Raises `WebhookNotFound`."""
    return _require_row(session, webhook_id, select(WebhookRow))


def list_subscriptions(session: Session, after: int = 0, limit: int | None = None) -> list[Webhook]:
    """Give the webhooks past the id `after`, up to `limit`, in the order in which they were added."""
    statement = (
        select(WebhookRow).where(WebhookRow.id > after, _own_condition()).order_by(WebhookRow.id).limit(limit)
    )
    return [webhook_record(row) for row in session.scalars(statement)]


def subscription_with_secret(session: Session, webhook_id: int) -> WebhookRow:
    """Read the row of a webhook with its secret, to send. Raises `WebhookNotFound`."""
    return _require_row(session, webhook_id, select(WebhookRow).options(undefer(WebhookRow.secret)))


def _require_row(session: Session, webhook_id: int, rows: Select[WebhookRow]) -> WebhookRow:
    found = rows.where(WebhookRow.id == webhook_id, _own_condition())
    row = session.scalar(found) if 0 < webhook_id <= MAX_ID else None
    if row is None:
        raise refusals.webhook_not_found(webhook_id)
    return row


def _own_condition() -> ColumnElement[bool]:
    """Give a condition (SQL) for the webhooks of the caller: all of them, or those of a scoped caller's own token."""
    if (scope := scope_of_caller()) is None:
        return true()
    return and_(
        WebhookRow.key_id == current_origin().principal.key_id, WebhookRow.corpora.contained_by(list(scope))
    )


def webhook_record(row: WebhookRow) -> Webhook:
    """Make the record of a webhook's row, without its secret."""
    return copy_columns(
        Webhook,
        row,
        webhook_id=row.id,
        kinds=tuple(row.kinds),
        state=ACTIVE if row.state in _STATE_OF_ACTIVE else row.state,
        corpora=None if row.corpora is None else tuple(row.corpora),
        created_at=row.created_at.astimezone(UTC),
        delivered_at=_utc(row.delivered_at),
        failing_since=_utc(row.failing_since),
        next_attempt_at=_utc(row.next_attempt_at),
    )


def _forget_failures(row: WebhookRow) -> None:
    row.attempts, row.failing_since, row.next_attempt_at, row.last_error = 0, None, None, None


def _begin(session: Session, actor: str | None, reason: str) -> audit.Pending:
    """Begin a change, which locks the log before any row is locked, as every edit does."""
    return audit.begin_change(session, actor or current_origin().principal.name, reason)


def _append(session: Session, pending: audit.Pending, kind: str, row: WebhookRow) -> None:
    session.flush()
    kept: dict[str, Any] = {
        "webhook_id": row.id,
        "host": httpx2.URL(row.url).netloc.decode(),
        "kinds": row.kinds,
        "format": row.format,
        "state": ACTIVE if row.state in _STATE_OF_ACTIVE else row.state,
        **({} if row.corpora is None else {"corpora": row.corpora}),
        "delivered_seq": row.delivered_seq,
    }
    audit.append_change(session, pending, kind, payload={"webhook": kept})
    session.refresh(row)


def _utc(time: datetime | None) -> datetime | None:
    return None if time is None else time.astimezone(UTC)


PIECE = 100  # changes that are read at once

_LOCK = text("SELECT pg_try_advisory_lock(hashtextextended('webhook of colmlm ' || CAST(:id AS bigint), 0))")
_IS_DUE = and_(
    ~func.pg_is_in_recovery(),  # a standby could note nothing, and the primary has senders of its own
    WebhookRow.state.in_(_STATE_OF_ACTIVE),
    func.webhook_is_entitled(WebhookRow.key_id, WebhookRow.corpora),
    or_(WebhookRow.next_attempt_at.is_(None), WebhookRow.next_attempt_at <= func.clock_timestamp()),
    WebhookRow.delivered_seq < select(func.max(ChangeRow.seq)).scalar_subquery(),
)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Choose how long to wait after a failure, doubling with each, and when to give up on a receiver."""

    first_wait: timedelta = timedelta(seconds=5)
    longest_wait: timedelta = timedelta(hours=1)
    given_up_after: timedelta = timedelta(days=3)

    def wait(self, failures: int, asked: float | None) -> timedelta:
        """Give the wait after so many failures in a row, somewhat random, and no less than the receiver asked for."""
        waits = min(self.first_wait * 2.0 ** min(failures - 1, 16), self.longest_wait)
        return max(waits * random.uniform(0.9, 1.1), timedelta(seconds=asked or 0))


def due_webhooks(session: Session) -> list[int]:
    """List the ids of the webhooks that have changes to send and need not wait."""
    return list(session.scalars(select(WebhookRow.id).where(_IS_DUE).order_by(WebhookRow.id)))


@contextmanager
def lock_position(store: Store, webhook_id: int) -> Iterator[Position | None]:
    """Lock a webhook that is due, and give its position; None where it is not due, or another process has locked it."""
    with store.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.detach()  # so that its end closes it, which releases the lock
        with Session(connection) as session:
            has_turn = session.scalar(_LOCK, {"id": webhook_id}) and webhook_id in due_webhooks(session)
            yield _position(store, session, webhook_id) if has_turn else None


def _position(store: Store, session: Session, webhook_id: int) -> Position | None:
    try:
        row = subscription_with_secret(session, webhook_id)
    except NotFound:  # it was removed just now
        return None
    webhook = webhook_record(row)
    position = Position(store, session, webhook, row.secret, webhook.delivered_seq, webhook.attempts)
    return position if position.can_note() else None


@dataclass(slots=True)
class Position:
    """The position of a webhook in the log: all up to `seq` is sent or unwanted, and `failures` in a row came since.

    Its row is written only where the webhook is still at this position, and not removed or replayed. A webhook on some
    corpora reads the log as a scoped caller does, so that the database decides what it is sent.
    """

    store: Store
    session: Session
    webhook: Webhook
    secret: bytes
    seq: int
    failures: int

    def changes_ahead(self, most: int | None) -> Iterator[ChangeRecord]:
        """Yield up to `most` changes of the wanted kinds in order, and pass over the others."""
        given = 0
        while most is None or given < most:
            head = audit.head_seq(self.session)
            found = self._read(head)
            yield from found
            given += len(found)
            if len(found) < PIECE:
                self._move(head)
                return

    def _read(self, head: int) -> list[ChangeRecord]:
        wanted = select(ChangeRow).where(ChangeRow.seq > self.seq, ChangeRow.seq <= head)
        if self.webhook.kinds:
            wanted = wanted.where(ChangeRow.kind.in_(self.webhook.kinds))
        wanted = wanted.order_by(ChangeRow.seq).limit(PIECE)
        if self.webhook.corpora is None:
            return audit.records_with_checkpoints(self.session, self.session.scalars(wanted))
        reader = Principal("webhook", str(self.webhook.webhook_id), corpora=self.webhook.corpora)
        with acting_as(reader), self.store.sessions() as session:
            return audit.records_with_checkpoints(session, session.scalars(wanted))

    def can_note(self) -> bool:
        """Write the row unchanged before anything is sent, and say whether changes may be sent.

        A database that takes no writes raises here, so that no message is sent that could not be noted.
        """
        return self._update_webhook(delivered_seq=self.seq) in _STATE_OF_ACTIVE

    def note_delivered(self, seq: int) -> bool:
        """Note that the receiver took change `seq`, and say whether it may get the next."""
        self.failures = 0
        nothing = dict.fromkeys(("failing_since", "next_attempt_at", "last_error"))
        return self._move(seq, attempts=0, delivered_at=func.clock_timestamp(), **nothing) in _STATE_OF_ACTIVE

    def _move(self, seq: int, **more: Any) -> str | None:
        """Move on to change `seq`, and give the state of the webhook; None where its row is at another position."""
        state = self._update_webhook(delivered_seq=seq, **more)
        self.seq = seq
        return state

    def note_failed(self, attempt: Attempt, persistence: RetryPolicy) -> str | None:
        """Note that the receiver did not take the next change, and give the state of the webhook, as `_move` does."""
        self.failures += 1
        now = func.clock_timestamp()
        since = func.coalesce(WebhookRow.failing_since, now)
        is_over = or_(literal(attempt.delivery.status == GONE), since <= now - persistence.given_up_after)
        return self._update_webhook(
            attempts=self.failures,
            failing_since=since,
            next_attempt_at=now + persistence.wait(self.failures, attempt.retry_after),
            last_error=attempt.delivery.error,
            state=case(
                (and_(WebhookRow.state.in_(_STATE_OF_ACTIVE), is_over), "failed"), else_=WebhookRow.state
            ),
        )

    def _update_webhook(self, **values: Any) -> str | None:
        here = (WebhookRow.id == self.webhook.webhook_id, WebhookRow.delivered_seq == self.seq)
        written = update(WebhookRow).where(*here).values(values).returning(WebhookRow.state)
        return self.session.scalar(written.execution_options(synchronize_session=False))
