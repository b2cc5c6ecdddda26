"""Adds whether outputs, and runs of kept questions, were asked for without proposed facts."""

from __future__ import annotations

from colmlm.migrations.statements import run

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None

# The defaults are constant, so no row is rewritten.
UPGRADE = """
ALTER TABLE generation ADD COLUMN accepted_only boolean NOT NULL DEFAULT false;
ALTER TABLE question_run ADD COLUMN accepted_only boolean NOT NULL DEFAULT false;
"""
DOWNGRADE = """
ALTER TABLE question_run DROP COLUMN accepted_only;
ALTER TABLE generation DROP COLUMN accepted_only;
"""


def upgrade() -> None:
    run(UPGRADE)


def downgrade() -> None:
    run(DOWNGRADE)
