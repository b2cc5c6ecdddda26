"""Give people of an identity provider a token without a secret, and their browsers sessions with their groups.

A session keeps which session of the provider it is of, and the base keeps which logouts the provider told.
"""

from __future__ import annotations

from colmlm.migrations.statements import run

revision = "0035"
down_revision = "0034"
branch_labels = None
depends_on = None


UPGRADE = """
ALTER TABLE api_key ADD COLUMN issuer text;
ALTER TABLE api_key ADD COLUMN subject text;
ALTER TABLE api_key ADD CONSTRAINT api_key_issuer_subject_key UNIQUE (issuer, subject);
ALTER TABLE api_key ADD CONSTRAINT api_key_subject_check CHECK ((issuer IS NULL) = (subject IS NULL));
ALTER TABLE browser_session ADD COLUMN groups text[];
ALTER TABLE browser_session ADD COLUMN state_hash bytea;
ALTER TABLE browser_session ADD CONSTRAINT browser_session_state_hash_key UNIQUE (state_hash);
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
    run("DELETE FROM browser_session WHERE groups IS NOT NULL")
    run("ALTER TABLE browser_session DROP COLUMN state_hash")
    run("ALTER TABLE browser_session DROP COLUMN groups")
    run("UPDATE api_key SET revoked_at = now() WHERE issuer IS NOT NULL AND revoked_at IS NULL")
    run("ALTER TABLE api_key DROP CONSTRAINT api_key_subject_check")
    run("ALTER TABLE api_key DROP COLUMN subject")
    run("ALTER TABLE api_key DROP COLUMN issuer")
