"""Adds to each sentence from where it is read, the lines that lead it, the passage around it, and its vector.

The sentences of documents are written anew, a few documents at a time while edits go on. Those that a server of the
release before writes meanwhile lack the new columns, and are read as before until `colmlm doctor --data --repair`.
"""

from __future__ import annotations

from collections.abc import Sequence

from alembic import op
from sqlalchemy import Connection, text
from sqlalchemy.orm import Session

from colmlm.kb.facts import sentences
from colmlm.migrations.statements import run

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None

NAMES = ("read_from", "own_start", "own_end", "passage_start", "passage_end")
COLUMNS = f"""
ALTER TABLE sentence {", ".join(f"ADD COLUMN IF NOT EXISTS {name} integer" for name in NAMES)},
    ADD COLUMN IF NOT EXISTS led_by integer[]
"""
VECTORS = """
CREATE TABLE IF NOT EXISTS sentence_vector (
    sentence_id bigint NOT NULL CONSTRAINT sentence_vector_pkey PRIMARY KEY,
    encoder     integer NOT NULL,
    vector      bytea NOT NULL,
    CONSTRAINT sentence_vector_sentence_id_fkey FOREIGN KEY (sentence_id) REFERENCES sentence ON DELETE CASCADE
)
"""
UPGRADE = ";\n".join((COLUMNS, VECTORS))
AT_ONCE = 100  # documents
_DUE = text("""
SELECT d.id FROM document d WHERE d.id > :after AND d.replaced_seq IS NULL
    AND EXISTS (SELECT FROM sentence s WHERE s.document_id = d.id AND s.read_from IS NULL)
ORDER BY d.id LIMIT :most FOR UPDATE OF d
""")
_OLD = text("DELETE FROM sentence WHERE document_id = ANY(:ids)")


def beforehand(connection: Connection) -> None:
    """Adds the columns and writes the sentences of all documents, some at a time; what is written stays.

    A base from before there were sentences gets them by the migrations.
    """
    if connection.scalar(text("SELECT to_regclass('document') IS NULL OR to_regclass('sentence') IS NULL")):
        return
    run(COLUMNS, connection)
    after: int | None = -1
    while after is not None:
        with Session(connection.engine) as session, session.begin():
            after = _write_some(session, after)


def upgrade() -> None:
    """Writes the sentences that were not written beforehand."""
    run(UPGRADE)
    after: int | None = -1
    with Session(op.get_bind()) as session:
        while after is not None:
            after = _write_some(session, after)


def _write_some(session: Session, after: int) -> int | None:
    """Writes the sentences of the next documents; gives the last of them, None where there is none."""
    ids: Sequence[int] = session.scalars(_DUE, {"after": after, "most": AT_ONCE}).all()
    if not ids:
        return None
    session.execute(_OLD, {"ids": ids})
    sentences.write_documents(session, ids)
    return ids[-1]


def downgrade() -> None:
    run("DROP TABLE sentence_vector")
    run(f"ALTER TABLE sentence DROP COLUMN led_by, {', '.join(f'DROP COLUMN {name}' for name in NAMES)}")
