"""Adds the calibrations of the score from which answers are given."""

from __future__ import annotations

from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

UPGRADE = """
CREATE TABLE answer_calibration (
    id        bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT answer_calibration_pkey PRIMARY KEY,
    seq       bigint NOT NULL,
    reader    text NOT NULL,
    threshold double precision NOT NULL,
    report    jsonb NOT NULL
);
"""

DOWNGRADE = "DROP TABLE answer_calibration"


def upgrade() -> None:
    op.execute(UPGRADE)


def downgrade() -> None:
    op.execute(DOWNGRADE)
