"""Adds the review of facts: what of them is proposed, accepted or rejected, and where only accepted ones answer.

Where there are facts already, the column and its index are built before the migration, while edits go on.
"""

from __future__ import annotations

from alembic import op
from sqlalchemy import Connection, text

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

INDEX = "fact_proposed_idx"
ON = "fact (id) WHERE review = 'proposed'"

# The log's lock keeps edits apart from the change of their table. The default is constant, so no fact is rewritten.
COLUMNS = """
SELECT pg_advisory_xact_lock(427071139074);
ALTER TABLE fact
    ADD COLUMN IF NOT EXISTS review text NOT NULL DEFAULT 'accepted'
        CONSTRAINT fact_review_check CHECK (review IN ('proposed', 'accepted', 'rejected')),
    ADD COLUMN IF NOT EXISTS review_seq bigint,
    ADD COLUMN IF NOT EXISTS doubt text;
"""
UPGRADE = f"""
{COLUMNS}
CREATE INDEX IF NOT EXISTS {INDEX} ON {ON};
ALTER TABLE keyset ADD COLUMN accepted_only boolean NOT NULL DEFAULT false;
CREATE TABLE corpus_review (
    corpus        text NOT NULL CONSTRAINT corpus_review_pkey PRIMARY KEY,
    accepted_only boolean NOT NULL,
    seq           bigint NOT NULL
);
"""
DOWNGRADE = """
DROP TABLE corpus_review;
ALTER TABLE keyset DROP COLUMN accepted_only;
ALTER TABLE fact DROP COLUMN review, DROP COLUMN review_seq, DROP COLUMN doubt;
"""

_IS_BROKEN = text("""
SELECT 1 FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
WHERE NOT i.indisvalid AND c.relname = :name AND c.relnamespace = current_schema()::regnamespace
""")


def beforehand(connection: Connection) -> None:
    """Adds the column and builds its index, each in a transaction of its own; what is there already stays."""
    connection.exec_driver_sql(COLUMNS, execution_options={"no_parameters": True})
    if connection.execute(_IS_BROKEN, {"name": INDEX}).first() is not None:
        connection.execute(text(f"DROP INDEX CONCURRENTLY {INDEX}"))
    connection.execute(text(f"CREATE INDEX CONCURRENTLY IF NOT EXISTS {INDEX} ON {ON}"))


def upgrade() -> None:
    op.get_bind().exec_driver_sql(UPGRADE, execution_options={"no_parameters": True})


def downgrade() -> None:
    op.get_bind().exec_driver_sql(DOWNGRADE, execution_options={"no_parameters": True})
