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
    Contents,
    Digest,
    Figures,
    Name,
    NameObject,
    Names,
    TableRow,
    Word,
    Words,
)

roles = ("decoder", "reader", "operator", "auditor", "trainer", "admin")
erasure_states = ("waiting", "approved", "withdrawn")
hold_states = ("asked", "standing", "release-asked", "released", "withdrawn")
retention_actions = ("delete", "erase")
retention_starts = ("seen", "date")
webhook_formats = ("standard", "cloudevents")
webhook_states = ("active", "limited", "paused", "failed")  # limited: active, on some corpora
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
    """A token. Only digests of its secrets are stored; `previous_*` describe the secret before the last rotation.

    Its rights are on these `corpora` (NULL: on all of them, and on what belongs to none). The token of a person, whom
    the identity provider `issuer` calls `subject`, has no secret, and the role and corpora of its last use.
    """

    __tablename__ = "api_key"
    __table_args__ = (
        CheckConstraint(f"role IN {roles}", name="role"),
        CheckConstraint("rate_limit > 0", name="rate_limit"),
        CheckConstraint("corpora <> '{}'", name="corpora"),
        CheckConstraint("(issuer IS NULL) = (subject IS NULL)", name="subject"),
        UniqueConstraint("issuer", "subject"),
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
    corpora: Mapped[Names | None]
    issuer: Mapped[Name | None]
    subject: Mapped[Name | None]


class BrowserSessionRow(TableRow):
    """A browser that has signed in with a token. Only the digest of its cookie's secret is stored.

    The session of a person has the `groups` that the identity provider named, and digests of the state of its sign-on
    and of the name that the provider gives its own session (`sid`).
    """

    __tablename__ = "browser_session"

    id: Mapped[int] = mapped_column(Identity(always=True), primary_key=True)
    secret_hash: Mapped[bytes] = mapped_column(unique=True)
    api_key_id: Mapped[int] = mapped_column(ForeignKey("api_key.id"), index=True)
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    expires_at: Mapped[datetime]
    last_used_at: Mapped[datetime] = mapped_column(server_default=func.now())
    groups: Mapped[Names | None]
    state_hash: Mapped[bytes | None] = mapped_column(unique=True)
    sid_hash: Mapped[bytes | None]


class ProviderLogoutRow(TableRow):
    """A logout that an identity provider sent, kept so that it counts once, with digests of its `jti` and `sid`."""

    __tablename__ = "provider_logout"

    jti_hash: Mapped[bytes] = mapped_column(primary_key=True)
    sid_hash: Mapped[bytes | None]
    expires_at: Mapped[datetime]


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
    """An edit that was sent with an idempotency key, and its response, which the same request gets again.

    `claim` is the random id of the run that may do it, and `seq` is that run's last change, set in its transaction;
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
    """An erasure that waits for the decision of a second person's token, or was decided by it."""

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
    plan: Mapped[Figures | None]  # for a person: places, and no text (`kb.removal.persons`)


class HoldRow(TableRow):
    """A legal hold on facts, documents and corpora: nothing destroys them, or other texts of the same external id.

    It is in force from change `seq` to change `released_seq`. `selector` is not used yet. The
    functions `holds_on_document` and `holds_on_fact` of the database tell what a hold keeps.
    """

    __tablename__ = "hold"
    __table_args__ = (
        CheckConstraint(f"state IN {hold_states}", name="state"),
        CheckConstraint("approved_by <> asked_by", name="two"),
        CheckConstraint("release_approved_by <> release_asked_by", name="release_two"),
    )

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    state: Mapped[Word]
    fact_ids: Mapped[list[int]]
    document_ids: Mapped[list[int]]
    corpora: Mapped[Names]
    selector: Mapped[NameObject | None]
    actor: Mapped[Name]
    reason: Mapped[Name]
    at: Mapped[datetime] = mapped_column(server_default=func.now())
    asked_by: Mapped[int | None] = mapped_column(ForeignKey("api_key.id"))
    approved_by: Mapped[int | None] = mapped_column(ForeignKey("api_key.id"))
    seq: Mapped[int | None]
    release_actor: Mapped[Name | None]
    release_reason: Mapped[Name | None]
    release_at: Mapped[datetime | None]
    release_asked_by: Mapped[int | None] = mapped_column(ForeignKey("api_key.id"))
    release_approved_by: Mapped[int | None] = mapped_column(ForeignKey("api_key.id"))
    released_seq: Mapped[int | None]


class RetentionRuleRow(TableRow):
    """Record how long a corpus keeps its documents, as change `seq` set it. Without a row it keeps them for ever."""

    __tablename__ = "retention_rule"
    __table_args__ = (
        CheckConstraint("days > 0", name="days"),
        CheckConstraint(f"action IN {retention_actions}", name="action"),
        CheckConstraint(f"counts_from IN {retention_starts}", name="counts_from"),
    )

    corpus: Mapped[Name] = mapped_column(primary_key=True)
    days: Mapped[int] = mapped_column(Integer)
    action: Mapped[Word]
    counts_from: Mapped[Word]
    seq: Mapped[int]


class DenialRow(TableRow):
    """A request that was denied to its caller. `num_unrecorded` denials before it were only logged."""

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

    A webhook on `corpora` (NULL: on all) is sent what their callers see; its state is "limited", not "active". One
    that token `key_id` made is sent changes as long as the token may read the log of all of these corpora.

    The secret signs what is sent, so it is kept as it is, and read by senders alone. Backups leave this table out.
    """

    __tablename__ = "webhook"
    __table_args__ = (
        CheckConstraint(f"format IN {webhook_formats}", name="format"),
        CheckConstraint(f"state IN {webhook_states}", name="state"),
        CheckConstraint(
            "corpora <> '{}' AND (key_id IS NULL OR corpora IS NOT NULL)"
            " AND CASE WHEN corpora IS NULL THEN state <> 'limited' ELSE state <> 'active' END",
            name="corpora",
        ),
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
    corpora: Mapped[Names | None]
    key_id: Mapped[int | None] = mapped_column(ForeignKey("api_key.id"))


# The tables of misses, which are grouped into a work list and hold no text, and of what people said of
# outputs.

miss_states = ("open", "dismissed", "solved")
thumbs = ("up", "down")


class MissGroupRow(TableRow):
    """Misses whose queries are near that of lookup `ordinal` of output `generation_id`, and the decision on them.

    `asked` counts them, and `wrong` those of them that are outputs which somebody called wrong. `seq` is the change
    that decided, and `fact_id` the fact that it named.
    """

    __tablename__ = "miss_group"
    __table_args__ = (
        CheckConstraint(f"state IN {miss_states}", name="state"),
        Index("miss_group_asked_idx", "state", "asked", "id"),
        Index("miss_group_last_at_idx", "state", "last_at", "id"),
    )

    id: Mapped[int] = mapped_column(Identity(always=True), primary_key=True)
    state: Mapped[Word] = mapped_column(server_default=text("'open'"))
    asked: Mapped[int]
    wrong: Mapped[int]
    last_at: Mapped[datetime]
    generation_id: Mapped[int]
    ordinal: Mapped[int] = mapped_column(Integer)
    fact_id: Mapped[int | None]
    seq: Mapped[int | None]


class MissRow(TableRow):
    """A lookup that found nothing; with the ordinal -1 an output that somebody called wrong."""

    __tablename__ = "miss"
    __table_args__ = (
        Index("miss_group_id_idx", "group_id", "generation_id"),
        Index("miss_at_idx", "at"),
    )

    generation_id: Mapped[int] = mapped_column(
        ForeignKey("generation.id", ondelete="CASCADE"), primary_key=True
    )
    ordinal: Mapped[int] = mapped_column(Integer, primary_key=True)
    group_id: Mapped[int | None] = mapped_column(ForeignKey("miss_group.id"))
    at: Mapped[datetime] = mapped_column(server_default=func.now())


class FeedbackRow(TableRow):
    """Somebody's verdict on an output: a thumb, and perhaps a comment and the value that is right."""

    __tablename__ = "feedback"
    __table_args__ = (
        CheckConstraint(f"thumb IN {thumbs}", name="thumb"),
        Index("feedback_one_each_key", "generation_id", "actor", "on_behalf_of", unique=True),
    )

    id: Mapped[int] = mapped_column(Identity(always=True), primary_key=True)
    generation_id: Mapped[int] = mapped_column(ForeignKey("generation.id", ondelete="CASCADE"))
    thumb: Mapped[Word]
    comment: Mapped[Content | None]
    value: Mapped[Content | None]
    actor: Mapped[Name]
    on_behalf_of: Mapped[Content] = mapped_column(server_default=text("''"))
    at: Mapped[datetime] = mapped_column(server_default=func.now())


# The tables of questions with expected values, and of the runs that asked them.

ways_to_ask = ("read", "paper", "words", "reader")
question_outcomes = ("right", "wrong", "abstained")


class QuestionSetRow(TableRow):
    """A named set of questions, whose answers are looked for in a corpus (NULL: in all of them)."""

    __tablename__ = "question_set"

    id: Mapped[int] = mapped_column(Identity(always=True), primary_key=True)
    name: Mapped[Name] = mapped_column(unique=True)
    corpus: Mapped[Name | None]
    actor: Mapped[Name]
    at: Mapped[datetime] = mapped_column(server_default=func.now())


class QuestionRow(TableRow):
    """A question of a set, with the values that count as right (none: nothing should answer).

    `fact_ids` are the facts of the output that it was taken from; `at` is when its texts were given last.
    """

    __tablename__ = "question"
    __table_args__ = (Index("question_of_set_idx", "set_id", "id"),)

    id: Mapped[int] = mapped_column(Identity(always=True), primary_key=True)
    set_id: Mapped[int] = mapped_column(ForeignKey("question_set.id", ondelete="CASCADE"))
    text: Mapped[Content]
    expected: Mapped[Contents]
    fact_ids: Mapped[list[int]]
    at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())


class QuestionRunRow(TableRow):
    """One asking of all questions of a set, between changes `first_seq` and `seq` of the log."""

    __tablename__ = "question_run"
    __table_args__ = (
        CheckConstraint(f"how IN {ways_to_ask}", name="how"),
        Index("question_run_of_set_idx", "set_id", "id"),
    )

    id: Mapped[int] = mapped_column(Identity(always=True), primary_key=True)
    set_id: Mapped[int] = mapped_column(ForeignKey("question_set.id", ondelete="CASCADE"))
    how: Mapped[Word]
    threshold: Mapped[float] = mapped_column(Float)
    keyset_id: Mapped[int | None]
    checkpoint_id: Mapped[Name | None]
    reader: Mapped[Name | None]
    first_seq: Mapped[int]
    seq: Mapped[int]
    num_asked: Mapped[int] = mapped_column(Integer)
    num_right: Mapped[int] = mapped_column(Integer)
    num_wrong: Mapped[int] = mapped_column(Integer)
    num_abstained: Mapped[int] = mapped_column(Integer)
    num_skipped: Mapped[int] = mapped_column(Integer)
    actor: Mapped[Name]
    at: Mapped[datetime] = mapped_column(server_default=func.now())
    seconds: Mapped[float] = mapped_column(Float)
    accepted_only: Mapped[bool] = mapped_column(server_default=text("false"))
    corpora: Mapped[Names] = mapped_column(server_default=text("'{}'"))


class QuestionOutcomeRow(TableRow):
    """The outcome of one question in a run, with its texts as they were asked.

    `fact_ids` are the facts in the value, or the deleted facts of a withheld one. `seq` is the last change
    before the run.
    """

    __tablename__ = "question_outcome"
    __table_args__ = (
        CheckConstraint(f"outcome IN {question_outcomes}", name="outcome"),
        Index("question_outcome_of_run_idx", "run_id", "id"),
    )

    id: Mapped[int] = mapped_column(Identity(always=True), primary_key=True)
    run_id: Mapped[int] = mapped_column(ForeignKey("question_run.id", ondelete="CASCADE"))
    question_id: Mapped[int] = mapped_column(index=True)
    question: Mapped[Content]
    expected: Mapped[Contents]
    value: Mapped[Content | None]
    fact_id: Mapped[int | None]
    fact_ids: Mapped[list[int]]
    score: Mapped[float] = mapped_column(Float)
    outcome: Mapped[Word]
    reason: Mapped[Word | None]
    seq: Mapped[int]
