"""How far an erasure that was asked for reaches among mentions; null is where a release before asked."""

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
