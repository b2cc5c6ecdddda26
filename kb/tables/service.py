"""The tables of a service: jobs, tokens, browser sessions, requests, and denials."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import (
    CheckConstraint,
    Float,
    ForeignKey,
    Identity,
    Index,
    Integer,
    UniqueConstraint,
    func,
    text,
)
from sqlalchemy.orm import Mapped, mapped_column

from colmlm.kb.tables.declarative import (
    Content,
    ContentObject,
    Digest,
    Figures,
    Name,
    NameObject,
    TableRow,
    Word,
    Words,
)

roles = ("decoder", "reader", "operator", "auditor", "trainer", "admin")
erasure_states = ("waiting", "approved", "withdrawn")
webhook_formats = ("standard", "cloudevents")
webhook_states = ("active", "paused", "failed")
job_states = ("queued", "running", "succeeded", "failed", "cancelled")


class JobRow(TableRow):
    """Long work as people see it. A worker must hold `ticket` to write to its row: `kb.jobs.tickets`."""

    __tablename__ = "job"
    __table_args__ = (
        CheckConstraint(f"state IN {job_states}", name="state"),
        Index("job_unfinished_idx", "id", postgresql_where=text("state IN ('queued', 'running')")),
    )

    id: Mapped[int] = mapped_column(Identity(always=True), primary_key=True)
    kind: Mapped[Word]
    arguments: Mapped[ContentObject]
    actor: Mapped[Name]
    request_id: Mapped[Digest | None]
    state: Mapped[Word]
    ticket: Mapped[int | None]
    done: Mapped[int] = mapped_column(server_default=text("0"))
    total: Mapped[int | None]
    message: Mapped[Content | None]
    result: Mapped[ContentObject | None]
    error: Mapped[ContentObject | None]
    attempts: Mapped[int] = mapped_column(Integer, server_default=text("0"))
    cancelled_by: Mapped[Name | None]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
    heartbeat_at: Mapped[datetime | None]
    principal: Mapped[NameObject | None]


class ApiKeyRow(TableRow):
    """A token. Only digests of its secrets are stored; `previous_*` describe the secret before the last rotation."""

    __tablename__ = "api_key"
    __table_args__ = (
        CheckConstraint(f"role IN {roles}", name="role"),
        CheckConstraint("rate_limit > 0", name="rate_limit"),
    )

    id: Mapped[int] = mapped_column(Identity(always=True), primary_key=True)
    name: Mapped[Name] = mapped_column(unique=True)
    key_hash: Mapped[bytes] = mapped_column(unique=True)
    role: Mapped[Word]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    revoked_at: Mapped[datetime | None]
    prefix: Mapped[Digest | None]
    expires_at: Mapped[datetime | None]
    last_used_at: Mapped[datetime | None]
    rate_limit: Mapped[int | None] = mapped_column(Integer)
    rotated_at: Mapped[datetime | None]
    previous_hash: Mapped[bytes | None] = mapped_column(unique=True)
    previous_until: Mapped[datetime | None]
    previous_used_at: Mapped[datetime | None]


class BrowserSessionRow(TableRow):
    """A browser that has signed in with a key. Only the digest of its cookie's secret is stored."""

    __tablename__ = "browser_session"

    id: Mapped[int] = mapped_column(Identity(always=True), primary_key=True)
    secret_hash: Mapped[bytes] = mapped_column(unique=True)
    api_key_id: Mapped[int] = mapped_column(ForeignKey("api_key.id"), index=True)
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    expires_at: Mapped[datetime]
    last_used_at: Mapped[datetime] = mapped_column(server_default=func.now())


class AnswerCalibrationRow(TableRow):
    """A calibration of the score from which answers are given, made as change `seq`. The newest counts.

    `reader` is a digest of the reader whose scores were measured.
    """

    __tablename__ = "answer_calibration"

    id: Mapped[int] = mapped_column(Identity(always=True), primary_key=True)
    seq: Mapped[int]
    reader: Mapped[Digest]
    threshold: Mapped[float] = mapped_column(Float)
    report: Mapped[Figures]


class IdempotencyRow(TableRow):
    """An edit that a caller asked for under a name, and its answer, which the same request gets again.

    `claim` names the run that may edit under it, and `seq` is that run's last change, set in its transaction;
    `claimed_seq` is the last change of the log when it was claimed.
    """

    __tablename__ = "idempotency"
    __table_args__ = (UniqueConstraint("api_key_id", "key"),)

    id: Mapped[int] = mapped_column(Identity(always=True), primary_key=True)
    api_key_id: Mapped[int] = mapped_column(ForeignKey("api_key.id"))
    key: Mapped[Name]
    request_sha256: Mapped[bytes]
    claim: Mapped[Digest]
    claimed_at: Mapped[datetime] = mapped_column(server_default=func.now(), index=True)
    seq: Mapped[int | None]
    status: Mapped[int | None] = mapped_column(Integer)
    media_type: Mapped[Word | None]
    body: Mapped[bytes | None]
    claimed_seq: Mapped[int | None]


class ErasureRequestRow(TableRow):
    """An erasure that waits for, or was decided by, a second person's key."""

    __tablename__ = "erasure_request"
    __table_args__ = (
        CheckConstraint(f"state IN {erasure_states}", name="state"),
        CheckConstraint("state <> 'approved' OR decided_by <> asked_by", name="two"),
    )

    id: Mapped[int] = mapped_column(Identity(always=True), primary_key=True)
    state: Mapped[Word]
    fact_ids: Mapped[list[int]]
    actor: Mapped[Name]
    reason: Mapped[Content]
    asked_by: Mapped[int] = mapped_column(ForeignKey("api_key.id"))
    at: Mapped[datetime] = mapped_column(server_default=func.now())
    decided_by: Mapped[int | None] = mapped_column(ForeignKey("api_key.id"))
    decided_at: Mapped[datetime | None]
    seq: Mapped[int | None]
    on_behalf_of: Mapped[Content | None]
    mentions: Mapped[Word | None]


class DenialRow(TableRow):
    """A request that was refused for who sent it. `num_unrecorded` were refused before it and only logged."""

    __tablename__ = "denial"

    id: Mapped[int] = mapped_column(Identity(always=True), primary_key=True)
    at: Mapped[datetime] = mapped_column(server_default=func.now(), index=True)
    request_id: Mapped[Digest]
    actor: Mapped[Name | None]
    method: Mapped[Word]
    path: Mapped[Word]
    status: Mapped[int] = mapped_column(Integer)
    cause: Mapped[Word]
    num_unrecorded: Mapped[int]


class WebhookRow(TableRow):
    """A subscription to the change log. Everything up to `delivered_seq` was delivered, or is of no kind it wants.

    The secret signs what is sent, so it is kept as it is, and read by who sends alone. Backups leave this table out.
    """

    __tablename__ = "webhook"
    __table_args__ = (
        CheckConstraint(f"format IN {webhook_formats}", name="format"),
        CheckConstraint(f"state IN {webhook_states}", name="state"),
    )

    id: Mapped[int] = mapped_column(Identity(always=True), primary_key=True)
    url: Mapped[Name]
    kinds: Mapped[Words]
    format: Mapped[Word]
    secret: Mapped[bytes] = mapped_column(deferred=True, deferred_raiseload=True)
    state: Mapped[Word] = mapped_column(server_default=text("'active'"))
    delivered_seq: Mapped[int]
    attempts: Mapped[int] = mapped_column(Integer, server_default=text("0"))
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    delivered_at: Mapped[datetime | None]
    failing_since: Mapped[datetime | None]
    next_attempt_at: Mapped[datetime | None]
    last_error: Mapped[Name | None]
