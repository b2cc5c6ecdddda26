"""Keep with a browser's session which session of its identity provider it is of, and which logouts were told."""

from __future__ import annotations

from colmlm.migrations.statements import run

revision = "0039"
down_revision = "0038"
branch_labels = None
depends_on = None

UPGRADE = """
ALTER TABLE browser_session ADD COLUMN sid_hash bytea;
CREATE TABLE provider_logout (
    jti_hash bytea PRIMARY KEY,
    sid_hash bytea,
    expires_at timestamp with time zone NOT NULL
);
"""


def upgrade() -> None:
    run(UPGRADE)


def downgrade() -> None:
    run("DROP TABLE provider_logout")
    run("ALTER TABLE browser_session DROP COLUMN sid_hash")
