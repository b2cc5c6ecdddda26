"""Adds keyed digests of erased texts, by which a check finds what still says them.

Facts that were erased before this migration have none, since their texts are gone. Outputs that spliced these are
found by their splices.
"""

from __future__ import annotations

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

UPGRADE = """
CREATE TABLE erased_text (
    fact_id    bigint NOT NULL CONSTRAINT erased_text_fact_id_fkey REFERENCES fact,
    digest     bytea NOT NULL,
    first_word bytea NOT NULL,
    num_words  integer NOT NULL,
    seq        bigint NOT NULL,
    at         timestamptz NOT NULL DEFAULT clock_timestamp(),
    everywhere boolean NOT NULL,
    CONSTRAINT erased_text_pkey PRIMARY KEY (fact_id, digest)
);
CREATE INDEX erased_text_seq_idx ON erased_text (seq);
ALTER TABLE idempotency ADD COLUMN claimed_seq bigint;
"""

DOWNGRADE = """
ALTER TABLE idempotency DROP COLUMN claimed_seq;
DROP TABLE erased_text;
"""


def upgrade() -> None:
    op.execute(UPGRADE)


def downgrade() -> None:
    op.execute(DOWNGRADE)
