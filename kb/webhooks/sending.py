"""Sends messages to a receiver, one request each: to a checked address, within a time, and following no redirect."""

from __future__ import annotations

import ssl
import time
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from types import TracebackType
from typing import Self

import httpx2

from colmlm.kb.errors import WebhookRefused
from colmlm.kb.network.deadlines import Deadline, DeadlineTransport
from colmlm.kb.webhooks.messages import WebhookMessage
from colmlm.kb.webhooks.reach import Reach
from colmlm.kb.webhooks.records import WebhookDelivery

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
        """Sends a message and tells what came of it."""
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
    """Gives the authorities that certificates are believed by; SSL_CERT_FILE may name others."""
    return httpx2.create_ssl_context()


def _fault(status: int) -> str | None:
    if 200 <= status < 300:
        return None
    if 300 <= status < 400:
        return f"it answered {status}, a redirect, which is not followed; give the webhook its final address"
    return f"it answered {status}"


def _pause(said: str) -> float | None:
    return min(float(said), LONGEST_PAUSE) if said.isascii() and said.isdecimal() else None
