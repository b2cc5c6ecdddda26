"""Adds which files a corpus was filled from by a sync, with a digest of each and the documents it gave."""

from __future__ import annotations

from colmlm.migrations.statements import run

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None

UPGRADE = """
CREATE TABLE synced_file (
    corpus text NOT NULL,
    path text NOT NULL,
    part bigint NOT NULL,
    digest text,
    documents text[] NOT NULL,
    PRIMARY KEY (corpus, path, part)
)
"""
DOWNGRADE = "DROP TABLE synced_file"


def upgrade() -> None:
    run(UPGRADE)


def downgrade() -> None:
    run(DOWNGRADE)
