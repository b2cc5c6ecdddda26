"""Adds what a keyset's snapshot in the shared place has to be: its file, digest, size, and the last change in it."""

from __future__ import annotations

from colmlm.migrations.statements import run

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None

UPGRADE = "ALTER TABLE keyset ADD COLUMN shared_snapshot jsonb"
DOWNGRADE = "ALTER TABLE keyset DROP COLUMN shared_snapshot"


def upgrade() -> None:
    run(UPGRADE)


def downgrade() -> None:
    run(DOWNGRADE)
