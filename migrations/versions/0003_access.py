"""Adds access: more roles, expiry, rotation and rate limits of API keys, idempotency, erasure requests and denials.

A reader stays a reader; an editor becomes an operator and an operator an admin, which have the same rights.
"""

from __future__ import annotations

from colmlm.migrations.statements import run

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

UPGRADE = """
ALTER TABLE api_key
    ADD COLUMN prefix           text,
    ADD COLUMN expires_at       timestamptz,
    ADD COLUMN last_used_at     timestamptz,
    ADD COLUMN rate_limit       integer CONSTRAINT api_key_rate_limit_check CHECK (rate_limit > 0),
    ADD COLUMN rotated_at       timestamptz,
    ADD COLUMN previous_hash    bytea CONSTRAINT api_key_previous_hash_key UNIQUE,
    ADD COLUMN previous_until   timestamptz,
    ADD COLUMN previous_used_at timestamptz,
    DROP CONSTRAINT api_key_role_check;
UPDATE api_key SET role = CASE role WHEN 'operator' THEN 'admin' WHEN 'editor' THEN 'operator' ELSE role END;
ALTER TABLE api_key ADD CONSTRAINT api_key_role_check
    CHECK (role IN ('decoder', 'reader', 'operator', 'auditor', 'trainer', 'admin'));

CREATE TABLE idempotency (
    id             bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT idempotency_pkey PRIMARY KEY,
    api_key_id     bigint NOT NULL CONSTRAINT idempotency_api_key_id_fkey REFERENCES api_key,
    key            text NOT NULL,
    request_sha256 bytea NOT NULL,
    claim          text NOT NULL,
    claimed_at     timestamptz NOT NULL DEFAULT now(),
    seq            bigint,
    status         integer,
    media_type     text,
    body           bytea,
    CONSTRAINT idempotency_api_key_id_key_key UNIQUE (api_key_id, key)
);
CREATE INDEX idempotency_claimed_at_idx ON idempotency (claimed_at);

CREATE TABLE erasure_request (
    id           bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT erasure_request_pkey PRIMARY KEY,
    state        text NOT NULL,
    fact_ids     bigint[] NOT NULL,
    actor        text NOT NULL,
    reason       text NOT NULL,
    asked_by     bigint NOT NULL CONSTRAINT erasure_request_asked_by_fkey REFERENCES api_key,
    at           timestamptz NOT NULL DEFAULT now(),
    decided_by   bigint CONSTRAINT erasure_request_decided_by_fkey REFERENCES api_key,
    decided_at   timestamptz,
    seq          bigint,
    CONSTRAINT erasure_request_state_check CHECK (state IN ('waiting', 'approved', 'withdrawn')),
    CONSTRAINT erasure_request_two_check CHECK (state <> 'approved' OR decided_by <> asked_by)
);

CREATE TABLE denial (
    id             bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT denial_pkey PRIMARY KEY,
    at             timestamptz NOT NULL DEFAULT now(),
    request_id     text NOT NULL,
    actor          text,
    method         text NOT NULL,
    path           text NOT NULL,
    status         integer NOT NULL,
    cause          text NOT NULL,
    num_unrecorded bigint NOT NULL
);
CREATE INDEX denial_at_idx ON denial (at);
"""

# An API key whose role did not exist before is revoked, since no earlier role is as narrow as `decoder`.
DOWNGRADE = """
DROP TABLE denial, erasure_request, idempotency;
ALTER TABLE api_key DROP CONSTRAINT api_key_role_check;
UPDATE api_key SET revoked_at = coalesce(revoked_at, now()) WHERE role IN ('decoder', 'auditor', 'trainer');
UPDATE api_key SET role = CASE role WHEN 'admin' THEN 'operator' WHEN 'operator' THEN 'editor' ELSE 'reader' END;
ALTER TABLE api_key
    ADD CONSTRAINT api_key_role_check CHECK (role IN ('reader', 'editor', 'operator')),
    DROP COLUMN prefix,
    DROP COLUMN expires_at,
    DROP COLUMN last_used_at,
    DROP COLUMN rate_limit,
    DROP COLUMN rotated_at,
    DROP COLUMN previous_hash,
    DROP COLUMN previous_until,
    DROP COLUMN previous_used_at;
"""


def upgrade() -> None:
    run(UPGRADE)


def downgrade() -> None:
    run(DOWNGRADE)
