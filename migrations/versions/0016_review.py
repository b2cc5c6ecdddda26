"""Adds the review of facts: which of them are proposed, accepted or rejected, and where only accepted ones answer.

Where there are facts already, the columns and their indexes are made before the migration, while edits go on.
"""

from __future__ import annotations

from alembic import op
from sqlalchemy import Connection, text

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
UPGRADE = ";\n".join(
    [COLUMNS, *(f"CREATE INDEX IF NOT EXISTS {name} ON {on}" for name, on in INDEXES.items()), LIMITS]
)
DOWNGRADE = """
DROP TABLE corpus_review;
ALTER TABLE keyset DROP COLUMN accepted_only;
ALTER TABLE fact DROP COLUMN review, DROP COLUMN review_seq, DROP COLUMN doubt;
"""

_BROKEN = text("""
SELECT c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
WHERE NOT i.indisvalid AND c.relname = ANY(:names) AND c.relnamespace = current_schema()::regnamespace
""")


def beforehand(connection: Connection) -> None:
    """Adds the columns and builds their indexes, each in a transaction of its own; what is there already stays."""
    connection.exec_driver_sql(COLUMNS, execution_options={"no_parameters": True})
    for name in connection.scalars(_BROKEN, {"names": list(INDEXES)}).all():
        connection.execute(text(f"DROP INDEX CONCURRENTLY {name}"))
    for name, on in INDEXES.items():
        connection.execute(text(f"CREATE INDEX CONCURRENTLY IF NOT EXISTS {name} ON {on}"))


def upgrade() -> None:
    _run(UPGRADE)


def downgrade() -> None:
    _run(DOWNGRADE)


def _run(statements: str) -> None:
    op.get_bind().exec_driver_sql(statements, execution_options={"no_parameters": True})
