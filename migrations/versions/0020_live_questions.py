"""Indexes what live facts ask, in place of what all facts ask: a deletion writes nothing into it.

Where there are facts already, the index is built before the migration, while edits go on.
"""

from __future__ import annotations

from sqlalchemy import Connection

from colmlm.migrations.statements import build_beforehand, building, run

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

INDEXES = {
    "fact_live_asked_idx": "fact (asked_as(question), id) WHERE question IS NOT NULL AND deleted_seq IS NULL"
}
UPGRADE = ";\n".join([*building(INDEXES), "DROP INDEX fact_asked_idx"])
DOWNGRADE = f"""
CREATE INDEX fact_asked_idx ON fact (asked_as(question), id) WHERE question IS NOT NULL;
DROP INDEX {", ".join(INDEXES)}
"""


def beforehand(connection: Connection) -> None:
    """Builds the index of a base that has facts; what is there already stays."""
    build_beforehand(connection, INDEXES)


def upgrade() -> None:
    run(UPGRADE)


def downgrade() -> None:
    run(DOWNGRADE)
