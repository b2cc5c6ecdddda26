"""Keeps with an output who was authenticated to ask for it, as the log keeps that of a change."""

from __future__ import annotations

from colmlm.migrations.statements import run

revision = "0034"
down_revision = "0033"
branch_labels = None
depends_on = None

UPGRADE = "ALTER TABLE generation ADD COLUMN principal jsonb"


def upgrade() -> None:
    run(UPGRADE)


def downgrade() -> None:
    run("ALTER TABLE generation DROP COLUMN principal")
