"""Adds what facts asked and where they stood before that was mended, and which version of each its document says."""

from __future__ import annotations

from colmlm.migrations.statements import run

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

UPGRADE = """
SELECT pg_advisory_xact_lock(427071139074);
ALTER TABLE fact ADD COLUMN said_version integer NOT NULL DEFAULT 1;
CREATE TABLE fact_past (
    fact_id      bigint NOT NULL CONSTRAINT fact_past_fact_id_fkey REFERENCES fact,
    version      integer NOT NULL,
    question     text,
    answer       text,
    document_id  bigint CONSTRAINT fact_past_document_id_fkey REFERENCES document,
    span_start   integer,
    span_end     integer,
    said_version integer NOT NULL,
    CONSTRAINT fact_past_pkey PRIMARY KEY (fact_id, version)
);

-- Without compression, so that a scan of the files finds erased words.
ALTER TABLE fact_past ALTER COLUMN question SET STORAGE EXTERNAL, ALTER COLUMN answer SET STORAGE EXTERNAL;
"""

DOWNGRADE = """
DROP TABLE fact_past;
ALTER TABLE fact DROP COLUMN said_version;
"""


def upgrade() -> None:
    run(UPGRADE)


def downgrade() -> None:
    run(DOWNGRADE)
