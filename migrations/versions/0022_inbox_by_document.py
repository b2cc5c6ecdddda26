"""Indexes what is proposed by document and not by id alone, so that a corpus has its own part of the index.

Where there are facts already, the index is built before the migration, while edits go on.
"""

from __future__ import annotations

from sqlalchemy import Connection

from colmlm.migrations.statements import build_beforehand, building, run

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None

PROPOSED = "WHERE review = 'proposed' AND deleted_seq IS NULL"
INDEXES = {"fact_inbox_idx": f"fact ((doubt IS NULL), coalesce(document_id, 0), id) {PROPOSED}"}
UPGRADE = ";\n".join([*building(INDEXES), "DROP INDEX fact_proposed_idx"])
DOWNGRADE = f"""
CREATE INDEX fact_proposed_idx ON fact ((doubt IS NULL), id) {PROPOSED};
DROP INDEX {", ".join(INDEXES)}
"""


def beforehand(connection: Connection) -> None:
    """Builds the index of a base that has facts; what is there already stays."""
    build_beforehand(connection, INDEXES)


def upgrade() -> None:
    run(UPGRADE)


def downgrade() -> None:
    run(DOWNGRADE)
