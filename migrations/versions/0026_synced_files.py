"""Adds which folder a corpus follows, and its files as a sync read them, each with a digest and its documents."""

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
);
CREATE TABLE synced_folder (
    corpus text PRIMARY KEY,
    places text[] NOT NULL
)
"""
DOWNGRADE = "DROP TABLE synced_file, synced_folder"


def upgrade() -> None:
    run(UPGRADE)


def downgrade() -> None:
    run(DOWNGRADE)
