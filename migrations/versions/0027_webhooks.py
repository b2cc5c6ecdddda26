"""Adds webhooks: who is told of which changes, how far they were told, and what went wrong since."""

from __future__ import annotations

from colmlm.migrations.statements import run

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None

UPGRADE = """
CREATE TABLE webhook (
    id              bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT webhook_pkey PRIMARY KEY,
    url             text NOT NULL,
    kinds           text[] NOT NULL,
    format          text NOT NULL,
    secret          bytea NOT NULL,
    state           text NOT NULL DEFAULT 'active',
    delivered_seq   bigint NOT NULL,
    attempts        integer NOT NULL DEFAULT 0,
    created_at      timestamptz NOT NULL DEFAULT now(),
    delivered_at    timestamptz,
    failing_since   timestamptz,
    next_attempt_at timestamptz,
    last_error      text,
    CONSTRAINT webhook_format_check CHECK (format IN ('standard', 'cloudevents')),
    CONSTRAINT webhook_state_check CHECK (state IN ('active', 'paused', 'failed'))
);
"""

DOWNGRADE = "DROP TABLE webhook;"


def upgrade() -> None:
    run(UPGRADE)


def downgrade() -> None:
    run(DOWNGRADE)
