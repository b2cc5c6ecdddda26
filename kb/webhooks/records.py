"""The records of webhooks: a subscription as people see it, and the outcome of one request to its receiver."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal, get_args

Format = Literal["standard", "cloudevents"]

FORMATS: tuple[Format, ...] = get_args(Format)

LONGEST_URL = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """A subscription of a receiver to the change log, without its secret.

    Everything up to change `delivered_seq` was delivered or is of no kind of `kinds` (none: all). `state` is "active",
    "paused" or, where its receiver failed for too long, "failed". While it fails, `attempts` counts the failures in a
    row since `failing_since`, `last_error` says what went wrong last, and the next attempt is at `next_attempt_at`.
    Changes of these `corpora` alone are sent to it (None: of all, and of the base).
    """

    webhook_id: int
    url: str
    kinds: tuple[str, ...]
    format: Format
    state: str
    delivered_seq: int
    attempts: int
    created_at: datetime
    delivered_at: datetime | None
    failing_since: datetime | None
    next_attempt_at: datetime | None
    last_error: str | None
    corpora: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookDelivery:
    """The outcome of one request to a receiver. `error` says why it is no delivery; None where it is one."""

    message_id: str
    ok: bool
    status: int | None
    error: str | None
    seconds: float
