"""Adds the frames of facts: digests of the words around them in their sentences, by which facts are compared.

New facts get theirs at their ingest; those that are there already with the first job of the kind "compare".
"""

from __future__ import annotations

from sqlalchemy import Connection

from colmlm.migrations.statements import build_beforehand, building, run

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None

COLUMN = "ALTER TABLE fact ADD COLUMN IF NOT EXISTS frame bigint"
INDEXES = {"fact_frame_idx": "fact (frame, id) WHERE frame <> 0 AND deleted_seq IS NULL"}
TRIGGERS = """
-- A frame follows from the text. Where that changes, as in a redaction, no digest of what it said may stay.
CREATE FUNCTION forget_frames_of_document() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN UPDATE fact SET frame = NULL WHERE document_id = OLD.id AND frame IS NOT NULL; RETURN NULL; END
$$;
CREATE TRIGGER document_frames_other AFTER UPDATE OF text, title ON document FOR EACH ROW
    WHEN ((OLD.text, OLD.title) IS DISTINCT FROM (NEW.text, NEW.title))
    EXECUTE FUNCTION forget_frames_of_document();

CREATE FUNCTION forget_frame_of_fact() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN NEW.frame := NULL; RETURN NEW; END
$$;
CREATE TRIGGER fact_stands_elsewhere BEFORE UPDATE OF document_id, span_start, span_end, erased_seq ON fact
    FOR EACH ROW WHEN ((OLD.document_id, OLD.span_start, OLD.span_end, OLD.erased_seq)
        IS DISTINCT FROM (NEW.document_id, NEW.span_start, NEW.span_end, NEW.erased_seq))
    EXECUTE FUNCTION forget_frame_of_fact()
"""
UPGRADE = ";\n".join([COLUMN, *building(INDEXES), TRIGGERS])
DOWNGRADE = """
DROP TRIGGER fact_stands_elsewhere ON fact; DROP TRIGGER document_frames_other ON document;
DROP FUNCTION forget_frame_of_fact, forget_frames_of_document; DROP INDEX fact_frame_idx;
ALTER TABLE fact DROP COLUMN frame
"""


def beforehand(connection: Connection) -> None:
    """Adds the column and builds its index in a base that has facts; what is there already stays."""
    run(COLUMN, connection)
    build_beforehand(connection, INDEXES)


def upgrade() -> None:
    run(UPGRADE)


def downgrade() -> None:
    run(DOWNGRADE)
