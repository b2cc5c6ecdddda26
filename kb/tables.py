"""The tables, as the migrations build them (`alembic check` holds the two together); nothing is created from here.

Liveness is one row: a fact is live while it has a `fact_version` with `to_seq IS NULL`. Delete closes that
row and restore opens the next, so "what was true at change n" is one range test and never a join with the log.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    DateTime,
    Float,
    ForeignKey,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Sequence,
    Text,
    UniqueConstraint,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

KEY_IDS = "fact_key_id_seq"

key_kinds = ("context", "question", "alias")
keyset_states = ("building", "ready", "active", "retired")
forget_states = ("planned", "applied", "restored", "erased")
forget_policies = ("successor", "abstain")
roles = ("decoder", "reader", "operator", "auditor", "trainer", "admin")
erasure_states = ("waiting", "approved", "withdrawn")
job_states = ("queued", "running", "succeeded", "failed", "cancelled")


class Base(DeclarativeBase):
    metadata = MetaData(
        naming_convention={
            "pk": "%(table_name)s_pkey",
            "fk": "%(table_name)s_%(column_0_name)s_fkey",
            "ix": "%(table_name)s_%(column_0_N_name)s_idx",
            "uq": "%(table_name)s_%(column_0_N_name)s_key",
            "ck": "%(table_name)s_%(constraint_name)s_check",
        }
    )
    type_annotation_map: ClassVar = {
        int: BigInteger,
        str: Text,
        bytes: LargeBinary,
        datetime: DateTime(timezone=True),
        dict[str, Any]: JSONB,
        list[int]: ARRAY(BigInteger),
    }


class Document(Base):
    """A text as ingested. A newer text under the same external id is a new row; the old one stays as evidence."""

    __tablename__ = "document"
    __table_args__ = (
        Index(
            "document_live_external_id_key",
            "corpus",
            "external_id",
            unique=True,
            postgresql_where=text("replaced_seq IS NULL"),
        ),
    )

    id: Mapped[int] = mapped_column(Identity(always=True), primary_key=True)
    corpus: Mapped[str]
    external_id: Mapped[str]
    uri: Mapped[str | None]
    title: Mapped[str | None]
    licence: Mapped[str | None]
    revision: Mapped[str | None]
    sha256: Mapped[str]
    record_sha256: Mapped[str]
    text: Mapped[str]
    ingested_at: Mapped[datetime] = mapped_column(server_default=func.now())
    replaced_seq: Mapped[int | None]


class Fact(Base):
    __tablename__ = "fact"
    __table_args__ = (
        CheckConstraint("(document_id IS NULL) = (span_start IS NULL)", name="span"),
        CheckConstraint("span_start >= 0 AND span_start < span_end", name="order"),
        CheckConstraint("document_id IS NOT NULL OR question IS NOT NULL", name="keyable"),
        Index("fact_document_id_idx", "document_id", "ordinal"),
        Index("fact_created_seq_idx", "created_seq"),
    )

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    document_id: Mapped[int | None] = mapped_column(ForeignKey("document.id"))
    ordinal: Mapped[int] = mapped_column(Integer)
    span_start: Mapped[int | None] = mapped_column(Integer)
    span_end: Mapped[int | None] = mapped_column(Integer)
    question: Mapped[str | None]
    answer: Mapped[str | None]
    created_seq: Mapped[int]
    deleted_seq: Mapped[int | None]
    erased_seq: Mapped[int | None]


class FactVersion(Base):
    """A value, true from change `from_seq` until `to_seq` (exclusive; NULL: still).

    With both the same it was never true here: a fact came in already corrected or deleted.
    """

    __tablename__ = "fact_version"
    __table_args__ = (
        CheckConstraint("to_seq >= from_seq", name="range"),
        Index("fact_version_live_key", "fact_id", unique=True, postgresql_where=text("to_seq IS NULL")),
    )

    fact_id: Mapped[int] = mapped_column(ForeignKey("fact.id"), primary_key=True)
    version: Mapped[int] = mapped_column(Integer, primary_key=True)
    value: Mapped[str]
    from_seq: Mapped[int]
    to_seq: Mapped[int | None]


class Change(Base):
    """The append-only log (a trigger refuses UPDATE, DELETE and TRUNCATE); see kb/audit.py for the chain."""

    __tablename__ = "change"
    __table_args__ = (Index("change_fact_ids_idx", "fact_ids", postgresql_using="gin"),)

    seq: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    kind: Mapped[str]
    fact_ids: Mapped[list[int]]
    num_facts: Mapped[int]
    actor: Mapped[str]
    reason: Mapped[str]
    at: Mapped[datetime]
    prev_hash: Mapped[str]
    hash: Mapped[str]
    payload: Mapped[dict[str, Any]]


class Checkpoint(Base):
    __tablename__ = "checkpoint"

    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]
    dim: Mapped[int] = mapped_column(Integer)
    path: Mapped[str | None]
    tokenizer_hash: Mapped[str | None]
    trained_on: Mapped[str | None]
    registered_at: Mapped[datetime] = mapped_column(server_default=func.now())


class Keyset(Base):
    __tablename__ = "keyset"
    __table_args__ = (
        CheckConstraint(f"state IN {keyset_states}", name="state"),
        Index("keyset_active_key", "state", unique=True, postgresql_where=text("state = 'active'")),
        Index(
            "keyset_checkpoint_id_key",
            "checkpoint_id",
            unique=True,
            postgresql_where=text("state <> 'retired'"),
        ),
    )

    id: Mapped[int] = mapped_column(Identity(always=True), primary_key=True)
    checkpoint_id: Mapped[str] = mapped_column(ForeignKey("checkpoint.id"))
    index_spec: Mapped[str]
    threshold: Mapped[float] = mapped_column(Float)
    calibrated: Mapped[bool]
    state: Mapped[str]
    applied_seq: Mapped[int]
    gate: Mapped[dict[str, Any] | None]


class FactKey(Base):
    """A unit vector of a fact, as little-endian fp16 bytes. `id` is the Faiss id: one sequence, never reused.

    A plain sequence that writers draw from: identity columns on partitioned tables need PostgreSQL 17.
    """

    __tablename__ = "fact_key"
    __table_args__ = (
        CheckConstraint(f"kind IN {key_kinds}", name="kind"),
        Index(
            "fact_key_one_of_a_kind_key",
            "keyset_id",
            "fact_id",
            "kind",
            unique=True,
            postgresql_where=text("kind <> 'alias'"),
        ),
        Index("fact_key_fact_id_idx", "fact_id"),
        {"postgresql_partition_by": "LIST (keyset_id)"},
    )

    # No foreign key: a partition exists only for a keyset that does, and this is written once for every key.
    keyset_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    id: Mapped[int] = mapped_column(
        Sequence(KEY_IDS, data_type=BigInteger, metadata=Base.metadata), primary_key=True
    )
    fact_id: Mapped[int] = mapped_column(ForeignKey("fact.id"))
    kind: Mapped[str]
    key: Mapped[bytes]


class Generation(Base):
    __tablename__ = "generation"

    id: Mapped[int] = mapped_column(Identity(always=True), primary_key=True)
    prompt: Mapped[str]
    output: Mapped[str]
    checkpoint_id: Mapped[str]
    keyset_id: Mapped[int | None]
    seq: Mapped[int]
    mode: Mapped[str]
    at: Mapped[datetime] = mapped_column(server_default=func.now())
    redacted_seq: Mapped[int | None]


class Attribution(Base):
    """One lookup of an output. No foreign key to the fact: the record must outlive it.

    `query` is what was asked, as fp16 bytes in the space of the generation's checkpoint.
    """

    __tablename__ = "attribution"
    __table_args__ = (
        CheckConstraint("outcome IN ('hit', 'no_match', 'abstained')", name="outcome"),
        CheckConstraint(
            "(outcome = 'hit') = (fact_id IS NOT NULL AND fact_version IS NOT NULL)", name="evidence"
        ),
        Index("attribution_fact_id_idx", "fact_id"),
    )

    generation_id: Mapped[int] = mapped_column(
        ForeignKey("generation.id", ondelete="CASCADE"), primary_key=True
    )
    ordinal: Mapped[int] = mapped_column(Integer, primary_key=True)
    output_start: Mapped[int] = mapped_column(Integer)
    output_end: Mapped[int] = mapped_column(Integer)
    fact_id: Mapped[int | None]
    fact_version: Mapped[int | None] = mapped_column(Integer)
    score: Mapped[float | None] = mapped_column(Float)
    outcome: Mapped[str]
    query: Mapped[bytes | None]


class Tombstone(Base):
    """A deleted fact whose keys stay in the index on purpose: a query that points at it gets no match."""

    __tablename__ = "tombstone"

    fact_id: Mapped[int] = mapped_column(ForeignKey("fact.id"), primary_key=True, autoincrement=False)
    seq: Mapped[int]


class Suppression(Base):
    """Keyed digests of what was erased, so that an ingest does not bring it back unasked."""

    __tablename__ = "suppression"

    digest: Mapped[bytes] = mapped_column(primary_key=True)
    seq: Mapped[int]


class ForgetRun(Base):
    """A set of facts chosen for forgetting: the plan, what was done, and the evidence that it held."""

    __tablename__ = "forget_run"
    __table_args__ = (
        CheckConstraint(f"state IN {forget_states}", name="state"),
        CheckConstraint(f"policy IN {forget_policies}", name="policy"),
    )

    id: Mapped[int] = mapped_column(Identity(always=True), primary_key=True)
    state: Mapped[str]
    policy: Mapped[str]
    selector: Mapped[dict[str, Any]]
    fact_ids: Mapped[list[int]]
    plan: Mapped[dict[str, Any]]
    verification: Mapped[dict[str, Any] | None]
    certificate: Mapped[dict[str, Any] | None]
    planned_seq: Mapped[int]
    applied_seq: Mapped[int | None]
    restored_seq: Mapped[int | None]
    actor: Mapped[str]
    reason: Mapped[str]
    at: Mapped[datetime] = mapped_column(server_default=func.now())


class Job(Base):
    """Long work as people see it. `ticket` is what a worker must hold to write to it: `kb.jobs.tickets`."""

    __tablename__ = "job"
    __table_args__ = (
        CheckConstraint(f"state IN {job_states}", name="state"),
        Index("job_unfinished_idx", "id", postgresql_where=text("state IN ('queued', 'running')")),
    )

    id: Mapped[int] = mapped_column(Identity(always=True), primary_key=True)
    kind: Mapped[str]
    arguments: Mapped[dict[str, Any]]
    actor: Mapped[str]
    request_id: Mapped[str | None]
    state: Mapped[str]
    ticket: Mapped[int | None]
    done: Mapped[int] = mapped_column(server_default=text("0"))
    total: Mapped[int | None]
    message: Mapped[str | None]
    result: Mapped[dict[str, Any] | None]
    error: Mapped[dict[str, Any] | None]
    attempts: Mapped[int] = mapped_column(Integer, server_default=text("0"))
    cancelled_by: Mapped[str | None]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
    heartbeat_at: Mapped[datetime | None]


class ApiKey(Base):
    """Who may call the API. Only digests of secrets are kept; `previous_*` is the secret before the last rotation."""

    __tablename__ = "api_key"
    __table_args__ = (
        CheckConstraint(f"role IN {roles}", name="role"),
        CheckConstraint("rate_limit > 0", name="rate_limit"),
    )

    id: Mapped[int] = mapped_column(Identity(always=True), primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    key_hash: Mapped[bytes] = mapped_column(unique=True)
    role: Mapped[str]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    revoked_at: Mapped[datetime | None]
    prefix: Mapped[str | None]
    expires_at: Mapped[datetime | None]
    last_used_at: Mapped[datetime | None]
    rate_limit: Mapped[int | None] = mapped_column(Integer)
    rotated_at: Mapped[datetime | None]
    previous_hash: Mapped[bytes | None] = mapped_column(unique=True)
    previous_until: Mapped[datetime | None]
    previous_used_at: Mapped[datetime | None]


class Idempotency(Base):
    """An edit that was asked for under a name of the caller's, and its answer: the same request gets it again.

    `claim` names the run that may edit under it, and `seq` is that run's last change, set in its transaction.
    """

    __tablename__ = "idempotency"
    __table_args__ = (UniqueConstraint("api_key_id", "key"),)

    id: Mapped[int] = mapped_column(Identity(always=True), primary_key=True)
    api_key_id: Mapped[int] = mapped_column(ForeignKey("api_key.id"))
    key: Mapped[str]
    request_sha256: Mapped[bytes]
    claim: Mapped[str]
    claimed_at: Mapped[datetime] = mapped_column(server_default=func.now(), index=True)
    seq: Mapped[int | None]
    status: Mapped[int | None] = mapped_column(Integer)
    media_type: Mapped[str | None]
    body: Mapped[bytes | None]


class ErasureRequest(Base):
    """An erasure that waits for, or was decided by, a second person's key."""

    __tablename__ = "erasure_request"
    __table_args__ = (
        CheckConstraint(f"state IN {erasure_states}", name="state"),
        CheckConstraint("state <> 'approved' OR decided_by <> asked_by", name="two"),
    )

    id: Mapped[int] = mapped_column(Identity(always=True), primary_key=True)
    state: Mapped[str]
    fact_ids: Mapped[list[int]]
    actor: Mapped[str]
    reason: Mapped[str]
    asked_by: Mapped[int] = mapped_column(ForeignKey("api_key.id"))
    at: Mapped[datetime] = mapped_column(server_default=func.now())
    decided_by: Mapped[int | None] = mapped_column(ForeignKey("api_key.id"))
    decided_at: Mapped[datetime | None]
    seq: Mapped[int | None]


class Denial(Base):
    """A request that was refused for who asked it. `num_unrecorded` were refused before it and only logged."""

    __tablename__ = "denial"

    id: Mapped[int] = mapped_column(Identity(always=True), primary_key=True)
    at: Mapped[datetime] = mapped_column(server_default=func.now(), index=True)
    request_id: Mapped[str]
    actor: Mapped[str | None]
    method: Mapped[str]
    path: Mapped[str]
    status: Mapped[int] = mapped_column(Integer)
    cause: Mapped[str]
    num_unrecorded: Mapped[int]


class Secret(Base):
    """Random bytes of this database, made by the first migration: they key the digests in the change log."""

    __tablename__ = "secret"

    name: Mapped[str] = mapped_column(primary_key=True)
    value: Mapped[bytes]
