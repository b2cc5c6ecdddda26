"""Adds the review of facts: which of them are proposed, accepted or rejected, and where only accepted ones answer.

Where there are facts already, the columns and their indexes are made before the migration, while edits go on.
"""

from __future__ import annotations

from sqlalchemy import Connection

from colmlm.migrations.statements import build_beforehand, building, run

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

# The log's lock keeps edits apart from the change of their table. The default is constant, so no fact is rewritten.
COLUMNS = """
SELECT pg_advisory_xact_lock(427071139074);
ALTER TABLE fact
    ADD COLUMN IF NOT EXISTS review text NOT NULL DEFAULT 'accepted'
        CONSTRAINT fact_review_check CHECK (review IN ('proposed', 'accepted', 'rejected')),
    ADD COLUMN IF NOT EXISTS review_seq bigint,
    ADD COLUMN IF NOT EXISTS doubt text;
"""
INDEXES = {
    "fact_proposed_idx": "fact ((doubt IS NULL), id) WHERE review = 'proposed' AND deleted_seq IS NULL",
    "fact_reviewed_idx": "fact (review) WHERE review_seq IS NOT NULL",
}
LIMITS = """
ALTER TABLE keyset ADD COLUMN accepted_only boolean NOT NULL DEFAULT false;
CREATE TABLE corpus_review (
    corpus        text NOT NULL CONSTRAINT corpus_review_pkey PRIMARY KEY,
    accepted_only boolean NOT NULL,
    seq           bigint NOT NULL
);
"""
UPGRADE = ";\n".join([COLUMNS, *building(INDEXES), LIMITS])
DOWNGRADE = """
DROP TABLE corpus_review;
ALTER TABLE keyset DROP COLUMN accepted_only;
ALTER TABLE fact DROP COLUMN review, DROP COLUMN review_seq, DROP COLUMN doubt;
"""


def beforehand(connection: Connection) -> None:
    """Adds the columns and builds their indexes, each in a transaction of its own; what is there already stays."""
    run(COLUMNS, connection)
    build_beforehand(connection, INDEXES)


def upgrade() -> None:
    run(UPGRADE)


def downgrade() -> None:
    run(DOWNGRADE)
