"""Lets a document's fact be without a span, and a key be adopted: both come with releases that others publish.

The new conditions are weaker than the former ones. They are checked before the migration, while edits go on, and only
renamed within it, so that no edit waits for the tables to be read.
"""

from __future__ import annotations

from sqlalchemy import Connection, text

from colmlm.migrations.statements import run

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None

SPAN = "document_id IS NOT NULL OR span_start IS NULL"
ENDS = "num_nonnulls(span_start, span_end) <> 1"
KIND = "kind IN ('context', 'question', 'alias', 'adopted')"
CONDITIONS = (
    ("fact", "fact_span_check", SPAN),
    ("fact", "fact_ends_check", ENDS),
    ("fact_key", "fact_key_kind_check", KIND),
)
UPGRADE = """
ALTER TABLE fact DROP CONSTRAINT fact_span_check;
ALTER TABLE fact_key DROP CONSTRAINT fact_key_kind_check;
""" + ";\n".join(
    f"ALTER TABLE {table} RENAME CONSTRAINT {name}_next TO {name}" for table, name, _ in CONDITIONS
)
DOWNGRADE = """
ALTER TABLE fact DROP CONSTRAINT fact_span_check, DROP CONSTRAINT fact_ends_check,
    ADD CONSTRAINT fact_span_check CHECK ((document_id IS NULL) = (span_start IS NULL));
ALTER TABLE fact_key DROP CONSTRAINT fact_key_kind_check,
    ADD CONSTRAINT fact_key_kind_check CHECK (kind IN ('context', 'question', 'alias'));
"""
_IS_THERE = text("SELECT EXISTS (SELECT FROM pg_constraint WHERE conname = :name)")


def beforehand(connection: Connection) -> None:
    """Adds the new conditions beside the former ones and checks them; edits go on meanwhile."""
    _add(connection)
    for table, name, _ in CONDITIONS:
        connection.execute(text(f"ALTER TABLE {table} VALIDATE CONSTRAINT {name}_next"))


def _add(connection: Connection) -> None:
    for table, name, condition in CONDITIONS:
        if not connection.scalar(_IS_THERE, {"name": f"{name}_next"}):
            adding = f"ALTER TABLE {table} ADD CONSTRAINT {name}_next CHECK ({condition}) NOT VALID"
            connection.execute(text(adding))


def upgrade() -> None:
    from alembic import op

    beforehand(op.get_bind())  # a new database has nothing to check
    run(UPGRADE)


def downgrade() -> None:
    run(DOWNGRADE)
