"""Adds how a keyset's index was fitted to its keys: its spec, and how many of its lists a search reads."""

from __future__ import annotations

from colmlm.migrations.statements import run

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run("ALTER TABLE keyset ADD COLUMN index_fit jsonb")


def downgrade() -> None:
    run("ALTER TABLE keyset DROP COLUMN index_fit")
