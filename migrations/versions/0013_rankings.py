"""Adds what the lookups of a stored output were ranked by.

The release before knows the key alone, which is the default.
"""

from __future__ import annotations

from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

UPGRADE = """
ALTER TABLE generation
    ADD COLUMN ranking text NOT NULL DEFAULT 'key',
    ADD CONSTRAINT generation_ranking_check CHECK (ranking IN ('key', 'words', 'reader'));
"""

DOWNGRADE = "ALTER TABLE generation DROP COLUMN ranking;"


def upgrade() -> None:
    op.execute(UPGRADE)


def downgrade() -> None:
    op.execute(DOWNGRADE)
