"""Adds browser sessions: after signing in, a cookie holds the secret of one, and no longer the API key itself."""

from __future__ import annotations

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

UPGRADE = """
CREATE TABLE browser_session (
    id           bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT browser_session_pkey PRIMARY KEY,
    secret_hash  bytea NOT NULL CONSTRAINT browser_session_secret_hash_key UNIQUE,
    api_key_id   bigint NOT NULL CONSTRAINT browser_session_api_key_id_fkey REFERENCES api_key,
    created_at   timestamptz NOT NULL DEFAULT now(),
    expires_at   timestamptz NOT NULL,
    last_used_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX browser_session_api_key_id_idx ON browser_session (api_key_id);
"""

DOWNGRADE = "DROP TABLE browser_session;"


def upgrade() -> None:
    op.execute(UPGRADE)


def downgrade() -> None:
    op.execute(DOWNGRADE)
