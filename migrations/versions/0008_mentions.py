"""Adds to a request to erase which mentions are redacted; null where an older release stored the request."""

from __future__ import annotations

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

UPGRADE = "ALTER TABLE erasure_request ADD COLUMN mentions text"

DOWNGRADE = "ALTER TABLE erasure_request DROP COLUMN mentions"


def upgrade() -> None:
    op.execute(UPGRADE)


def downgrade() -> None:
    op.execute(DOWNGRADE)
