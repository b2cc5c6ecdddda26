"""Messages to receivers, in the form of Standard Webhooks (https://www.standardwebhooks.com), signed with HMAC-SHA256.

A message is made from the change log when it is sent and stored nowhere, so what it says is what the log says, and an
erasure has nothing to redact in it.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

from colmlm.kb.log.records import EVENT, ChangeRecord, cloud_event, source_of
from colmlm.kb.webhooks.records import Format

SECRET_BYTES = 32
_MARK = "whsec_"


@dataclass(frozen=True, slots=True)
class WebhookMessage:
    """A message: its id, by which a receiver recognises one that comes again, and its body with the media type."""

    message_id: str
    media_type: str
    body: bytes

    def headers(self, secret: bytes, at: datetime) -> dict[str, str]:
        """Give the headers, with the signature, of an attempt to deliver the message at this time."""
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

    The change's hash is in the id, since numbers are used again where a log goes on from an older backup.
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
