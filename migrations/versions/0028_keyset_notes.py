"""Adds to keysets the records of their fit and their shared snapshot whole, and up to which key no question has one.

The release before refuses a record with a name that it does not know, so its own columns keep to the names that it
knows.
"""

from __future__ import annotations

from colmlm.migrations.statements import run

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None

UPGRADE = """
ALTER TABLE keyset
    ADD COLUMN whole_index_fit jsonb,
    ADD COLUMN whole_shared_snapshot jsonb,
    ADD COLUMN no_question_keys_upto bigint;
"""
DOWNGRADE = """
ALTER TABLE keyset
    DROP COLUMN whole_index_fit,
    DROP COLUMN whole_shared_snapshot,
    DROP COLUMN no_question_keys_upto;
"""


def upgrade() -> None:
    run(UPGRADE)


def downgrade() -> None:
    run(DOWNGRADE)
