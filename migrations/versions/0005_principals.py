"""Adds the principal of a job, and on whose behalf a forget run was planned or an erasure was requested."""

from __future__ import annotations

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

UPGRADE = """
ALTER TABLE job ADD COLUMN principal jsonb;
ALTER TABLE forget_run ADD COLUMN on_behalf_of text;
ALTER TABLE erasure_request ADD COLUMN on_behalf_of text;
"""

DOWNGRADE = """
ALTER TABLE erasure_request DROP COLUMN on_behalf_of;
ALTER TABLE forget_run DROP COLUMN on_behalf_of;
ALTER TABLE job DROP COLUMN principal;
"""


def upgrade() -> None:
    op.execute(UPGRADE)


def downgrade() -> None:
    op.execute(DOWNGRADE)
