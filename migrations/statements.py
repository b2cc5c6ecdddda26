"""Statements of migrations: run as they stand, and indexes that are built while edits go on."""

from __future__ import annotations

from alembic import op
from sqlalchemy import Connection, text

_BROKEN = text("""
SELECT c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
WHERE NOT i.indisvalid AND c.relname = ANY(:names) AND c.relnamespace = current_schema()::regnamespace
""")


def run(statements: str) -> None:
    """Run statements as they stand, % and colons too, on the connection of the migration."""
    op.get_bind().exec_driver_sql(statements, execution_options={"no_parameters": True})


def building(indexes: dict[str, str]) -> list[str]:
    """Give the statements that build, within a migration, those indexes that were not built beforehand."""
    return [f"CREATE INDEX IF NOT EXISTS {name} ON {on}" for name, on in indexes.items()]


def build_beforehand(connection: Connection, indexes: dict[str, str]) -> None:
    """Build indexes while edits go on, each in a transaction of its own; what is there already stays.

    An index whose building was broken off is dropped first: the database keeps it, and never uses it.
    """
    for name in connection.scalars(_BROKEN, {"names": list(indexes)}).all():
        connection.execute(text(f"DROP INDEX CONCURRENTLY {name}"))
    for name, on in indexes.items():
        connection.execute(text(f"CREATE INDEX CONCURRENTLY IF NOT EXISTS {name} ON {on}"))
