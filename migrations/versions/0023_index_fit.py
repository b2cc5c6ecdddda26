"""Adds how a keyset's index was fitted to its keys: its spec, and how many of its lists a search reads."""

from __future__ import annotations

from colmlm.migrations.statements import run

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None

UPGRADE = "ALTER TABLE keyset ADD COLUMN index_fit jsonb"
DOWNGRADE = "ALTER TABLE keyset DROP COLUMN index_fit"


def upgrade() -> None:
    run(UPGRADE)


def downgrade() -> None:
    run(DOWNGRADE)
