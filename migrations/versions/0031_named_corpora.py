"""Keeps with an output, and with a run of questions, which corpora were named; none: all of them."""

from __future__ import annotations

from colmlm.migrations.statements import run

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None


UPGRADE = """
ALTER TABLE generation ADD COLUMN corpora text[] NOT NULL DEFAULT '{}';
ALTER TABLE question_run ADD COLUMN corpora text[] NOT NULL DEFAULT '{}';
"""


def upgrade() -> None:
    run(UPGRADE)


def downgrade() -> None:
    run("ALTER TABLE question_run DROP COLUMN corpora")
    run("ALTER TABLE generation DROP COLUMN corpora")
