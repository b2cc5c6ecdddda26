"""Sends messages to a receiver, one request each: to a checked address, within a time, and following no redirect.

How far a receiver was told, and what came of each attempt, is noted in its row, over one connection that holds the lock
of the webhook. Whoever loses the lock loses the connection, so it can note nothing and goes no further.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import random
import secrets
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
import msgspec
from sqlalchemy import Select, and_, case, func, literal, or_, select, text, update
from sqlalchemy.orm import Session, undefer

from colmlm.kb.errors import InvalidValue, NotFound, WebhookRefused, refusals
from colmlm.kb.log import audit
from colmlm.kb.log.audit import check_text
from colmlm.kb.log.records import EVENT, ChangeRecord, cloud_event, source_of
from colmlm.kb.network.addresses import (
    Address,
    Deadline,
    DeadlineTransport,
    addresses_of,
    is_public,
    meant_address,
)
from colmlm.kb.principal import current_origin
from colmlm.kb.store.store import Store
from colmlm.kb.tables import ChangeRow, WebhookRow, copy_columns
from colmlm.kb.webhooks.records import FORMATS, LONGEST_URL, Format, Webhook, WebhookDelivery

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
        """Send a message and tell what came of it."""
        began, status, retry_after = time.monotonic(), None, None
        try:
            status, retry_after = self._post(message)
            error = _fault(status)
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
        return response.status_code, _pause(response.headers.get("retry-after", ""))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()


@cache
def _authorities() -> ssl.SSLContext:
    """Give the authorities that certificates are believed by; SSL_CERT_FILE may name others."""
    return httpx2.create_ssl_context()


def _fault(status: int) -> str | None:
    if 200 <= status < 300:
        return None
    if 300 <= status < 400:
        return f"it answered {status}, a redirect, which is not followed; give the webhook its final address"
    return f"it answered {status}"


def _pause(said: str) -> float | None:
    return min(float(said), LONGEST_PAUSE) if said.isascii() and said.isdecimal() else None


# Messages to receivers, in the form of Standard Webhooks (https://www.standardwebhooks.com), signed with
# HMAC-SHA256.
#
# A message is made from the change log when it is sent and stored nowhere, so what it says is what the log
# says, and an erasure has nothing to redact in it.

SECRET_BYTES = 32
_MARK = "whsec_"


@dataclass(frozen=True, slots=True)
class WebhookMessage:
    """A message: its id, by which a receiver knows one that comes again, and its body with the type of that."""

    message_id: str
    media_type: str
    body: bytes

    def headers(self, secret: bytes, at: datetime) -> dict[str, str]:
        """Give the headers of an attempt to deliver it at this time."""
        timestamp = str(int(at.timestamp()))
        signed = b".".join((self.message_id.encode(), timestamp.encode(), self.body))
        signature = base64.b64encode(hmac.digest(secret, signed, hashlib.sha256)).decode()
        return {
            "content-type": self.media_type,
            "webhook-id": self.message_id,
            "webhook-timestamp": timestamp,
            "webhook-signature": f"v1,{signature}",
        }


def message_of_change(change: ChangeRecord, database: str, form: Format) -> WebhookMessage:
    """Make the message of a change. It has the same id whenever and to whomever it is sent.

    The hash is in it since numbers are used again where a log goes on from an older backup.
    """
    name = f"change_{database}_{change.seq}_{change.hash[:12]}"
    if form == "cloudevents":
        event = cloud_event(change, database)
        return WebhookMessage(name, EVENT, msgspec.json.encode(event))
    return _standard(name, f"change.{change.kind}", change.at, database, change)


def message_of_test(webhook_id: int, database: str, form: Format) -> WebhookMessage:
    """Make a test message, which shows that the receiver is reached and knows the secret."""
    name, now = f"test_{secrets.token_hex(8)}", datetime.now(UTC)
    data = {"webhook_id": webhook_id}
    if form == "standard":
        return _standard(name, "test", now, database, data)
    event = {
        "specversion": "1.0",
        "id": name,
        "source": source_of(database),
        "type": "org.colmlm.test",
        "time": now.isoformat(),
        "datacontenttype": "application/json",
        "data": data,
    }
    return WebhookMessage(name, EVENT, msgspec.json.encode(event))


def _standard(name: str, kind: str, at: datetime, database: str, data: Any) -> WebhookMessage:
    said = {
        "type": kind,
        "timestamp": at.isoformat(),
        "source": source_of(database),
        "data": data,
    }
    return WebhookMessage(name, "application/json", msgspec.json.encode(said))


def new_secret() -> bytes:
    """Make a secret that can't be guessed."""
    return secrets.token_bytes(SECRET_BYTES)


def format_secret(secret: bytes) -> str:
    """Write a webhook's secret in the form that receivers take."""
    return _MARK + base64.b64encode(secret).decode()


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
        """Give the URL and an address of its host that may be reached now. Raises `WebhookRefused`."""
        url = _parse_url(text)
        resolved = _resolve_addresses(url)
        allowed = [address for address in resolved if self.allows(address)]
        if not allowed:
            raise WebhookRefused(
                f"its host {url.host} is at {resolved[0]}, which is not a public address. Add its "
                "network to COLMLM_WEBHOOK_NETWORKS"
            )
        if url.scheme == "http" and not all(address.is_loopback for address in allowed):
            raise WebhookRefused("it must start with https://. Plain http works on this machine only")
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
        raise WebhookRefused("it must have no user, password or fragment. The signature shows who sends")
    return url


# Subscriptions as they are stored: added, paused, resumed, replayed, removed. The functions never commit.
#
# Each of these is a change of the log. It names the receiver's host and not its whole address, which may be a
# secret.

MAX_ID = 2**63 - 1


def add_subscription(
    session: Session, url: httpx2.URL, kinds: Sequence[str], form: str, since: int | None, actor: str | None
) -> WebhookRow:
    """Subscribe a receiver to what comes after change `since` (None: after this one). Raises `InvalidValue`."""
    if form not in FORMATS:
        raise InvalidValue("format of the webhook", f"{form!r} is not one of {', '.join(FORMATS)}")
    if unknown := [kind for kind in kinds if kind not in audit.KINDS]:
        known = ", ".join(audit.KINDS)
        raise InvalidValue(
            "kinds of the webhook", f"no change is of kind {unknown[0]!r}. The kinds are {known}"
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
    )
    session.add(row)
    _append(session, pending, "add-webhook", row)
    return row


def pause_subscription(session: Session, webhook_id: int, actor: str | None) -> WebhookRow:
    """Have nothing more sent to a receiver until it is resumed. Raises `WebhookNotFound` or `WebhookState`."""
    return _turn(session, webhook_id, "paused", "pause-webhook", actor)


def resume_subscription(session: Session, webhook_id: int, actor: str | None) -> WebhookRow:
    """Go on where it stopped, at once and with no failure counted. Raises `WebhookNotFound` or `WebhookState`."""
    return _turn(session, webhook_id, "active", "resume-webhook", actor)


def _turn(session: Session, webhook_id: int, state: str, kind: str, actor: str | None) -> WebhookRow:
    pending = _begin(session, actor, f"{kind.partition('-')[0]} webhook {webhook_id}")
    row = lock_subscription(session, webhook_id)
    if row.state == state and not row.attempts:  # one that fails may be told to try again now
        raise refusals.webhook_state(webhook_id, state)
    row.state = state
    _forget_failures(row)
    _append(session, pending, kind, row)
    return row


def replay_deliveries(session: Session, webhook_id: int, first: int, actor: str | None) -> WebhookRow:
    """Send change `first` and what comes after it, again or for the first time; what is before is passed over.

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
    return _only(session, webhook_id, select(WebhookRow).with_for_update())


def read_subscription(session: Session, webhook_id: int) -> WebhookRow:
    """Read the row of a webhook without waiting for edits of it. Raises `WebhookNotFound`."""
    return _only(session, webhook_id, select(WebhookRow))


def list_subscriptions(session: Session, after: int = 0, limit: int | None = None) -> list[Webhook]:
    """Give the webhooks past the id `after`, up to `limit`, in the order in which they were added."""
    statement = select(WebhookRow).where(WebhookRow.id > after).order_by(WebhookRow.id).limit(limit)
    return [webhook_record(row) for row in session.scalars(statement)]


def subscription_with_secret(session: Session, webhook_id: int) -> WebhookRow:
    """Read the row of a webhook with its secret, to send. Raises `WebhookNotFound`."""
    return _only(session, webhook_id, select(WebhookRow).options(undefer(WebhookRow.secret)))


def _only(session: Session, webhook_id: int, rows: Select[WebhookRow]) -> WebhookRow:
    row = session.scalar(rows.where(WebhookRow.id == webhook_id)) if 0 < webhook_id <= MAX_ID else None
    if row is None:
        raise refusals.webhook_not_found(webhook_id)
    return row


def webhook_record(row: WebhookRow) -> Webhook:
    """Make the record of a webhook's row, without its secret."""
    return copy_columns(
        Webhook,
        row,
        webhook_id=row.id,
        kinds=tuple(row.kinds),
        created_at=row.created_at.astimezone(UTC),
        delivered_at=_utc(row.delivered_at),
        failing_since=_utc(row.failing_since),
        next_attempt_at=_utc(row.next_attempt_at),
    )


def _forget_failures(row: WebhookRow) -> None:
    row.attempts, row.failing_since, row.next_attempt_at, row.last_error = 0, None, None, None


def _begin(session: Session, actor: str | None, reason: str) -> audit.Pending:
    """Take the log's lock before any row is locked, as every edit does."""
    return audit.begin_change(session, actor or current_origin().principal.name, reason)


def _append(session: Session, pending: audit.Pending, kind: str, row: WebhookRow) -> None:
    session.flush()
    kept: dict[str, Any] = {
        "webhook_id": row.id,
        "host": httpx2.URL(row.url).netloc.decode(),
        "kinds": row.kinds,
        "format": row.format,
        "state": row.state,
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
    WebhookRow.state == "active",
    or_(WebhookRow.next_attempt_at.is_(None), WebhookRow.next_attempt_at <= func.clock_timestamp()),
    WebhookRow.delivered_seq < select(func.max(ChangeRow.seq)).scalar_subquery(),
)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long to wait after a failure, doubling with each, and when to give up on a receiver."""

    first_wait: timedelta = timedelta(seconds=5)
    longest_wait: timedelta = timedelta(hours=1)
    given_up_after: timedelta = timedelta(days=3)

    def wait(self, failures: int, asked: float | None) -> timedelta:
        """Give the wait after so many failures in a row, somewhat random, and no less than the receiver asked for."""
        waits = min(self.first_wait * 2.0 ** min(failures - 1, 16), self.longest_wait)
        return max(waits * random.uniform(0.9, 1.1), timedelta(seconds=asked or 0))


def due_webhooks(session: Session) -> list[int]:
    """List the webhooks that have changes to send and need not wait."""
    return list(session.scalars(select(WebhookRow.id).where(_IS_DUE).order_by(WebhookRow.id)))


@contextmanager
def lock_position(store: Store, webhook_id: int) -> Iterator[Position | None]:
    """Give the position of a webhook that is due, for this process alone; None where it is not, or another has it."""
    with store.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.detach()  # so that its end closes it, which releases the lock
        with Session(connection) as session:
            has_turn = session.scalar(_LOCK, {"id": webhook_id}) and webhook_id in due_webhooks(session)
            yield _position(session, webhook_id) if has_turn else None


def _position(session: Session, webhook_id: int) -> Position | None:
    try:
        row = subscription_with_secret(session, webhook_id)
    except NotFound:  # it was removed just now
        return None
    webhook = webhook_record(row)
    position = Position(session, webhook, row.secret, webhook.delivered_seq, webhook.attempts)
    return position if position.can_note() else None


@dataclass(slots=True)
class Position:
    """Where a webhook is in the log: change `seq` and all before it are done with; `failures` came since in a row.

    What is noted holds only where the webhook is still where this left it, and not removed or replayed.
    """

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
        rows = self.session.scalars(wanted.order_by(ChangeRow.seq).limit(PIECE))
        return audit.change_records(self.session, rows)

    def can_note(self) -> bool:
        """Write the row unchanged before anything is sent, and say whether changes may be sent.

        A database that takes no writes raises here, so that no message is sent that could not be noted.
        """
        return self._write(delivered_seq=self.seq) == "active"

    def note_delivered(self, seq: int) -> bool:
        """Note that the receiver took this change, and say whether it may get the next."""
        self.failures = 0
        nothing = dict.fromkeys(("failing_since", "next_attempt_at", "last_error"))
        return self._move(seq, attempts=0, delivered_at=func.clock_timestamp(), **nothing) == "active"

    def _move(self, seq: int, **more: Any) -> str | None:
        """Move on to a change, and give the state of the webhook; None where it is no longer where it was."""
        state = self._write(delivered_seq=seq, **more)
        self.seq = seq
        return state

    def note_failed(self, attempt: Attempt, persistence: RetryPolicy) -> str | None:
        """Note that the receiver did not take the next change, and give the state of the webhook, as `_move` does."""
        self.failures += 1
        now = func.clock_timestamp()
        since = func.coalesce(WebhookRow.failing_since, now)
        is_over = or_(literal(attempt.delivery.status == GONE), since <= now - persistence.given_up_after)
        return self._write(
            attempts=self.failures,
            failing_since=since,
            next_attempt_at=now + persistence.wait(self.failures, attempt.retry_after),
            last_error=attempt.delivery.error,
            state=case((and_(WebhookRow.state == "active", is_over), "failed"), else_=WebhookRow.state),
        )

    def _write(self, **values: Any) -> str | None:
        here = (WebhookRow.id == self.webhook.webhook_id, WebhookRow.delivered_seq == self.seq)
        written = update(WebhookRow).where(*here).values(values).returning(WebhookRow.state)
        return self.session.scalar(written.execution_options(synchronize_session=False))
