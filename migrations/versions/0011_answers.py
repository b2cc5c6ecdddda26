"""Adds what makes an output a quotation: the stretch of a document that it says, and parts of facts' values in it.

No column is given by the release before, whose outputs quote nothing and splice whole values.
"""

from __future__ import annotations

from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

UPGRADE = """
ALTER TABLE generation
    ADD COLUMN document_id bigint,
    ADD COLUMN quoted_start integer,
    ADD COLUMN quoted_end integer,
    ADD CONSTRAINT generation_quoted_check CHECK (
        num_nonnulls(document_id, quoted_start, quoted_end) IN (0, 3)
        AND quoted_start >= 0 AND quoted_start < quoted_end
    );

ALTER TABLE attribution
    ADD COLUMN part_start integer,
    ADD COLUMN part_end integer,
    ADD COLUMN quoted_start integer,
    ADD COLUMN quoted_end integer,
    ADD CONSTRAINT attribution_part_check CHECK (
        num_nonnulls(part_start, part_end) IN (0, 2) AND part_start >= 0 AND part_start < part_end
    ),
    ADD CONSTRAINT attribution_quoted_check CHECK (
        num_nonnulls(quoted_start, quoted_end) IN (0, 2) AND quoted_start >= 0 AND quoted_start < quoted_end
    );
"""

DOWNGRADE = """
ALTER TABLE attribution
    DROP COLUMN quoted_end, DROP COLUMN quoted_start, DROP COLUMN part_end, DROP COLUMN part_start;
ALTER TABLE generation DROP COLUMN quoted_end, DROP COLUMN quoted_start, DROP COLUMN document_id;
"""


def upgrade() -> None:
    op.execute(UPGRADE)


def downgrade() -> None:
    op.execute(DOWNGRADE)
