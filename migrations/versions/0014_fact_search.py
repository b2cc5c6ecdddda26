"""Indexes values and questions by their words, documents by their corpus, and the versions that ended.

Where there are facts already, the indexes are built before the migration, while edits go on.
"""

from __future__ import annotations

from sqlalchemy import Connection

from colmlm.migrations.statements import build_beforehand, building, run

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

# What joins words for the parser of text search, as in hosts, paths and decimals, is taken for a blank.
FUNCTION = """
CREATE OR REPLACE FUNCTION words_of(said text) RETURNS tsvector LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT to_tsvector('pg_catalog.simple', translate(left(said, 10000), '._-/@:+&<>~%''', '             '))
$$
"""
INDEXES = {
    "document_corpus_idx": "document (corpus, id)",
    "fact_question_words_idx": "fact USING gin (words_of(question))",
    "fact_version_value_words_idx": "fact_version USING gin (words_of(value))",
    "fact_version_ended_idx": "fact_version (fact_id) WHERE to_seq IS NOT NULL",
}
UPGRADE = ";\n".join(
    [FUNCTION, *building(INDEXES), "ANALYZE document", "ANALYZE fact", "ANALYZE fact_version"]
)
DOWNGRADE = f"DROP INDEX {', '.join(INDEXES)}; DROP FUNCTION words_of"


def beforehand(connection: Connection) -> None:
    """Builds the indexes of a base that has facts, each in a transaction of its own; what is there already stays."""
    run(FUNCTION, connection)
    build_beforehand(connection, INDEXES)


def upgrade() -> None:
    run(UPGRADE)


def downgrade() -> None:
    run(DOWNGRADE)
